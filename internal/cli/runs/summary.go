// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

type summary struct {
	// Name is the run's name.
	Name string `json:"name"`
	// Namespace is its namespace. It is empty for a local run.
	Namespace string `json:"namespace"`
	// Environment is the name of the environment that it uses.
	Environment string `json:"environment"`
	// Local reports whether the run is or was on this machine.
	Local bool `json:"local,omitempty"`
	// State is one of Running, Cancelling, Cancelled, Succeeded and Failed.
	State string `json:"state"`
	// Reason is why the run failed, one word of reasons.md.
	Reason fail.Reason `json:"reason,omitempty"`
	// Warning is what you should know of a run that succeeded.
	Warning string `json:"warning,omitempty"`
	// Phases are the running tasks, or the first task that failed.
	Phases []string `json:"phases,omitempty"`
	// Nodes is the number of nodes, 0 if it is not known.
	Nodes int `json:"nodes,omitempty"`
	// Started is when it started.
	Started time.Time `json:"started,omitzero"`
	// Ended is when it ended.
	Ended time.Time `json:"ended,omitzero"`
	// Kept reports whether the PipelineRun is gone, so that only the receipt is left.
	Kept bool `json:"onlyReceipt,omitempty"`
}

// stateText is the state with a mark for a warning.
func (s summary) stateText() string {
	if s.Warning != "" {
		return s.State + " (warning)"
	}
	return s.State
}

// namespaceText returns the namespace, or a word that is none.
func (s summary) namespaceText() string {
	if s.Local {
		return "(local)"
	}
	return s.Namespace
}

func (r runInfo) summary() summary {
	namespace, local := r.at.namespace(r)
	s := summary{
		Name: r.name, Namespace: namespace, Environment: r.environment(), Local: local, State: r.state(), Started: r.started(),
		Kept: r.run == nil && !local,
	}
	if r.run == nil {
		s.Ended = r.receipt.Ended
	} else if r.run.Status.CompletionTime != nil {
		s.Ended = r.run.Status.CompletionTime.Time
	}
	s.Nodes = r.nodes()
	v := r.standing()
	switch s.State {
	case string(receipt.Succeeded):
		s.Warning = r.receiptSoFar().Warning
	case running, cancelling:
		s.Phases = v.Running
	case string(receipt.Failed), cancelled:
		s.Reason = v.Reason
		if v.Task != "" {
			s.Phases = []string{v.Task}
		}
	}
	return s
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
