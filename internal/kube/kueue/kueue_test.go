// SPDX-License-Identifier: Apache-2.0

package kueue

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/ml-dev-env/ml-dev-env/test/kueuetest"
)

func set(labels map[string]string) *appsv1.StatefulSet {
	return &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "ml-dev-env", Labels: labels},
		Spec:       appsv1.StatefulSetSpec{Replicas: new(int32(2))},
	}
}

// TestMarks requires that no version's marks are mistaken: on the template, on a pod that no controller has seen yet, and on
// one that belongs to its group.
func TestMarks(t *testing.T) {
	for _, version := range kueuetest.Versions {
		t.Run(version.Name, func(t *testing.T) {
			set := set(map[string]string{QueueLabel: "team-a", PriorityLabel: "urgent"})
			if Manages(set.Spec.Template) {
				t.Error("managed before Kueue has seen it")
			}
			version.Admit(set)
			if !Manages(set.Spec.Template) {
				t.Errorf("not managed: %v %v", set.Spec.Template.Labels, set.Spec.Template.Annotations)
			}
			for _, grouped := range []bool{false, true} {
				var pod corev1.Pod
				version.Hold(&pod, set, grouped)
				if !Manages(corev1.PodTemplateSpec{ObjectMeta: pod.ObjectMeta, Spec: pod.Spec}) {
					t.Errorf("pod in its group %t is not managed: %v %v", grouped, pod.Labels, pod.Annotations)
				}
				if got := WorkloadOf(&pod); grouped && (got != kueuetest.Workload(set) || pod.Labels[QueueLabel] != "team-a" ||
					pod.Labels[PriorityLabel] != "urgent") {
					t.Errorf("pod is of Workload %q with labels %v", got, pod.Labels)
				}
			}
			alone := set.DeepCopy()
			alone.Labels, alone.Spec.Template = nil, corev1.PodTemplateSpec{}
			version.Admit(alone)
			if Manages(alone.Spec.Template) {
				t.Errorf("managed without a queue: %v", alone.Spec.Template)
			}
		})
	}
	gated := corev1.PodTemplateSpec{Spec: corev1.PodSpec{SchedulingGates: []corev1.PodSchedulingGate{{Name: "example.com/licence"}}}}
	labelled := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"kueue.x-k8s.io/managed": "true"}}}
	if Manages(gated) || Manages(labelled) {
		t.Error("another project's gate, or the label alone, counts as Kueue's")
	}
}

func TestLevels(t *testing.T) {
	rack, block := []string{"rack", corev1.LabelHostname}, []string{"block", "rack", corev1.LabelHostname}
	for _, version := range kueuetest.Versions {
		if !version.Topology {
			continue
		}
		for _, test := range []struct {
			what       string
			topologies [][]string
			want       []string
			rack       string
		}{
			{"one flavour", [][]string{rack}, []string{"rack"}, "rack"},
			{"two flavours of one topology", [][]string{block, block}, []string{"block", "rack"}, "rack"},
			{"nodes only", [][]string{{corev1.LabelHostname}}, []string{}, ""},
			{"no topology", [][]string{nil}, nil, ""},
			{"a flavour without", [][]string{rack, nil}, nil, ""},
			{"a flavour without, first", [][]string{nil, rack}, nil, ""},
			{"two topologies", [][]string{rack, block}, nil, ""},
			{"no flavour", nil, nil, ""},
		} {
			t.Run(version.Name+"/"+test.what, func(t *testing.T) {
				client := clientOf(t, version.Handler(version.Queue(test.topologies...)))
				queue := Queue{Namespace: "ml", Name: "team-a"}
				if diff := cmp.Diff(test.want, queue.Levels(t.Context(), client)); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				if got := queue.RackLevel(t.Context(), client); got != test.rack {
					t.Errorf("got rack level %q, want %q", got, test.rack)
				}
			})
		}
		objects := version.Queue(rack)
		delete(objects, "topologies/flavour-0")
		delete(objects, "namespaces/ml/localqueues/team-a")
		client := clientOf(t, version.Handler(objects))
		for _, queue := range []Queue{{}, {Namespace: "ml", Name: "team-a"}} {
			if got := queue.Levels(t.Context(), client); got != nil {
				t.Errorf("%s: got levels %v of queue %q", version.Name, got, queue.Name)
			}
		}
	}
}

func clientOf(t *testing.T, handler http.Handler) kubernetes.Interface {
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	return client
}
