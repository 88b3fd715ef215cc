package lease

import (
	"context"
	"encoding/json"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/diagnose/cause"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

const failureAnnotation = "ml-dev-env/failure"

// Failure is the first final failure of a step: the run that holds the Lease has only its finally tasks left. It survives
// the step's pod, whose results can be lost with its node, and shows the reaper that the run does not need the environment any more.
type Failure struct {
	Task    string      `json:"task"`
	Reason  fail.Reason `json:"reason"`
	Message string      `json:"message"`
	// Cause is the rank that failed first, nil if the failure is no rank's.
	Cause *cause.Culprit `json:"cause,omitempty"`
	// Hanging are the ranks for which the others waited, if the reason is Hang and they are known.
	Hanging []int     `json:"hanging,omitempty"`
	Metrics string    `json:"metrics,omitempty"`
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended"`
}

// FailureOf returns the failure in a Lease, nil for none.
func FailureOf(lease *coordinationv1.Lease) *Failure {
	v := &Failure{}
	if err := json.Unmarshal([]byte(lease.Annotations[failureAnnotation]), v); err != nil || v.Reason == "" {
		return nil
	}
	return v
}

// Conclude writes the failure into the Lease that a run holds. It tries again until ctx ends while the API server does not
// answer.
func (c Client) Conclude(ctx context.Context, name, runUID string, v Failure) error {
	content, err := json.Marshal(v)
	if err != nil {
		return err
	}
	for {
		err := c.change(ctx, "concluding", name, runUID, func(lease *coordinationv1.Lease) error {
			metav1.SetMetaDataAnnotation(&lease.ObjectMeta, failureAnnotation, string(content))
			return nil
		})
		if !kube.Transient(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(RetryEvery):
		}
	}
}
