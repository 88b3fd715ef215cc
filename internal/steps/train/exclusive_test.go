// SPDX-License-Identifier: Apache-2.0

package train

import (
	"strings"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

// A nightly run must not end because a user works in the environment with the same name.
func TestReplaceStopsNoRun(t *testing.T) {
	for _, tc := range []struct {
		name, run string
		replace   bool
		want      fail.Reason // "" for no error
		words     string
	}{
		{"of a run", "nightly-1", true, fail.EnvironmentBusy, "run nightly-1 works on these nodes"},
		{"of a person", "", false, fail.EnvironmentBusy, "job earlier runs on these nodes"},
		{"of a person, replaced", "", true, "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			training, _, agents := newTraining(t, "sleep 1000")
			breakWatch := agents[1].BreakWatch() // which does not end the training that replaces another one
			spec := training.Spec
			spec.Run, spec.Deadline = tc.run, time.Now().Add(time.Hour)
			for _, client := range training.Nodes {
				if _, err := client.StartJob(t.Context(), "earlier", spec); err != nil {
					t.Fatal(err)
				}
			}
			breakWatch()
			err := training.stopOtherTrainings(t.Context(), tc.replace)
			if got := fail.ReasonOf(err); err != nil && got != tc.want || err == nil && tc.want != "" || err != nil &&
				!strings.Contains(err.Error(), tc.words) {
				t.Errorf("got %v, want %q with %q", err, tc.want, tc.words)
			}
			for _, client := range training.Nodes {
				job, err := client.Job(t.Context(), "earlier")
				if err != nil || (job.State == agent.Running) != (tc.want != "") {
					t.Errorf("node %d: the earlier job is %s, %v", client.Node(), job.State, err)
				}
			}
		})
	}
}

// TestRunName: --replace stops what a user started, which has a name but is no run.
func TestRunName(t *testing.T) {
	for _, tc := range []struct {
		o    Options
		want string
	}{
		{Options{Run: run.Flags{Name: "nightly-1"}, Exclusive: true}, "nightly-1"},
		{Options{Job: "local-1"}, "local-1"},
		{Options{Job: "by-hand-x", Exclusive: true}, ""},
	} {
		if got := (&Training{Options: tc.o}).runName(); got != tc.want {
			t.Errorf("%+v: got %q, want %q", tc.o.Run, got, tc.want)
		}
	}
}
