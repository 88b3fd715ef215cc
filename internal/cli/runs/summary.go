package runs

import (
	"cmp"
	"strconv"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/run"
)

// States of a run in addition to the verdicts of receipts.
const (
	running    = "Running"
	cancelling = "Cancelling"
	cancelled  = "Cancelled"
)

type summary struct {
	Name        string `json:"name"`
	Namespace   string `json:"namespace"`
	Environment string `json:"environment"`
	// State is Running, Cancelling, Cancelled, Succeeded or Failed.
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"`
	// Phases are the running tasks, or the first task that failed.
	Phases []string `json:"phases,omitempty"`
	// Nodes is 0 if the number is not known.
	Nodes   int       `json:"nodes,omitempty"`
	Started time.Time `json:"started,omitzero"`
	Ended   time.Time `json:"ended,omitzero"`
	// Kept reports that only the receipt is left.
	Kept bool `json:"onlyReceipt,omitempty"`
}

func (r entry) started() time.Time {
	switch {
	case r.run == nil:
		return r.receipt.Started
	case r.run.Status.StartTime != nil:
		return r.run.Status.StartTime.Time
	}
	return r.run.CreationTimestamp.Time
}

func (r entry) state() string {
	switch {
	case r.hidden && r.open:
		return running
	case r.open:
		return cancelling
	case r.run == nil:
		return string(r.receipt.Verdict)
	}
	stopped := r.run.IsCancelled() || r.run.IsGracefullyCancelled()
	switch {
	case !r.run.IsDone() && stopped:
		return cancelling
	case !r.run.IsDone():
		return running
	case r.run.IsSuccessful():
		return string(receipt.Succeeded)
	case stopped:
		return cancelled
	}
	return string(receipt.Failed)
}

func (r entry) summary(namespace string) summary {
	s := summary{Name: r.name, Namespace: namespace, Environment: r.environment(), State: r.state(), Started: r.started(), Kept: r.run == nil}
	if r.run == nil {
		s.Ended = r.receipt.Ended
	} else if r.run.Status.CompletionTime != nil {
		s.Ended = r.run.Status.CompletionTime.Time
	}
	s.Nodes = r.nodes()
	for _, task := range r.tasks {
		if task.Status == run.Running {
			s.Phases = append(s.Phases, task.Task)
		}
	}
	if r.open {
		for _, phase := range r.receipt.Phases {
			if phase.Status == string(run.Running) {
				s.Phases = append(s.Phases, phase.Name)
			}
		}
	}
	if s.State != string(receipt.Failed) && s.State != cancelled {
		return s
	}
	if first := run.FirstFailed(r.tasks); first != nil && first.Status == run.Failed {
		s.Phases, s.Reason = []string{first.Task}, string(first.Reason)
	}
	if r.receipt == nil {
		if condition := r.run.Status.GetCondition("Succeeded"); condition != nil {
			s.Reason = cmp.Or(s.Reason, string(kube.ReasonFor(condition.Reason)), string(fail.Internal))
		}
		return s
	}
	s.Reason = cmp.Or(r.receipt.Reason, s.Reason)
	var first time.Time
	for _, phase := range r.receipt.Phases {
		if phase.Status == string(run.Failed) && (first.IsZero() || phase.Ended.Before(first)) {
			s.Phases, first = []string{phase.Name}, phase.Ended
		}
	}
	return s
}

// nodes is the number of nodes in the receipt, or else that of provision, or else the requested one.
func (r entry) nodes() int {
	if r.receipt != nil && len(r.receipt.Nodes) > 0 {
		return len(r.receipt.Nodes)
	}
	if r.run == nil {
		if t := r.receipt.Training; t != nil {
			return t.Nodes
		}
		return 0
	}
	n, _ := strconv.Atoi(r.param("nodes"))
	for _, task := range r.tasks {
		if started, err := strconv.Atoi(task.Results["nodes"]); err == nil {
			n = started // 0 requests the number of the cluster file
		}
	}
	return n
}

// duration ends now if the run is in progress; 0 if it is not known.
func (s summary) duration(now time.Time) time.Duration {
	switch {
	case s.Started.IsZero(), s.Ended.IsZero() && s.Kept && s.State != running:
		return 0
	case s.Ended.IsZero():
		return now.Sub(s.Started)
	}
	return s.Ended.Sub(s.Started)
}
