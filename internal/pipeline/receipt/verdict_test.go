// SPDX-License-Identifier: Apache-2.0

package receipt

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

// minute returns a time in a run.
func minute(n int) time.Time { return noon().Add(time.Duration(n) * time.Minute) }

func succeeded(task string) Entry {
	return Entry{Task: task, Status: run.Succeeded, Started: noon(), Ended: minute(1)}
}

func failed(task string, reason fail.Reason, ended int) Entry {
	return Entry{Task: task, Status: run.Failed, Reason: reason, Message: task + " said", Started: noon(), Ended: minute(ended),
		Final: run.IsFinalReason(reason) && task == "train"}
}

func training() Entry { return Entry{Task: "train", Status: run.Running, Started: noon()} }

// byTekton returns a task as Tekton ended it, or 0 if it has not.
func byTekton(task string, status run.Status, reason fail.Reason, ended int) run.TaskRun {
	t := run.TaskRun{Task: task, Status: status, Reason: reason, Started: noon()}
	if ended > 0 {
		t.Ended = minute(ended)
	}
	if status == run.Failed {
		t.Message = "Tekton said"
	}
	return t
}

// One function decides how a run stands, whatever its caller may read.
func TestVerdict(t *testing.T) {
	type parts = []Entry
	type tasks = []run.TaskRun
	inProgress, done := &run.Run{}, &run.Run{Done: true, Reason: "Failed", Message: "Tasks Completed: 3"}
	cancelled := &run.Run{Done: true, Cancelled: true, Reason: "Cancelled", Message: "PipelineRun was cancelled"}
	deleted := &End{fail.Cancelled, Deleted}
	written := func(verdict Verdict, reason fail.Reason) *Receipt {
		return &Receipt{Verdict: verdict, Reason: reason, Message: "the receipt says"}
	}
	for _, tc := range []struct {
		name    string
		parts   parts
		receipt *Receipt
		seen    Seen
		want    string // verdict, reason, message, the task that failed first, the final one, running tasks
	}{
		{"a colleague who reads ConfigMaps alone", parts{succeeded("provision"), training()}, nil, Seen{}, "-,-,-,-,-,train"},
		{"the same, after the training failed", parts{failed("train", fail.RankFailed, 2)}, nil, Seen{}, "-,RankFailed,train said,train,train,-"},
		{"the same, while teardown releases", parts{failed("train", fail.RankFailed, 2)}, written(Failed, fail.RankFailed), Seen{},
			"Failed,RankFailed,the receipt says,train,train,-"},
		{"the same, of a step that a retry may mend", parts{failed("train", fail.AgentUnreachable, 2)}, nil, Seen{},
			"-,AgentUnreachable,train said,train,-,-"},
		{"the receipt alone is left", nil, written(Failed, fail.NodeLost), Seen{}, "Failed,NodeLost,the receipt says,-,?,-"},
		{"the receipt of a success", parts{succeeded("train")}, written(Succeeded, ""), Seen{}, "Succeeded,-,the receipt says,-,-,-"},

		{"in progress, although a receipt is there", parts{succeeded("train")}, written(Succeeded, ""), Seen{Run: inProgress}, "-,-,-,-,-,-"},
		{"Tekton shows a pod that waits", parts{succeeded("preflight")}, nil,
			Seen{Run: inProgress, Tasks: tasks{byTekton("preflight", run.Succeeded, "", 1), byTekton("provision", run.Running, "", 0)}},
			"-,-,-,-,-,provision"},
		{"it has ended with success", parts{training()}, nil, Seen{Run: &run.Run{Done: true, Succeeded: true}}, "Succeeded,-,-,-,-,-"},
		{"it has ended, as the receipt says", nil, written(Failed, fail.OutOfMemory), Seen{Run: done},
			"Failed,OutOfMemory,the receipt says,-,?,-"},
		{"it has ended without a receipt, as its step noted", parts{failed("train", fail.OutOfMemory, 1)}, nil, Seen{Run: done},
			"Failed,OutOfMemory,train said,train,train,-"},
		{"it has ended, and teardown wrote success before it failed", nil, written(Succeeded, ""), Seen{Run: done},
			"Failed,Internal,Failed: Tasks Completed: 3,-,-,-"},
		{"no step has run", nil, nil, Seen{Run: done, Tasks: tasks{byTekton("preflight", run.Failed, fail.ImageUnavailable, 1)}},
			"Failed,ImageUnavailable,Tekton said,preflight,-,-"},
		{"cancelled outright", parts{training()}, nil, Seen{Run: cancelled}, "Failed,Cancelled,Cancelled: PipelineRun was cancelled,-,-,train"},

		{"teardown: all succeeded", parts{succeeded("train")}, nil,
			Seen{Run: inProgress, Over: true, Tasks: tasks{byTekton("train", run.Succeeded, "", 1)}}, "Succeeded,-,-,-,-,-"},
		{"teardown: the step noted more than a retry knows", parts{failed("train", fail.NodeLost, 9)}, nil,
			Seen{Run: inProgress, Over: true, Tasks: tasks{byTekton("train", run.Failed, fail.RankFailed, 14)}},
			"Failed,NodeLost,train said,train,train,-"},
		{"teardown: Tekton has not seen the end of a step", parts{failed("train", fail.NodeLost, 9)}, nil,
			Seen{Run: inProgress, Over: true, Tasks: tasks{byTekton("train", run.Running, "", 0)}}, "Failed,NodeLost,train said,train,train,-"},
		{"teardown: a killed step noted no end", parts{training()}, nil,
			Seen{Run: inProgress, Over: true, Tasks: tasks{byTekton("train", run.Failed, fail.TrainingTimeout, 9)}},
			"Failed,TrainingTimeout,Tekton said,train,-,-"},
		{"teardown: a retry succeeded, and its note is missing", parts{failed("train", fail.AgentUnreachable, 2)}, nil,
			Seen{Run: inProgress, Over: true, Tasks: tasks{byTekton("train", run.Succeeded, "", 9)}}, "Succeeded,-,-,-,-,-"},
		{"teardown: a task has another name than its step", parts{failed("train", fail.Hang, 2)}, nil,
			Seen{Run: inProgress, Over: true, Tasks: tasks{byTekton("learn", run.Failed, fail.Internal, 3)}},
			"Failed,Hang,train said,train,train,-"},
		{"teardown: the first of two", parts{failed("sync-repo", fail.DiskFull, 9), failed("preflight", fail.QuotaExceeded, 8)}, nil,
			Seen{Run: inProgress, Over: true}, "Failed,QuotaExceeded,preflight said,preflight,-,-"},
		{"teardown: no step has noted anything", nil, nil, Seen{Over: true}, "Failed,Internal,no step has noted how it ended,-,-,-"},
		{"teardown: a task has not ended", nil, nil, Seen{Run: inProgress, Over: true, Tasks: tasks{byTekton("train", run.Running, "", 0)}},
			"Failed,Internal,task train has not ended,train,-,train"},
		{"teardown: cancelled outright, in a step that noted no end", parts{training()}, nil,
			Seen{Run: &run.Run{Done: true, Cancelled: true}, Over: true}, "Failed,Cancelled,the run was cancelled,train,-,train"},
		{"teardown: cancelled between tasks", nil, nil, Seen{Run: &run.Run{Cancelled: true}, Over: true},
			"Failed,Cancelled,the run was cancelled,-,-,-"},
		{"teardown: a task was skipped", nil, nil, Seen{Run: &run.Run{Skipped: []run.SkippedTask{{Task: "train", Reason: "PipelineRunTimeout"}}},
			Over: true}, "Failed,TrainingTimeout,task train did not run: PipelineRunTimeout,-,-,-"},
		{"teardown again: a final failure stays", nil, written(Failed, fail.NodeLost),
			Seen{Run: inProgress, Over: true, Tasks: tasks{byTekton("train", run.Succeeded, "", 1)}}, "Failed,NodeLost,the receipt says,-,?,-"},
		{"teardown again: its own failure does not", nil, written(Failed, fail.TeardownIncomplete),
			Seen{Run: inProgress, Over: true, Tasks: tasks{byTekton("train", run.Succeeded, "", 1)}}, "Succeeded,-,-,-,-,-"},

		{"deleted", parts{training()}, nil, Seen{End: deleted}, "Failed,Cancelled,the run was deleted,-,-,train"},
		{"deleted after a failure", parts{failed("train", fail.RankFailed, 1)}, nil, Seen{End: deleted},
			"Failed,RankFailed,train said,train,train,-"},
		{"deleted, and a step ended with it", parts{failed("train", fail.EnvironmentMissing, 1)}, nil, Seen{End: deleted},
			"Failed,Cancelled,the run was deleted,-,-,-"},
	} {
		s := Journal{Start: startOf("uid"), Entries: tc.parts, Receipt: tc.receipt}.Verdict(tc.seen)
		final := ""
		if s.Final != nil {
			final = "?" + s.Final.Task
		}
		var got []string
		for _, value := range []string{string(s.Verdict), string(s.Reason), s.Message, s.Task, strings.TrimPrefix(final, "?"),
			strings.Join(s.Running, "+")} {
			if value == "" {
				value = "-"
			}
			got = append(got, value)
		}
		if final == "?" {
			got[4] = "?"
		}
		if diff := cmp.Diff(tc.want, strings.Join(got, ",")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, diff)
		}
	}
}
