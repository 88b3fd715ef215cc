// SPDX-License-Identifier: Apache-2.0

package receipt

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

// Seen is what a caller has read of a run in addition to the receipt: the zero value if the caller may read ConfigMaps alone.
type Seen struct {
	// Run is the PipelineRun, nil if it was not read.
	Run *run.Run
	// Tasks are its tasks without the caller's. They show what no step can note: that its pod never ran, or was killed.
	Tasks []run.TaskRun
	// Over reports that no task is left except the finally tasks: the caller does what they do.
	Over bool
	// End is why the run ends without its finally tasks, nil if it does not.
	End *End
}

// End is why a run ends without its finally tasks.
type End struct {
	Reason  fail.Reason
	Message string
}

// Standing is how a run stands.
type Standing struct {
	// Verdict is "" while the run is in progress.
	Verdict Verdict
	// Reason and Message come from the first failure, "" for none. A run in progress may have one, too.
	Reason  fail.Reason
	Message string
	// Task is the one that failed first, "" for none.
	Task string
	// Final is the failure after which the run has only its finally tasks left, because a retry only repeats it; nil for none. It
	// names no task if only the receipt has it.
	Final *Entry
	// Running are the tasks that have started and not ended, in the order of their start.
	Running []string
}

// Verdict decides how a run stands. No other function does: retries, the reaper, teardown, mlenv and the Action call this one. These
// count, in this order:
//
//   - what Tekton shows of the whole run: one in progress has no verdict yet, and one that succeeded has succeeded;
//   - the receipt. It does not bind a teardown that comes again, unless its failure is final: the first teardown may have failed itself;
//   - the task that failed first, as its step noted it, or else as Tekton ended it. A step that ended because the run took its
//     environment away did not fail first;
//   - why the run ended.
func (m Journal) Verdict(seen Seen) Standing {
	tasks := m.Tasks(seen.Tasks)
	s := Standing{Final: m.final()}
	for _, task := range tasks {
		if task.Status == run.Running {
			s.Running = append(s.Running, task.Task)
		}
	}
	first := firstFailed(tasks, seen)
	if first != nil {
		s.Task, s.Reason, s.Message = first.Task, first.Reason, first.Message
	}
	written := m.Receipt != nil && m.Receipt.Verdict != "" && (!seen.Over || run.IsFinalReason(m.Receipt.Reason))
	switch of := seen.Run; {
	case of != nil && !of.Done && !seen.Over && seen.End == nil:
	case of != nil && of.Succeeded:
		return Standing{Verdict: Succeeded}
	case written && (m.Receipt.Verdict == Failed || of == nil || !of.Done):
		s.Verdict, s.Reason, s.Message = m.Receipt.Verdict, m.Receipt.Reason, m.Receipt.Message
	case seen.End != nil:
		s.Verdict = Failed
		if first == nil {
			s.Reason, s.Message = seen.End.Reason, seen.End.Message
		}
	case seen.Over:
		s.decideOver(of, first, len(tasks))
	case of != nil: // it has ended without success
		s.decideEnded(of, first)
	}
	return s
}

// decideOver decides about a run of which the finally tasks are left. A run can end between two tasks, all of which succeeded. One of which
// neither Tekton nor a step says anything has not.
func (s *Standing) decideOver(of *run.Run, first *run.TaskRun, known int) {
	s.Verdict = Failed
	switch {
	case first != nil && (first.Status == run.Failed || of == nil || !of.Cancelled):
		s.Reason = cmp.Or(first.Reason, fail.Internal)
		if first.Status == run.Running {
			s.Message = cmp.Or(first.Message, fmt.Sprintf("task %s has not ended", first.Task))
		}
	case of != nil && of.Cancelled:
		s.Reason, s.Message = fail.Cancelled, "the run was cancelled"
	case of != nil && len(of.Skipped) > 0:
		missed := of.Skipped[0]
		s.Reason = cmp.Or(kube.ReasonFor(missed.Reason), fail.Internal)
		s.Message = fmt.Sprintf("task %s did not run: %s", missed.Task, missed.Reason)
	case of == nil && known == 0:
		s.Reason, s.Message = fail.Internal, "no step has noted how it ended"
	default:
		s.Verdict = Succeeded
	}
}

// decideEnded decides about a run that has ended without success and left no receipt.
func (s *Standing) decideEnded(of *run.Run, first *run.TaskRun) {
	s.Verdict = Failed
	if first != nil && first.Reason != fail.Internal {
		return
	}
	s.Reason = cmp.Or(kube.ReasonFor(of.Reason), fail.Internal)
	if of.Cancelled {
		s.Reason = fail.Cancelled
	}
	if first == nil {
		s.Message = of.Reason + ": " + of.Message
	}
}

// firstFailed returns the task without which the run might have succeeded, nil for none: of those that failed the one that ended first,
// because tasks that run at the same time end although another one has failed. When only finally tasks are left, a task that has not
// ended has failed, too.
func firstFailed(tasks []run.TaskRun, seen Seen) (first *run.TaskRun) {
	for i := range tasks {
		t := &tasks[i]
		switch {
		case t.Status == run.Succeeded, t.Status == run.Running && !seen.Over:
			continue
		case seen.End != nil && (t.Reason == fail.Cancelled || t.Reason == fail.EnvironmentMissing):
			continue // the end of the run takes the environment of a step with it
		}
		if first == nil || !t.Ended.IsZero() && (first.Ended.IsZero() || t.Ended.Before(first.Ended)) {
			first = t
		}
	}
	return first
}

// final returns the entry of a step whose failure is final, or else the final failure in the receipt; nil for none.
func (m Journal) final() *Entry {
	if i := slices.IndexFunc(m.Entries, func(p Entry) bool { return p.Status == run.Failed && p.Final }); i >= 0 {
		return &m.Entries[i]
	}
	if r := m.Receipt; r != nil && r.Verdict == Failed && run.IsFinalReason(r.Reason) {
		return &Entry{
			Status: run.Failed, Final: true, Reason: r.Reason, Message: r.Message, Metrics: r.Metrics, Cause: r.Cause, Ended: r.Ended,
		}
	}
	return nil
}

// Tasks returns the tasks that Tekton lists, or else those in the receipt, each as its step noted its end, and the tasks that only
// their steps noted.
func (m Journal) Tasks(listed []run.TaskRun) []run.TaskRun {
	tasks := slices.Clone(listed)
	if len(tasks) == 0 && m.Receipt != nil {
		for _, p := range m.Receipt.Phases {
			tasks = append(tasks, run.TaskRun{
				Task: p.Name, Status: p.Status, Reason: p.Reason, Started: p.Started, Ended: p.Ended, Retries: p.Retries,
			})
		}
	}
	known := len(tasks)
	for i := range tasks {
		tasks[i] = m.noted(tasks[i])
	}
	for _, p := range m.Entries {
		same := func(t run.TaskRun) bool { return t.Task == p.Task }
		// A pipeline may name a task in another way than its step, and the note of its end may be missing.
		if !slices.ContainsFunc(tasks[:known], same) && (known == 0 || p.Status == run.Failed) {
			tasks = append(tasks, run.TaskRun{
				Task: p.Task, Status: p.Status, Reason: p.Reason, Message: p.Message, Started: p.Started, Ended: p.Ended,
			})
		}
	}
	return tasks
}

// noted returns a task with the failure that its step noted. After a final one a later attempt knows less, and its time does not count.
func (m Journal) noted(t run.TaskRun) run.TaskRun {
	p := m.EntryOf(t.Task)
	if p == nil || p.Status != run.Failed || !p.Final && t.Status != run.Failed {
		return t
	}
	t.Status, t.Reason, t.Message = run.Failed, p.Reason, p.Message
	if p.Final {
		t.Ended = p.Ended
		if t.Started.IsZero() || p.Started.Before(t.Started) {
			t.Started = p.Started
		}
	}
	return t
}

// ToReceipt returns the receipt of a run that stands so, as far as its steps have noted it. at is when the run ended, zero if it has not.
func (m Journal) ToReceipt(s Standing, at time.Time) Receipt {
	r := Receipt{
		Run: m.Run, RunUID: m.RunUID, Namespace: m.Namespace, Environment: m.Environment, Schedule: m.Schedule,
		Verdict: s.Verdict, Reason: s.Reason, Message: s.Message, Started: m.Started.UTC(), Ended: at.UTC(),
	}
	m.Fold(&r)
	return r
}

// NotReleased adds to a receipt why the environment was not released, which makes a run fail that had succeeded.
func (r *Receipt) NotReleased(err error) {
	r.Teardown = err.Error()
	if r.Verdict == Succeeded {
		r.Verdict, r.Reason, r.Message = Failed, fail.ReasonOf(err), err.Error()
	}
}
