// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"context"
	"fmt"
	"regexp"
	"slices"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/pager"

	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/kube/kueue"
)

// activePods selects pods that hold, or may come to hold, something of a node.
const activePods = "status.phase!=Succeeded,status.phase!=Failed"

// Collect reads the environment name. Only the StatefulSet and the pods must be readable; everything else that is
// forbidden is unknown in the snapshot. The lists are read in parallel, so their times may differ slightly.
func Collect(ctx context.Context, client kubernetes.Interface, namespace, name string) (Snapshot, error) {
	var s Snapshot
	var pods, others []corev1.Pod
	var claims []corev1.PersistentVolumeClaim
	var events []corev1.Event
	core := client.CoreV1()
	group, reading := errgroup.WithContext(ctx)
	group.Go(func() error {
		set, err := client.AppsV1().StatefulSets(namespace).Get(reading, name, metav1.GetOptions{})
		switch {
		case err == nil:
			s.StatefulSet = set
		case !apierrors.IsNotFound(err):
			return kube.Problem(fmt.Errorf("reading statefulset %s/%s: %w", namespace, name, err))
		}
		return nil
	})
	group.Go(func() error {
		list, err := core.Pods(namespace).List(reading, metav1.ListOptions{LabelSelector: objects.EnvironmentLabel + "=" + name})
		if err != nil {
			return kube.Problem(fmt.Errorf("listing pods of environment %s/%s: %w", namespace, name, err))
		}
		pods = list.Items
		return nil
	})
	group.Go(func() error { return readAll(reading, "events", core.Events(namespace), "", &events) })
	group.Go(func() error { return readAll(reading, "claims", core.PersistentVolumeClaims(namespace), "", &claims) })
	group.Go(func() error { return readAll(reading, "quotas", core.ResourceQuotas(namespace), "", &s.Quotas) })
	group.Go(func() error { return readAll(reading, "nodes", core.Nodes(), "", &s.Nodes) })
	group.Go(func() error {
		return readAll(reading, "storage classes", client.StorageV1().StorageClasses(), "", &s.Classes)
	})
	group.Go(func() error {
		err := readAll(reading, "pods", core.Pods(metav1.NamespaceAll), activePods, &others)
		if s.AllPods = others != nil; err != nil || s.AllPods {
			return err
		}
		return readAll(reading, "pods", core.Pods(namespace), activePods, &others)
	})
	if err := group.Wait(); err != nil {
		return Snapshot{}, err
	}

	if len(s.Nodes) == 0 {
		s.Nodes = nil // unknown: an API server without nodes runs no pods
	}
	s.Pods = ordinals(pods, name)
	s.OtherPods = slices.DeleteFunc(others, func(pod corev1.Pod) bool {
		return pod.Namespace == namespace && pod.Labels[objects.EnvironmentLabel] == name || len(gpusAsked(&pod.Spec)) == 0
	})
	e := &explainer{Snapshot: s}
	used := e.claimNames()
	s.Claims = slices.DeleteFunc(claims, func(c corev1.PersistentVolumeClaim) bool { return !slices.Contains(used, c.Name) })
	about := slices.Concat(e.podNames(), used, []string{name})
	if i := slices.IndexFunc(s.Pods, func(pod corev1.Pod) bool { return kueue.WorkloadOf(&pod) != "" }); i >= 0 {
		about = append(about, kueue.WorkloadOf(&s.Pods[i]))
		if len(s.Pods[i].Spec.SchedulingGates) > 0 {
			s.QueuePosition, s.Workload = queuePosition(ctx, client, &s.Pods[i]), workloadConditions(ctx, client, &s.Pods[i])
		}
	}
	s.Events = slices.DeleteFunc(events, func(ev corev1.Event) bool { return !slices.Contains(about, ev.InvolvedObject.Name) })
	if err := s.readAccount(ctx, client); err != nil {
		return Snapshot{}, err
	}
	servers, err := serverClaims(ctx, client, s.Claims, s.Classes)
	s.Claims = append(s.Claims, servers...)
	return s, err
}

// queuePosition asks Kueue for the position of a pod's Workload in its ClusterQueue, from 1; 0 if Kueue does not report it.
func queuePosition(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod) int {
	var summary struct {
		Items []struct {
			Metadata struct{ Name string }
			Position int `json:"positionInClusterQueue"`
		}
	}
	queue := []string{"namespaces", pod.Namespace, "localqueues", pod.Labels[kueue.QueueLabel]}
	if !kueue.GetNewest(ctx, client, &summary, kueue.Visibility, append(queue, "pendingworkloads")...) {
		return 0
	}
	for _, workload := range summary.Items {
		if workload.Metadata.Name == kueue.WorkloadOf(pod) {
			return workload.Position + 1
		}
	}
	return 0
}

// workloadConditions asks for the conditions of a pod's Workload.
func workloadConditions(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod) []metav1.Condition {
	var workload struct {
		Status struct{ Conditions []metav1.Condition }
	}
	kueue.GetNewest(ctx, client, &workload, kueue.Group, "namespaces", pod.Namespace, "workloads", kueue.WorkloadOf(pod))
	return workload.Status.Conditions
}

// lister lists objects of one kind, as typed clients do.
type lister[L runtime.Object] interface {
	List(ctx context.Context, options metav1.ListOptions) (L, error)
}

// readAll reads all pages of a list. Afterwards all is nil if the list is forbidden, and never nil otherwise.
func readAll[T any, L runtime.Object](ctx context.Context, what string, source lister[L], fields string, all *[]T) error {
	found := []T{}
	pages := pager.New(pager.SimplePageFunc(func(options metav1.ListOptions) (runtime.Object, error) { return source.List(ctx, options) }))
	err := pages.EachListItem(ctx, metav1.ListOptions{FieldSelector: fields}, func(object runtime.Object) error {
		found = append(found, *any(object).(*T))
		return nil
	})
	switch {
	case apierrors.IsForbidden(err):
		return nil
	case err != nil:
		return kube.Problem(fmt.Errorf("listing %s: %w", what, err))
	}
	*all = found
	return nil
}

// ordinals selects the StatefulSet's pods among those with its label, in order.
func ordinals(pods []corev1.Pod, name string) []corev1.Pod {
	own := regexp.MustCompile("^" + regexp.QuoteMeta(name) + "-[0-9]+$")
	pods = slices.DeleteFunc(pods, func(p corev1.Pod) bool { return !own.MatchString(p.Name) })
	slices.SortFunc(pods, func(a, b corev1.Pod) int { return humanize.Natural(a.Name, b.Name) })
	return pods
}

// claimNames returns the names of the claims of all pods: the shared claims, and each pod's own.
func (e *explainer) claimNames() []string {
	names := claimsOf(e.template())
	if e.StatefulSet != nil {
		for _, template := range e.StatefulSet.Spec.VolumeClaimTemplates {
			for _, pod := range e.podNames() {
				names = append(names, template.Name+"-"+pod)
			}
		}
	}
	return names
}

// serverClaims returns the claims in the namespaces of the in-cluster servers of classes that claims wait for.
// Namespaces that may not be read are left out.
func serverClaims(ctx context.Context, client kubernetes.Interface, claims []corev1.PersistentVolumeClaim,
	classes []storagev1.StorageClass) ([]corev1.PersistentVolumeClaim, error) {
	var found []corev1.PersistentVolumeClaim
	var done []string
	for _, claim := range claims {
		if claim.Status.Phase == corev1.ClaimBound || claim.Spec.StorageClassName == nil {
			continue
		}
		namespace := ServerNamespace(findNamed(classes, *claim.Spec.StorageClassName))
		if namespace == "" || namespace == claim.Namespace || slices.Contains(done, namespace) {
			continue
		}
		done = append(done, namespace)
		var some []corev1.PersistentVolumeClaim
		if err := readAll(ctx, "claims in "+namespace, client.CoreV1().PersistentVolumeClaims(namespace), "", &some); err != nil {
			return nil, err
		}
		found = append(found, some...)
	}
	return found, nil
}
