// SPDX-License-Identifier: Apache-2.0

package train

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	tektonfake "github.com/tektoncd/pipeline/pkg/client/clientset/versioned/fake"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

// Teardown of a cancelled run may release the environment before the step knows that the ranks have ended. Then no rank is left.
func TestCancelMeetsTeardown(t *testing.T) {
	now := metav1.Now()
	lease := func(holder string, deleted *metav1.Time) []runtime.Object {
		of := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "env", DeletionTimestamp: deleted}}
		if deleted != nil {
			of.Finalizers = []string{"foregroundDeletion"}
		}
		of.Spec.HolderIdentity = &holder
		return []runtime.Object{of}
	}
	cancelled := &v1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "run", UID: "uid"}}
	cancelled.Spec.Status = v1.PipelineRunSpecStatusCancelled
	const left, gone = "Ranks may still run", "The environment was released meanwhile: no rank is left."
	for name, tc := range map[string]struct {
		objects   []runtime.Object
		want, not string
	}{
		"it is released":       {nil, gone, left},
		"it is being released": {lease("uid", &now), gone, left},
		"another run has it":   {lease("other", nil), gone, left},
		"it is held":           {lease("uid", nil), left, gone},
	} {
		training, out, agents := newTraining(t, "")
		for _, node := range agents {
			node.Wrap(func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.Method != http.MethodPost || !strings.HasSuffix(r.URL.Path, "/stop") {
						next.ServeHTTP(w, r)
						return
					}
					w.WriteHeader(http.StatusInternalServerError)
					_ = json.NewEncoder(w).Encode(agent.Problem{Reason: fail.Internal, Message: "the container ends"})
				})
			})
		}
		training.Clients.Kube, training.Clients.Tekton = fake.NewClientset(tc.objects...), tektonfake.NewSimpleClientset(cancelled)
		training.Run = run.Flags{Name: "run", UID: "uid", Task: "train"}
		err := training.interrupted(t.Context())
		if fail.ReasonOf(err) != fail.Cancelled || !strings.Contains(out.String(), tc.want) || strings.Contains(out.String(), tc.not) {
			t.Errorf("%s: got %v, log %s; want Cancelled with %q", name, err, out, tc.want)
		}
	}
}
