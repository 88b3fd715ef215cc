package runs

import (
	"cmp"
	"strconv"
	"time"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/run"
)

// States of a run beside the verdicts of its receipt.
const (
	running    = "Running"
	cancelling = "Cancelling"
	cancelled  = "Cancelled"
)

// summary is a run in a few words.
type summary struct {
	Name        string `json:"name"`
	Namespace   string `json:"namespace"`
	Environment string `json:"environment"`
	// State is Running, Cancelling, Cancelled, Succeeded or Failed.
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"`
	// Phases are the tasks that run now, or of a run that failed the first one that did.
	Phases []string `json:"phases,omitempty"`
	// Nodes is 0 where the number is not known.
	Nodes   int       `json:"nodes,omitempty"`
	Started time.Time `json:"started,omitzero"`
	Ended   time.Time `json:"ended,omitzero"`
	// Kept is true where the PipelineRun is gone and only the receipt is left.
	Kept bool `json:"onlyReceipt,omitempty"`
}

// started is zero of a run that has not.
func (k known) started() time.Time {
	switch {
	case k.run == nil:
		return k.receipt.Started
	case k.run.Status.StartTime != nil:
		return k.run.Status.StartTime.Time
	}
	return k.run.CreationTimestamp.Time
}

// state in one word.
func (k known) state() string {
	if k.run == nil {
		return string(k.receipt.Verdict)
	}
	asked := k.run.IsCancelled() || k.run.IsGracefullyCancelled()
	switch {
	case !k.run.IsDone() && asked:
		return cancelling
	case !k.run.IsDone():
		return running
	case k.run.IsSuccessful():
		return string(receipt.Succeeded)
	case asked:
		return cancelled
	}
	return string(receipt.Failed)
}

func (k known) summary(namespace string) summary {
	s := summary{Name: k.name, Namespace: namespace, Environment: k.environment(), State: k.state(), Started: k.started(), Kept: k.run == nil}
	if k.run == nil {
		s.Ended = k.receipt.Ended
	} else if k.run.Status.CompletionTime != nil {
		s.Ended = k.run.Status.CompletionTime.Time
	}
	s.Nodes = k.nodes()
	for _, task := range k.tasks {
		if task.Status == run.Running {
			s.Phases = append(s.Phases, task.Task)
		}
	}
	if s.State != string(receipt.Failed) && s.State != cancelled {
		return s
	}
	for _, task := range k.tasks {
		if task.Status == run.Failed {
			s.Phases, s.Reason = []string{task.Task}, string(task.Reason)
			break
		}
	}
	if k.receipt == nil {
		if condition := k.run.Status.GetCondition("Succeeded"); condition != nil {
			s.Reason = cmp.Or(s.Reason, string(kube.ReasonFor(condition.Reason)), string(fail.Internal))
		}
		return s
	}
	s.Reason = cmp.Or(k.receipt.Reason, s.Reason)
	for _, phase := range k.receipt.Phases {
		if phase.Status == string(run.Failed) {
			s.Phases = []string{phase.Name}
			break
		}
	}
	return s
}

// nodes is by what was there, else by what was asked for.
func (k known) nodes() int {
	if k.receipt != nil && len(k.receipt.Nodes) > 0 {
		return len(k.receipt.Nodes)
	}
	if k.run == nil {
		return 0
	}
	pipeline := &v1.Pipeline{}
	if k.run.Status.PipelineSpec != nil {
		pipeline.Spec = *k.run.Status.PipelineSpec
	}
	n, _ := strconv.Atoi(launch.Value(pipeline, launch.Values(k.run), "nodes"))
	return n
}

// duration it took, or takes until now.
func (s summary) duration(now time.Time) time.Duration {
	switch {
	case s.Started.IsZero():
		return 0
	case s.Ended.IsZero() && s.Kept:
		return 0
	case s.Ended.IsZero():
		return now.Sub(s.Started)
	}
	return s.Ended.Sub(s.Started)
}
