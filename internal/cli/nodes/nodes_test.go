// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

func gpuNode(name string, change ...func(*corev1.Node)) *corev1.Node {
	four := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("4")}
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Capacity: four, Allocatable: four,
		Conditions: []corev1.NodeCondition{{Type: "KernelDeadlock", Status: "False"}, {Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}
	for _, c := range change {
		c(n)
	}
	return n
}

// aCluster has a node in every state. forbidden is a resource that the user may not list, "" for none.
func aCluster(t *testing.T, forbidden string) *kube.Clients {
	t.Helper()
	client := fake.NewClientset(
		gpuNode("gpu-1"), gpuNode("gpu-2", func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "team", Effect: corev1.TaintEffectNoExecute}}
		}),
		gpuNode("gpu-10", func(n *corev1.Node) { n.Spec.Unschedulable = true }),
		gpuNode("gpu-3", func(n *corev1.Node) {
			n.Status.Conditions[1].Status, n.Status.Conditions[1].Message = "Unknown", "kubelet is silent"
		}),
		gpuNode("gpu-4", func(n *corev1.Node) {
			n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: "GpuMemWatch", Status: "True",
				Reason: "GpuMemWatchIsNotHealthy", Message: "ErrorCode:DCGM_FR_FAULTY_MEMORY GPU:3"})
		}),
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "cpu-1"}},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "p"},
			Spec: corev1.PodSpec{NodeName: "gpu-1", Containers: []corev1.Container{
				{Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("3")},
					Requests: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("3")}}}}}},
	)
	client.PrependReactor("list", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.GetResource().Resource == forbidden {
			return true, nil, apierrors.NewForbidden(a.GetResource().GroupResource(), "", errors.New("no"))
		}
		return false, nil, nil
	})
	return &kube.Clients{Kube: client, Namespace: "ns"}
}

// states returns the names of the rows in order, and the state, the free GPUs and all GPUs of each.
func states(t *testing.T, all list) (names []string, got map[string]string) {
	t.Helper()
	var out strings.Builder
	if err := all.print(&out); err != nil {
		t.Fatal(err)
	}
	got = map[string]string{}
	for line := range strings.Lines(out.String()) {
		fields := strings.Fields(line)
		names, got[fields[0]] = append(names, fields[0]), fmt.Sprint(fields[1], " ", fields[3], "/", fields[2])
	}
	return names, got
}

func TestList(t *testing.T) {
	all, warning, err := readNodes(t.Context(), aCluster(t, ""))
	if err != nil || warning != "" {
		t.Fatal(warning, err)
	}
	names, got := states(t, all)
	if want := []string{"NODE", "gpu-1", "gpu-2", "gpu-3", "gpu-4", "gpu-10"}; !slices.Equal(names, want) {
		t.Errorf("rows %q, want %q", names, want)
	}
	want := map[string]string{"NODE": "STATE FREE/GPUS", "gpu-1": "ready 1/4", "gpu-2": "ready 4/4", "gpu-3": "not-ready 4/4",
		"gpu-4": "unhealthy 4/4", "gpu-10": "cordoned 4/4"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	var out strings.Builder
	if err := all.print(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"NODE    STATE      GPUS  FREE  CONDITIONS          WHY\n",
		"unhealthy  4     4     Ready, GpuMemWatch  GpuMemWatch=True: ErrorCode:DCGM_FR_FAULTY_MEMORY GPU:3\n",
		"not-ready  4     4     not Ready           Ready=Unknown: kubelet is silent\n", "ready      4     4     Ready               -\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("want %q in\n%s", want, &out)
		}
	}
}

// A user who may not list the pods of all namespaces sees everything except which GPUs are free.
func TestListWithoutRights(t *testing.T) {
	all, warning, err := readNodes(t.Context(), aCluster(t, "pods"))
	if err != nil || !strings.HasPrefix(warning, "how many GPUs are free is unknown: listing the pods of all namespaces: ") {
		t.Fatalf("warning %q, %v; want why it is not known which GPUs are free", warning, err)
	}
	if _, got := states(t, all); got["gpu-1"] != "ready unknown/4" || all[0].Free != nil {
		t.Errorf("gpu-1: %q, %+v; want its GPUs without the free ones", got["gpu-1"], all[0])
	}
	if _, _, err := readNodes(t.Context(), aCluster(t, "nodes")); fail.ReasonOf(err) != fail.PermissionDenied {
		t.Errorf("without the right to list nodes: %v, want PermissionDenied", err)
	}
}
