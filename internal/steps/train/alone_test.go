// SPDX-License-Identifier: Apache-2.0

package train

import (
	"strings"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/param"
)

func TestTrainingAlone(t *testing.T) {
	for _, test := range []struct {
		require             param.Effect
		alone, warning, err string
	}{
		{"warn", "", "", ""},
		{"fail", "", "", ""},
		{"warn", "no rank was connected",
			"Every rank exited with 0, but no rank was connected. Next: see in a rank's log whether torch sees no GPU", ""},
		{"fail", "no rank was connected", "", "training: no rank was connected"},
	} {
		out := &buffer{}
		training := Training{Deps: Deps{Log: command.TextLog(out)}, Options: Options{Rendezvous: test.require}}
		err := training.meant(test.alone)
		if !strings.Contains(out.String(), test.warning) || test.warning == "" && out.String() != "" {
			t.Errorf("%s, %q: printed %q, want %q", test.require, test.alone, out, test.warning)
		}
		if (err == nil) != (test.err == "") || err != nil && (err.Error() != test.err || fail.ReasonOf(err) != fail.NoRendezvous ||
			fail.NextOf(err) == "") {
			t.Errorf("%s, %q: got %v, want %q", test.require, test.alone, err, test.err)
		}
	}
}
