// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// busyCluster has an environment, another environment with GPUs, an NFS server without its claim, and unrelated objects.
func busyCluster() *fake.Clientset {
	s := withPods(2).node("node-1", "4").holds("bob", "h-kim-0", "node-1", "4", nil).
		claim(space, "ml-dev-workspace", "nfs-csi").claim(space, "another", "nfs-csi").serverClaim().
		says("ml-dev-workspace", "ProvisioningFailed", "no").says("another", "ProvisioningFailed", "no")
	known := []runtime.Object{
		s.StatefulSet, &s.Classes[0], &s.Nodes[0], &s.OtherPods[0], &s.Pods[1], &s.Pods[0],
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "tool", Namespace: space, Labels: map[string]string{objects.EnvironmentLabel: env}}},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "without-gpus", Namespace: "bob"}},
		&corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "gpus", Namespace: space}},
	}
	for i := range s.Claims {
		known = append(known, &s.Claims[i])
	}
	for i := range s.Events {
		s.Events[i].Name, s.Events[i].Namespace = s.Events[i].InvolvedObject.Name, space
		known = append(known, &s.Events[i])
	}
	return fake.NewClientset(known...)
}

// forbid refuses to list the resources in namespaces other than the environment's.
func forbid(client *fake.Clientset, resources ...string) {
	client.PrependReactor("list", "*", func(action k8stesting.Action) (bool, runtime.Object, error) {
		resource := action.GetResource()
		if action.GetNamespace() == space || !slices.Contains(resources, resource.Resource) {
			return false, nil, nil
		}
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: resource.Resource}, "", nil)
	})
}

func namesOf[T any](items []T, name func(*T) string) string {
	var names []string
	for i := range items {
		names = append(names, name(&items[i]))
	}
	return strings.Join(names, " ")
}

// have returns the names of the objects in a snapshot, by kind.
func have(s Snapshot) map[string]string {
	pod := func(p *corev1.Pod) string { return p.Namespace + "/" + p.Name }
	got := map[string]string{
		"pods":   namesOf(s.Pods, pod),
		"others": namesOf(s.OtherPods, pod),
		"nodes":  namesOf(s.Nodes, func(n *corev1.Node) string { return n.Name }),
		"claims": namesOf(s.Claims, func(c *corev1.PersistentVolumeClaim) string { return c.Namespace + "/" + c.Name }),
		"events": namesOf(s.Events, func(e *corev1.Event) string { return e.InvolvedObject.Name }),
		"quotas": namesOf(s.Quotas, func(q *corev1.ResourceQuota) string { return q.Name }),
	}
	if s.AllPods {
		got["all"] = "pods are known"
	}
	if s.Classes != nil {
		got["classes"] = "are known"
	}
	return got
}

func TestCollect(t *testing.T) {
	tests := []struct {
		name      string
		forbidden []string
		want      map[string]string
	}{
		{
			name: "everything may be read",
			want: map[string]string{
				"pods": "nccl-test/ml-dev-env-0 nccl-test/ml-dev-env-1", "others": "bob/h-kim-0", "nodes": "node-1",
				"claims": "nccl-test/ml-dev-workspace nfs/nfs-server-root", "events": "ml-dev-workspace", "quotas": "gpus",
				"all": "pods are known", "classes": "are known",
			},
		},
		{
			name:      "only the namespace may be read",
			forbidden: []string{"nodes", "pods", "storageclasses", "persistentvolumeclaims"},
			want: map[string]string{
				"pods": "nccl-test/ml-dev-env-0 nccl-test/ml-dev-env-1", "others": "", "nodes": "",
				"claims": "nccl-test/ml-dev-workspace", "events": "ml-dev-workspace", "quotas": "gpus",
			},
		},
		{
			name:      "the server's claims may not be read",
			forbidden: []string{"persistentvolumeclaims"},
			want: map[string]string{
				"pods": "nccl-test/ml-dev-env-0 nccl-test/ml-dev-env-1", "others": "bob/h-kim-0", "nodes": "node-1",
				"claims": "nccl-test/ml-dev-workspace", "events": "ml-dev-workspace", "quotas": "gpus",
				"all": "pods are known", "classes": "are known",
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			client := busyCluster()
			forbid(client, tt.forbidden...)
			s, err := Collect(context.Background(), client, space, env)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, have(s)); diff != "" {
				t.Errorf("snapshot (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCollectOfNothing(t *testing.T) {
	s, err := Collect(context.Background(), fake.NewClientset(), space, env)
	if err != nil || s.StatefulSet != nil || len(Explain(s, now)) != 0 {
		t.Errorf("got %+v, %v, want an empty snapshot that explains nothing", s, err)
	}
}

func TestCollectMustReadPods(t *testing.T) {
	client := busyCluster()
	client.PrependReactor("list", "pods", func(k8stesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", nil)
	})
	_, err := Collect(context.Background(), client, space, env)
	if got := fail.ReasonOf(err); got != fail.PermissionDenied {
		t.Errorf("reason: got %s (%v), want %s", got, err, fail.PermissionDenied)
	}
}

// A claim from a template has the pod's name, and belongs to the environment too.
func TestClaimNamesOfTemplates(t *testing.T) {
	s := snapshotOf(2)
	s.StatefulSet.Spec.Template.Spec.Volumes = nil
	s.StatefulSet.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "ml-dev-workspace"}}}
	want := []string{"ml-dev-workspace-ml-dev-env-0", "ml-dev-workspace-ml-dev-env-1"}
	if diff := cmp.Diff(want, (&explainer{Snapshot: s}).claimNames()); diff != "" {
		t.Errorf("claims (-want +got):\n%s", diff)
	}
}
