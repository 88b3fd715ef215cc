// SPDX-License-Identifier: Apache-2.0

// Package diagnose explains why the pods of an environment do not start, with a reason and the next command.
package diagnose

import (
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// Snapshot is the state of an environment at one moment. A nil field could not be read, so it is unknown.
type Snapshot struct {
	// StatefulSet is nil if it does not exist.
	StatefulSet *appsv1.StatefulSet
	Pods        []corev1.Pod
	// Events about the StatefulSet, its pods, its claims and its Workload of Kueue.
	Events []corev1.Event
	// Claims of the environment, and those in the namespaces of in-cluster storage servers that its classes name.
	Claims []corev1.PersistentVolumeClaim
	Nodes  []corev1.Node
	// OtherPods have GPUs and are not the environment's.
	OtherPods []corev1.Pod
	// AllPods reports whether OtherPods has the pods of every namespace, so that the free resources are known.
	AllPods bool
	Classes []storagev1.StorageClass
	// QueuePosition is the environment's place among all that wait for its ClusterQueue, from 1; 0 if it is unknown or the
	// environment waits for no queue.
	QueuePosition int
	// Workload has the conditions of the Workload to which Kueue counts pods that it holds, nil if they are unknown.
	Workload []metav1.Condition
	Quotas   []corev1.ResourceQuota
	// Account is the service account of the pods. It is read only if a pod cannot pull.
	Account *corev1.ServiceAccount
	// awaitsSecrets reports whether OpenShift gives the namespace's accounts pull secrets and Account has none yet.
	awaitsSecrets bool
}

// Replicas returns the wanted number of pods.
func (s Snapshot) Replicas() int {
	if s.StatefulSet == nil {
		return len(s.Pods)
	}
	return objects.NodesOf(s.StatefulSet)
}

// Explain finds what keeps pods from starting. Final findings come first; otherwise causes come before their
// consequences. Normal waiting, such as a long pull, is not a finding. Pods with the same cause share a finding.
func Explain(s Snapshot, now time.Time) []fail.Finding {
	e := &explainer{Snapshot: s, now: now}
	e.creation()
	for i := range e.Pods {
		e.pod(&e.Pods[i])
	}
	e.rejections()
	// An unbound claim is a cause of the scheduler's refusal, so it comes first.
	e.scheduling(e.claims())
	found := merge(e.findings)
	first := map[bool]int{true: -1}
	slices.SortStableFunc(found, func(a, b fail.Finding) int { return first[a.Final] - first[b.Final] })
	if note := e.waitingPods(); note != "" {
		for i := range found {
			found[i].Seen += note
		}
	}
	return found
}

func (e *explainer) pod(pod *corev1.Pod) {
	if kube.IsReady(pod) || pod.Spec.NodeName == "" {
		return
	}
	e.podEnd(pod)
	e.nodeProblem(pod)
	if !hasFinished(pod) && !e.containers(pod) {
		events := e.preparing(pod)
		e.sandbox(pod, events)
		e.mounts(pod, events)
		e.unanswered(pod)
	}
}

// waitingPods names the ready pods, which wait for the others because all nodes of an environment start together.
func (e *explainer) waitingPods() string {
	var names []string
	for i := range e.Pods {
		if kube.IsReady(&e.Pods[i]) {
			names = append(names, e.Pods[i].Name)
		}
	}
	switch len(names) {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf("; %s is ready and waits", names[0])
	}
	return fmt.Sprintf("; %s are ready and wait", firstNames(names, 3))
}

// merge joins findings that differ only in their object, and keeps the first one's next command.
func merge(found []fail.Finding) []fail.Finding {
	var merged []fail.Finding
	var names [][]string // of the objects of each
	for _, f := range found {
		kind, name, _ := strings.Cut(f.Object, " ")
		same := slices.IndexFunc(merged, func(m fail.Finding) bool {
			return m.Reason == f.Reason && m.Seen == f.Seen && strings.HasPrefix(m.Object, kind+" ")
		})
		if same < 0 {
			merged, names = append(merged, f), append(names, []string{name})
			continue
		}
		m := &merged[same]
		m.Final = m.Final || f.Final
		if m.Since.IsZero() || !f.Since.IsZero() && f.Since.Before(m.Since) {
			m.Since = f.Since
		}
		if !slices.Contains(names[same], name) {
			names[same] = append(names[same], name)
		}
	}
	for i, several := range names {
		if len(several) > 1 {
			kind, _, _ := strings.Cut(merged[i].Object, " ")
			merged[i].Object = kind + "s " + humanize.List(several, "and")
		}
	}
	return merged
}
