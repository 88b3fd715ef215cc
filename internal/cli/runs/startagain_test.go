// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"knative.dev/pkg/apis"

	mldevenv "github.com/ml-dev-env/ml-dev-env"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/test/apitest"
)

// roundTripper answers requests.
type roundTripper func(*http.Request) (*http.Response, error)

func (r roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }

// TestStartAgain: a run whose first pod came before the pull secrets of its account is started once more under its name, or stays if the
// user may not delete it. The API server runs no Tekton: the test creates the task, and ends the run that is the last one.
func TestStartAgain(t *testing.T) {
	const path = "/apis/tekton.dev/v1/namespaces/ns/pipelineruns/mine"
	for name, mayDelete := range map[string]bool{"deleted": true, "without the right": false} {
		t.Run(name, func(t *testing.T) {
			account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: launch.ServiceAccount},
				ImagePullSecrets: []corev1.LocalObjectReference{{Name: launch.ServiceAccount + "-dockercfg-1"}}}
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod-1"}}
			pod.Spec.ServiceAccountName = account.Name
			pod.Spec.Containers = []corev1.Container{{Name: "step-s", Image: "registry.example.com/steps@sha256:1"}}
			pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "step-s", State: corev1.ContainerState{
				Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "unexpected status from HEAD request: 401 Unauthorized"}}}}
			server := apitest.Start(t, account, pod)
			end := func() {
				object := server.Get(path)
				object["status"] = apitest.Object{"conditions": []any{apitest.Object{"type": "Succeeded", "status": "True"}}}
				server.Put(path, object)
			}
			clients := server.Clients(func(next http.RoundTripper) http.RoundTripper {
				return roundTripper(func(request *http.Request) (*http.Response, error) {
					if mayDelete || request.Method != http.MethodDelete {
						return next.RoundTrip(request)
					}
					end()
					return &http.Response{StatusCode: http.StatusForbidden, Request: request,
						Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(
							`{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403}`))}, nil
				})
			})
			params := newParams(mldevenv.Bundle)
			params.pipeline.Namespace = "ns"
			request := launch.Request{Pipeline: params.pipeline, Name: "mine",
				Values: map[string][]string{"repo-url": {"https://example.com/r"}, "script": {"train.py"}}}
			first, err := launch.Start(t.Context(), clients, request)
			if err != nil {
				t.Fatal(err)
			}
			server.Changed = func(changed string, object apitest.Object) {
				if changed != path || object == nil || object["status"].(apitest.Object)["conditions"] != nil {
					return
				}
				if uid := object["metadata"].(apitest.Object)["uid"]; uid != string(first.UID) {
					end()
				}
			}
			task := &v1.TaskRun{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "mine-preflight",
				Labels:          map[string]string{"tekton.dev/pipelineRun": "mine", "tekton.dev/pipelineTask": "preflight"},
				OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(first, v1.SchemeGroupVersion.WithKind("PipelineRun"))}}}
			task.Status.StartTime = new(metav1.Now())
			task.Status.PodName = pod.Name
			task.Status.SetCondition(&apis.Condition{Type: apis.ConditionSucceeded, Status: corev1.ConditionUnknown, Reason: "PullImageFailed",
				Message: `build step "step-s" is pending with reason "401 Unauthorized"`})
			server.Add(task)

			var out bytes.Buffer
			f := runFollower{clients: clients, run: first, request: &request, display: newDisplay(&out, 1)}
			outcome, over, err := f.follow(t.Context())
			if err != nil || !over {
				t.Fatalf("%t, %v; want the end of the run\n%s", over, err, out.String())
			}
			want := map[bool]string{true: "Starting run mine once more: ", false: "It cannot be started once more: "}[mayDelete]
			if outcome.Run.Name != "mine" || (outcome.Run.UID == first.UID) == mayDelete || !strings.Contains(out.String(), want) {
				t.Errorf("run %s of UID %s after %s; want %q in\n%s", outcome.Run.Name, outcome.Run.UID, first.UID, want, out.String())
			}
		})
	}
}
