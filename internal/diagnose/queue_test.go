// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"

	"github.com/ml-dev-env/ml-dev-env/internal/kube/kueue"
	"github.com/ml-dev-env/ml-dev-env/test/kueuetest"
)

// inQueue returns an environment that waits in queue team-a of a version of Kueue. grouped is false just after the pods were
// created.
func inQueue(version kueuetest.Version, grouped bool) Snapshot {
	s := snapshotOf(1)
	s.StatefulSet.Labels = map[string]string{kueue.QueueLabel: "team-a"}
	version.Admit(s.StatefulSet)
	s.pod(0, func(p *corev1.Pod) {
		version.Hold(p, s.StatefulSet, grouped)
		p.Status.Conditions = []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonSchedulingGated, LastTransitionTime: ago(time.Minute),
		}}
	})
	return s
}

const noQuota = "couldn't assign flavors to pod set main: insufficient unused quota for nvidia.com/gpu in flavor h100, 2 more needed"

// workloadEvent returns an event as Kueue creates it: by the old API until version 0.17, by the new API since 0.18.
func workloadEvent(name, reason string, isNew bool) corev1.Event {
	ev := corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: name + ".1", Namespace: space},
		InvolvedObject: corev1.ObjectReference{Kind: "Workload", Name: name, Namespace: space},
		Type:           corev1.EventTypeWarning, Reason: reason, Message: noQuota,
	}
	if isNew {
		ev.EventTime, ev.Action = metav1.NewMicroTime(ago(time.Minute).Time), reason
	} else {
		ev.FirstTimestamp, ev.LastTimestamp = ago(time.Minute), ago(time.Second)
	}
	return ev
}

func TestQueueOfEveryVersion(t *testing.T) {
	for _, version := range kueuetest.Versions {
		for _, reason := range []string{"Pending", "WaitingForQuota"} {
			t.Run(version.Name+"/"+reason, func(t *testing.T) {
				s := inQueue(version, true)
				client := fake.NewClientset(s.StatefulSet, &s.Pods[0])
				workload := kueuetest.Workload(s.StatefulSet)
				for _, name := range []string{workload, "another"} {
					ev := workloadEvent(name, reason, version.Name == "v0.19.2")
					later := ev
					later.Name, later.Type, later.Reason = name+".2", corev1.EventTypeNormal, "OwnerReferencesAdded"
					for _, ev := range []corev1.Event{ev, later} {
						if _, err := client.CoreV1().Events(space).Create(t.Context(), &ev, metav1.CreateOptions{}); err != nil {
							t.Fatal(err)
						}
					}
				}
				s, err := Collect(t.Context(), client, space, env)
				if err != nil {
					t.Fatal(err)
				}
				s.QueuePosition = queuePosition(t.Context(), visibility(t, version, workload), &s.Pods[0])
				why := ": it is number 3 in its ClusterQueue: " + noQuota
				if diff := cmp.Diff([]string{"ml-dev-env-0: waiting for its queue since 1m" + why}, Progress(s, now)); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				found := Explain(s, now)
				if want := "LocalQueue team-a has not admitted it" + why; len(found) != 1 || found[0].Seen != want {
					t.Errorf("got %v, want %q", found, want)
				}
			})
		}
		s := inQueue(version, false)
		if found := Explain(s, now); len(found) != 1 || found[0].Seen != "LocalQueue team-a has not admitted it" {
			t.Errorf("%s: got %v of a pod that Kueue has just seen", version.Name, found)
		}
		s.Pods[0].Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/licence"}}
		if found := Explain(s, now); len(found) != 1 || found[0].Seen != "its queue has not admitted it: scheduling gate example.com/licence" {
			t.Errorf("%s: got %v of a pod with another project's gate", version.Name, found)
		}
	}
}

// TestConditionsOfWorkload: without an event, because events exist for an hour. The conditions are as kueue pkg/workload sets them.
func TestConditionsOfWorkload(t *testing.T) {
	version := kueuetest.Versions[len(kueuetest.Versions)-1]
	condition := func(kind string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message, LastTransitionTime: ago(time.Second)}
	}
	waits := condition("QuotaReserved", metav1.ConditionFalse, "Pending", noQuota)
	preempted := condition("Evicted", metav1.ConditionTrue, "Preempted", "Preempted to accommodate a workload (UID: 5c02)")
	before := condition("Evicted", metav1.ConditionFalse, "QuotaReserved", "Previously: Preempted")
	deactivated := condition("Evicted", metav1.ConditionTrue, "Deactivated", "The workload is deactivated")
	reserved := condition("QuotaReserved", metav1.ConditionTrue, "QuotaReserved", "")
	for _, tc := range []struct {
		name       string
		conditions []metav1.Condition
		seen       string
		final      bool
	}{
		{"it waits", []metav1.Condition{waits}, ": " + noQuota, false},
		{"it was preempted and waits", []metav1.Condition{waits, preempted}, "; Kueue has evicted it and queued it again: " +
			preempted.Message, false},
		{"an eviction that is over", []metav1.Condition{before, waits}, ": " + noQuota, false},
		{"it is deactivated", []metav1.Condition{deactivated, waits}, "; its Workload is deactivated, and Kueue does not queue it again: " +
			deactivated.Message, true},
		{"it has quota", []metav1.Condition{reserved}, "", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := inQueue(version, true)
			workload := kueuetest.Workload(s.StatefulSet)
			s.Events = []corev1.Event{workloadEvent(workload, "Pending", true)}
			s.Events[0].Message = "what an event says is older"
			client := served(t, version, map[string]any{
				"namespaces/" + space + "/workloads/" + workload: map[string]any{"status": map[string]any{"conditions": tc.conditions}},
			})
			s.Workload = workloadConditions(t.Context(), client, &s.Pods[0])
			found := Explain(s, now)
			if want := "LocalQueue team-a has not admitted it" + tc.seen; len(found) != 1 || found[0].Seen != want || found[0].Final != tc.final {
				t.Errorf("got %+v, want %q, final %v", found, want, tc.final)
			}
		})
	}
}

// TestQueueAssignsOneHostTwice: Kueue filled one host of a topology with both pods.
func TestQueueAssignsOneHostTwice(t *testing.T) {
	s := snapshotOf(2)
	for node := range 2 {
		s.pod(node, func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "gpu-a"} })
	}
	s.Pods[0].Spec.NodeName, s.Pods[0].Status.Phase = "gpu-a", corev1.PodRunning
	s.Pods[1].Status.Conditions = []corev1.PodCondition{{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, LastTransitionTime: ago(time.Minute),
		Message: "0/2 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, 1 node(s) didn't match pod anti-affinity rules.",
	}}
	found := Explain(s, now)
	want := "its queue assigned Kubernetes node gpu-a both to it and to pod ml-dev-env-0, but each needs one of its own: Kueue ignores the " +
		"anti-affinity of pods"
	if len(found) != 1 || found[0].Seen != want || !found[0].Final {
		t.Errorf("got %+v, want %q, which is final", found, want)
	}
	s.Pods[1].Spec.NodeSelector[corev1.LabelHostname] = "gpu-b"
	if found := Explain(s, now); len(found) != 1 || found[0].Seen == want {
		t.Errorf("got %+v of pods with hosts of their own", found)
	}
}

// TestQueueOpenedTheGates: the condition of a gated pod outlives its gates for a moment.
func TestQueueOpenedTheGates(t *testing.T) {
	s := inQueue(kueuetest.Versions[0], true)
	s.Pods[0].Spec.SchedulingGates = nil
	if found := Explain(s, now); len(found) != 0 {
		t.Errorf("got %v of a pod that its queue has just admitted", found)
	}
}

// visibility serves the positions in team-a, in which the Workload is third.
func visibility(t *testing.T, version kueuetest.Version, workload string) kubernetes.Interface {
	item := func(name string, position int) map[string]any {
		return map[string]any{"metadata": map[string]any{"name": name, "namespace": space}, "positionInClusterQueue": position}
	}
	return served(t, version, map[string]any{
		"namespaces/" + space + "/localqueues/team-a/pendingworkloads": map[string]any{"items": []any{item("another", 0), item(workload, 2)}},
	})
}

// served returns a client of a server of these objects, in the version's API.
func served(t *testing.T, version kueuetest.Version, objects map[string]any) kubernetes.Interface {
	t.Helper()
	server := httptest.NewServer(version.Handler(objects))
	t.Cleanup(server.Close)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	return client
}
