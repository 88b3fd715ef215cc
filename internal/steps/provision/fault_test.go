// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
	"github.com/ml-dev-env/ml-dev-env/test/apitest"
)

// controllers stand in for the StatefulSet controller and the kubelet of one node: as soon as provision has applied a StatefulSet its
// pod exists, with a real agent in it. Claims are bound at once.
type controllers struct {
	t      *testing.T
	server *apitest.Server
	// invalid is true for pods that never start, because of their image.
	invalid bool

	// once guards the creation of the pods.
	once sync.Once
}

func newControllers(t *testing.T, invalid bool) *controllers {
	own := &v1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "train-1", UID: "uid-1"}}
	own.Spec.Timeouts = day()
	own.Status.StartTime = new(metav1.Now())
	c := &controllers{t: t, invalid: invalid, server: apitest.Start(t, own)}
	c.server.Admit = func(path string, object apitest.Object) {
		if strings.Contains(path, "/persistentvolumeclaims/") {
			object["status"] = apitest.Object{"phase": string(corev1.ClaimBound)}
		}
	}
	c.server.Changed = func(path string, object apitest.Object) {
		if strings.HasSuffix(path, "/statefulsets/env") && object != nil {
			c.once.Do(func() { c.roll(object["metadata"].(apitest.Object)["uid"].(string)) })
		}
	}
	return c
}

// roll creates the pod of the StatefulSet with this UID.
func (c *controllers) roll(uid string) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "env-0", Labels: objects.Labels("env")}}
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "env", UID: types.UID(uid)}}
	pod.Spec = corev1.PodSpec{
		NodeName: "node-0", ServiceAccountName: "ml-dev-sa",
		Containers: []corev1.Container{{Name: objects.TrainContainer, Image: "127.0.0.1:1/train:1"}},
	}
	container := corev1.ContainerStatus{Name: objects.TrainContainer}
	container.State.Waiting = &corev1.ContainerStateWaiting{Reason: "InvalidImageName"}
	pod.Status.Phase = corev1.PodPending
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}}
	if !c.invalid {
		container.ImageID = "registry.test/train@sha256:" + strings.Repeat("1", 64)
		container.State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
		pod.Status.Phase, pod.Status.PodIP = corev1.PodRunning, agenttest.StartFor(c.t, c.server, "env").Config.PodIP
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue})
	}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{container}
	c.server.Add(pod)
}

// Whichever request to the API server fails once, and however, the environment, the objects that are left and what the step notes are
// the same.
func TestEveryRequestMayFail(t *testing.T) {
	agenttest.FakeSMI(t)
	file, err := cluster.Load("test.yaml", []byte(strings.Replace(clusterFile, "mode: rwx", "mode: auto", 1)))
	if err != nil {
		t.Fatal(err)
	}
	for name, invalid := range map[string]bool{"succeeded": false, "failed": true} {
		t.Run(name, func(t *testing.T) {
			// This step takes longer than the others.
			apitest.SomeFaults(t, 1, func(t *testing.T, wrap func(http.RoundTripper) http.RoundTripper) string {
				c := newControllers(t, invalid)
				clients := c.server.Clients(wrap)
				clients.InCluster = true
				request := objects.Request{
					Cluster: file, Name: "env", Nodes: 1, GPUsPerNode: new(2), Image: "127.0.0.1:1/train:1", StepsImage: "127.0.0.1:1/steps:1",
				}
				result, err := Run(t.Context(), Deps{Clients: clients, Log: slog.New(slog.DiscardHandler)}, Options{
					Run: run.Flags{Name: "train-1", UID: "uid-1", Task: "provision"}, Request: request,
					Mode: "auto", StartTimeout: 10 * time.Minute, OnBusy: "fail", OnChange: "fail",
				})
				c.once.Do(func() {}) // no pod is created after the end
				memory, notRead := receipt.ReadJournal(t.Context(), c.server.Clients(nil).Kube, "ns", "train-1")
				text := fmt.Sprint(fail.ReasonOf(err), " ", err, notRead, " ", result)
				if part := memory.EntryOf("provision"); part != nil {
					text += fmt.Sprint(" ", part.Status, part.Reason, part.Mode, part.Storage, part.Image)
				}
				return text + "\n" + strings.Join(c.server.Paths(), " ")
			})
		})
	}
}
