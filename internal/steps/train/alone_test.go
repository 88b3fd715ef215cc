// SPDX-License-Identifier: Apache-2.0

package train

import (
	"strings"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/param"
	"github.com/ml-dev-env/ml-dev-env/test/locked"
)

func TestTrainingAlone(t *testing.T) {
	for _, test := range []struct {
		require      param.Effect
		alone        bool
		warning, err string
	}{
		{"warn", false, "", ""},
		{"fail", false, "", ""},
		{"warn", true,
			"Every rank exited with 0, but no rank was connected to another one: the 2 ranks may each have trained alone. Next: see in a rank's " +
				"log whether torch sees no GPU", ""},
		{"fail", true, "", "training: no rank was connected to another one: the 2 ranks may each have trained alone"},
	} {
		out := &locked.Buffer{}
		training := Training{Deps: Deps{Log: command.TextLog(out)}, Options: Options{Rendezvous: test.require}}
		err := training.meant([]agent.JobStatus{{Alone: test.alone, Spec: agent.JobSpec{Nodes: 1, RanksPerNode: 2}}})
		if !strings.Contains(out.String(), test.warning) || test.warning == "" && out.String() != "" {
			t.Errorf("%s, %v: printed %q, want %q", test.require, test.alone, out, test.warning)
		}
		if (err == nil) != (test.err == "") || err != nil && (err.Error() != test.err || fail.ReasonOf(err) != fail.NoRendezvous ||
			fail.NextOf(err) == "") {
			t.Errorf("%s, %v: got %v, want %q", test.require, test.alone, err, test.err)
		}
	}
}
