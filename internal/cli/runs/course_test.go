// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

// doneInWords returns what is done after an event.
func doneInWords(effects []effect) string {
	var words []string
	for _, e := range effects {
		switch e := e.(type) {
		case plainEffect:
			words = append(words, string(e))
		case note:
			const shown = 5
			all := strings.Fields(string(e))
			words = append(words, fmt.Sprintf("print %q", strings.Join(all[:min(shown, len(all))], " ")))
		case leave:
			text := "leave the run"
			if e.over {
				text = "the run is over"
			}
			if exit := (*command.Exit)(nil); errors.As(e.err, &exit) {
				text += fmt.Sprintf(", exit code %d", exit.Code)
			} else if e.err != nil {
				text += ", " + strings.ReplaceAll(e.err.Error(), "\n", " and ")
			}
			words = append(words, text)
		}
	}
	return strings.Join(words, "; ")
}

// TestCourse lists what the follower of a run does about each thing that may happen.
func TestCourse(t *testing.T) {
	type row struct {
		event event
		want  string
	}
	broken := errors.New("broken")
	ends := func(task string, status run.Status) launch.Event {
		return launch.Event{Kind: launch.TaskEnded, Task: task, Ended: &run.TaskRun{Status: status}}
	}
	provisioned, synced := ends("provision", run.Succeeded), ends("sync-repo", run.Succeeded)
	teardown := launch.Event{Kind: launch.TaskStarted, Task: "teardown"}
	early := launch.Event{Kind: launch.TaskWaiting, Task: "preflight", Early: true}
	ended := func(reason fail.Reason) runEnded {
		return runEnded{launch.Outcome{Reason: reason, Cancelled: true}, nil}
	}
	const cancelling = `close the question; print "== cancelling; everything is released,"; cancel the run`
	for _, tc := range []struct {
		name   string
		course course
		rows   []row
	}{
		{"the run ends", course{}, []row{{provisioned, ""}, {synced, ""}, {teardown, "end waiting"}, {ended(""), "the run is over"}}},
		{"the login expires", course{}, []row{
			{runEnded{launch.Outcome{Run: &v1.PipelineRun{}}, broken}, fmt.Sprintf("the run is over, exit code %d", command.Unfollowed)},
		}},
		{"Ctrl-C without a terminal", course{}, []row{
			{os.Interrupt, cancelling},
			{cancelAnswer{}, "start the timer"},
			{ended(fail.Cancelled), "the run is over"},
		}},
		{"SIGTERM on a terminal", course{keys: true}, []row{{syscall.SIGTERM, cancelling}}},
		{"Ctrl-C, and then c", course{keys: true}, []row{{os.Interrupt, "ask the user"}, {key('c'), cancelling}}},
		{"Ctrl-C twice", course{keys: true}, []row{{os.Interrupt, "ask the user"}, {os.Interrupt, cancelling}}},
		{"Ctrl-C twice on a terminal that passes on keys", course{keys: true}, []row{{os.Interrupt, "ask the user"}, {key(ctrlC), cancelling}}},
		{"Ctrl-C, and then d", course{keys: true}, []row{{os.Interrupt, "ask the user"}, {key('d'), "leave the run"}}},
		{"Ctrl-C, and then another key", course{keys: true}, []row{
			{os.Interrupt, "ask the user"},
			{key('x'), "close the question"},
			{key('c'), ""},
			{os.Interrupt, "ask the user"},
		}},
		{"no key comes any more", course{keys: true}, []row{
			{os.Interrupt, "ask the user"},
			{noKeys{}, "close the question"},
			{os.Interrupt, cancelling},
		}},
		{"the run cannot be cancelled", course{}, []row{
			{os.Interrupt, cancelling},
			{cancelAnswer{broken}, `print "== the run was not"`},
			{os.Interrupt, cancelling},
		}},
		{"Ctrl-C while the run is being cancelled", course{}, []row{
			{os.Interrupt, cancelling},
			{cancelAnswer{}, "start the timer"},
			{os.Interrupt, fmt.Sprintf(`print "== leaving; the run is"; leave the run, exit code %d`, command.Interrupted)},
		}},
		{"a cancelled run does not end", course{}, []row{
			{os.Interrupt, cancelling},
			{cancelAnswer{}, "start the timer"},
			{tooLate{}, fmt.Sprintf("leave the run, exit code %d", command.Interrupted)},
		}},
		{"a folder is uploaded", course{folder: true, needed: true}, []row{
			{ends("provision", run.Failed), ""},
			{provisioned, "upload the folder"},
			{uploaded{}, `hide; print "== the folder is on"`},
			{synced, "end the upload"},
		}},
		{"--detach with a folder", course{folder: true, needed: true, detach: true}, []row{
			{provisioned, "upload the folder"},
			{uploaded{}, "hide; leave the run"},
		}},
		{"d before the folder is uploaded", course{folder: true, needed: true, keys: true}, []row{
			{os.Interrupt, "ask the user"},
			{key('d'), `close the question; print "== the folder is not"`},
			{provisioned, "upload the folder"},
			{uploaded{}, "hide; leave the run"},
		}},
		{"d after the folder is uploaded", course{folder: true, needed: true, keys: true}, []row{
			{uploaded{}, `hide; print "== the folder is on"`},
			{os.Interrupt, "ask the user"},
			{key('d'), "leave the run"},
		}},
		{"the upload fails", course{folder: true, needed: true}, []row{
			{provisioned, "upload the folder"},
			{uploaded{broken}, `hide; print "== uploading the folder: broken"; cancel the run`},
			{cancelAnswer{}, "start the timer"},
			{ended(fail.Cancelled), "the run is over, uploading the folder: broken"},
		}},
		{"the upload fails because the run does", course{folder: true, needed: true}, []row{
			{uploaded{broken}, `hide; print "== uploading the folder: broken"; cancel the run`},
			{cancelAnswer{}, "start the timer"},
			{ended(fail.NodeLost), "the run is over"},
		}},
		{"the upload fails, and the run cannot be cancelled", course{folder: true, needed: true}, []row{
			{uploaded{broken}, `hide; print "== uploading the folder: broken"; cancel the run`},
			{cancelAnswer{broken}, "leave the run, exit code 3"},
		}},
		{"the upload ends because the run needs it no more", course{folder: true, needed: true, keys: true}, []row{
			{synced, "end the upload"},
			{uploaded{broken}, "hide"},
			{os.Interrupt, "ask the user"},
			{key('d'), "leave the run"},
		}},
		{"the run is torn down without the folder", course{folder: true, needed: true}, []row{{teardown, "end the upload; end waiting"}}},
		{"the run is cancelled during the upload", course{folder: true, needed: true}, []row{
			{os.Interrupt, cancelling},
			{cancelAnswer{}, "start the timer"},
			{uploaded{broken}, "hide"},
			{ended(fail.Cancelled), "the run is over"},
		}},
		{"the pods came before the pull secrets", course{again: true}, []row{{early, "leave the run, " + errEarly.Error()}}},
		{"the pods came before the pull secrets, for the second time", course{}, []row{{early, ""}}},
		{"the pods came before the pull secrets of a cancelled run", course{again: true}, []row{
			{os.Interrupt, cancelling},
			{cancelAnswer{}, "start the timer"},
			{early, ""},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := tc.course
			c.run = &v1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "mine"}}
			for i, row := range tc.rows {
				effects := c.on(row.event)
				if got := doneInWords(effects); got != row.want {
					t.Errorf("event %d, %T:\n got %s\nwant %s", i+1, row.event, got, row.want)
				}
				if over, ok := row.event.(runEnded); ok && over.err == nil {
					outcome := effects[len(effects)-1].(leave).outcome
					if ours := over.outcome.Reason == fail.NodeLost; outcome.Cancelled == ours {
						t.Errorf("cancelled is %t", outcome.Cancelled)
					}
				}
			}
		})
	}
}
