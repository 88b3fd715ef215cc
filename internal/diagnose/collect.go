package diagnose

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// pageSize bounds one answer of a list that may be long.
const pageSize = 500

// Collect reads what may be read of environment name. Only the StatefulSet and
// the pods must be readable; whatever else is forbidden is unknown in the
// snapshot. The lists are read at once and so may be of slightly different times.
func Collect(ctx context.Context, client kubernetes.Interface, namespace, name string) (Snapshot, error) {
	var s Snapshot
	var pods, everywhere, here []corev1.Pod
	var claims []corev1.PersistentVolumeClaim
	var events []corev1.Event
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		set, err := client.AppsV1().StatefulSets(namespace).Get(ctx, name, metav1.GetOptions{})
		switch {
		case err == nil:
			s.StatefulSet = set
		case !apierrors.IsNotFound(err):
			return kube.Problem(fmt.Errorf("reading statefulset %s/%s: %w", namespace, name, err))
		}
		return nil
	})
	group.Go(func() error {
		list, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: environmentLabel + "=" + name})
		if err != nil {
			return kube.Problem(fmt.Errorf("listing pods of environment %s/%s: %w", namespace, name, err))
		}
		pods = list.Items
		return nil
	})
	group.Go(readable("events", func(o metav1.ListOptions) (string, error) {
		list, err := client.CoreV1().Events(namespace).List(ctx, o)
		if err != nil {
			return "", err
		}
		events = append(events, list.Items...)
		return list.Continue, nil
	}))
	group.Go(readable("claims", func(o metav1.ListOptions) (string, error) {
		list, err := client.CoreV1().PersistentVolumeClaims(namespace).List(ctx, o)
		if err != nil {
			return "", err
		}
		claims = append(claims, list.Items...)
		return list.Continue, nil
	}))
	group.Go(readable("quotas", func(o metav1.ListOptions) (string, error) {
		list, err := client.CoreV1().ResourceQuotas(namespace).List(ctx, o)
		if err != nil {
			return "", err
		}
		s.Quotas = append(s.Quotas, list.Items...)
		return list.Continue, nil
	}))
	group.Go(readable("nodes", func(o metav1.ListOptions) (string, error) {
		list, err := client.CoreV1().Nodes().List(ctx, o)
		if err != nil {
			return "", err
		}
		s.Nodes = append(s.Nodes, list.Items...)
		return list.Continue, nil
	}))
	group.Go(readable("storage classes", func(o metav1.ListOptions) (string, error) {
		list, err := client.StorageV1().StorageClasses().List(ctx, o)
		if err != nil {
			return "", err
		}
		// Not nil: that there is no class is known now.
		s.Classes = append(slices.Grow(s.Classes, 1), list.Items...)
		return list.Continue, nil
	}))
	group.Go(func() error {
		err := pages(podPage(ctx, client, metav1.NamespaceAll, &everywhere))
		if err == nil {
			s.AllPods = true
			return nil
		}
		if !apierrors.IsForbidden(err) {
			return kube.Problem(fmt.Errorf("listing pods: %w", err))
		}
		return readable("pods", podPage(ctx, client, namespace, &here))()
	})
	if err := group.Wait(); err != nil {
		return Snapshot{}, err
	}

	s.Pods = ordinals(pods, name)
	for _, pod := range slices.Concat(everywhere, here) {
		if pod.Namespace == namespace && pod.Labels[environmentLabel] == name || len(gpusAsked(&pod.Spec)) == 0 {
			continue
		}
		s.OtherPods = append(s.OtherPods, pod)
	}
	e := newExplainer(s, time.Time{})
	used := e.claimNames()
	s.Claims = slices.DeleteFunc(claims, func(c corev1.PersistentVolumeClaim) bool { return !slices.Contains(used, c.Name) })
	about := slices.Concat(e.podNames(), used, []string{name})
	s.Events = slices.DeleteFunc(events, func(ev corev1.Event) bool { return !slices.Contains(about, ev.InvolvedObject.Name) })
	servers, err := serverClaims(ctx, client, s.Claims, s.Classes)
	s.Claims = append(s.Claims, servers...)
	return s, err
}

// readable reads all pages of a list of things that may be forbidden.
func readable(what string, page func(metav1.ListOptions) (next string, err error)) func() error {
	return func() error {
		if err := pages(page); err != nil && !apierrors.IsForbidden(err) {
			return kube.Problem(fmt.Errorf("listing %s: %w", what, err))
		}
		return nil
	}
}

func pages(page func(metav1.ListOptions) (next string, err error)) error {
	options := metav1.ListOptions{Limit: pageSize}
	for {
		next, err := page(options)
		if err != nil || next == "" {
			return err
		}
		options.Continue = next
	}
}

// podPage reads pods that hold, or may come to hold, something of a node.
func podPage(ctx context.Context, client kubernetes.Interface, namespace string, pods *[]corev1.Pod) func(metav1.ListOptions) (string, error) {
	return func(o metav1.ListOptions) (string, error) {
		o.FieldSelector = "status.phase!=Succeeded,status.phase!=Failed"
		list, err := client.CoreV1().Pods(namespace).List(ctx, o)
		if err != nil {
			return "", err
		}
		*pods = append(*pods, list.Items...)
		return list.Continue, nil
	}
}

// ordinals are the StatefulSet's pods among those with its label, in order.
func ordinals(pods []corev1.Pod, name string) []corev1.Pod {
	number := func(p corev1.Pod) int {
		digits, ok := strings.CutPrefix(p.Name, name+"-")
		n, err := strconv.Atoi(digits)
		if !ok || err != nil || n < 0 {
			return -1
		}
		return n
	}
	pods = slices.DeleteFunc(pods, func(p corev1.Pod) bool { return number(p) < 0 })
	slices.SortFunc(pods, func(a, b corev1.Pod) int { return number(a) - number(b) })
	return pods
}

// claimNames are the claims of all pods: shared ones and those made for each.
func (e *explainer) claimNames() []string {
	var names []string
	if spec := e.template(); spec != nil {
		names = claimsOf(spec)
	}
	if e.StatefulSet == nil {
		return names
	}
	for _, template := range e.StatefulSet.Spec.VolumeClaimTemplates {
		for _, pod := range e.podNames() {
			names = append(names, template.Name+"-"+pod)
		}
	}
	return names
}

// serverClaims are the claims beside the in-cluster servers of classes that
// claims wait for. Namespaces that may not be read are left out.
func serverClaims(ctx context.Context, client kubernetes.Interface, claims []corev1.PersistentVolumeClaim, classes []storagev1.StorageClass) ([]corev1.PersistentVolumeClaim, error) {
	var found []corev1.PersistentVolumeClaim
	var done []string
	for _, claim := range claims {
		if claim.Status.Phase == corev1.ClaimBound || claim.Spec.StorageClassName == nil {
			continue
		}
		i := slices.IndexFunc(classes, func(c storagev1.StorageClass) bool { return c.Name == *claim.Spec.StorageClassName })
		if i < 0 {
			continue
		}
		namespace := serverNamespace(&classes[i])
		if namespace == "" || namespace == claim.Namespace || slices.Contains(done, namespace) {
			continue
		}
		done = append(done, namespace)
		err := readable("claims in "+namespace, func(o metav1.ListOptions) (string, error) {
			list, err := client.CoreV1().PersistentVolumeClaims(namespace).List(ctx, o)
			if err != nil {
				return "", err
			}
			found = append(found, list.Items...)
			return list.Continue, nil
		})()
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}
