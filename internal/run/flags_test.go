// SPDX-License-Identifier: Apache-2.0

package run

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

func TestFlags(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want Flags
		ok   bool
	}{
		{nil, Flags{}, true},
		{[]string{"--run-name=", "--run-uid=", "--task-name="}, Flags{}, true}, // a TaskRun without a PipelineRun
		{[]string{"--run-name=train-1", "--run-uid=uid-1", "--task-name=train"}, Flags{"train-1", "uid-1", "train"}, true},
		{[]string{"--run-name=train-1"}, Flags{Name: "train-1"}, false},
		{[]string{"--run-uid=uid-1"}, Flags{UID: "uid-1"}, false},
	} {
		var f Flags
		flags := pflag.NewFlagSet("step", pflag.ContinueOnError)
		f.AddTo(flags)
		if err := flags.Parse(tc.args); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tc.want, f); diff != "" {
			t.Errorf("%v (-want +got):\n%s", tc.args, diff)
		}
		if err := f.Check(); (err == nil) != tc.ok {
			t.Errorf("%v: %v, want it allowed: %t", tc.args, err, tc.ok)
		}
	}
}
