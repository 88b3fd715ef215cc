// SPDX-License-Identifier: Apache-2.0

package env

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// Instance is what a node runs in for a while: a pod.
type Instance struct {
	// ID is the pod's UID.
	ID string
	// Host is the pod's Kubernetes node.
	Host string
}

// Instances returns what the first count nodes run in now. Errors: EnvironmentMissing.
func (e Environment) Instances(ctx context.Context, count int) ([]Instance, error) {
	found, err := e.Pods(ctx)
	if err != nil {
		return nil, fail.Because(fail.EnvironmentMissing, err)
	}
	instances := make([]Instance, count)
	for node := range instances {
		i := slices.IndexFunc(found, func(pod corev1.Pod) bool { return pod.Name == e.PodName(node) })
		if i < 0 {
			return nil, fail.Becausef(fail.EnvironmentMissing, "looking for pod %s/%s: not found", e.Namespace, e.PodName(node))
		}
		instances[node] = Instance{ID: string(found[i].UID), Host: found[i].Spec.NodeName}
	}
	return instances, nil
}

// PodLossReason returns why the pod of that UID will not come back to the node, "" if it may. Without an answer of the API server it may.
func (e Environment) PodLossReason(ctx context.Context, node int, id string) string {
	pod, err := e.Pod(ctx, node)
	switch {
	case apierrors.IsNotFound(err):
		return "its pod was deleted"
	case err != nil:
		return ""
	case string(pod.UID) != id:
		return "its pod was deleted and recreated"
	case pod.DeletionTimestamp != nil:
		return "its pod is being deleted" + whyEnded(pod)
	case kube.HasEnded(pod):
		return fmt.Sprintf("its pod has ended: %s %s", pod.Status.Reason, pod.Status.Message)
	}
	return ""
}

// whyEnded returns the cluster's reason for the end of a pod, behind a colon: Kubernetes' for an eviction or a preemption, Kueue's
// for its own.
func whyEnded(pod *corev1.Pod) string {
	const byKueue = "TerminationTarget"
	for _, c := range pod.Status.Conditions {
		if (c.Type == corev1.DisruptionTarget || c.Type == byKueue) && c.Status == corev1.ConditionTrue {
			return ": " + humanize.OneLine(cmp.Or(c.Message, c.Reason), 300)
		}
	}
	return ""
}

// End is how the earlier container of a node ended.
type End struct {
	// Reason is OutOfMemory, or ContainerRestarted for any other cause.
	Reason fail.Reason
	// How completes a sentence about the restart.
	How string
	// Look is the command that shows more.
	Look string
}

// LastContainerEnd returns how the earlier container of a node ended, as far as the kubelet reports it in time.
func (e Environment) LastContainerEnd(ctx context.Context, node int) End {
	end := End{fail.ContainerRestarted, "for an unknown cause", fmt.Sprintf("oc describe pod %s -n %s", e.PodName(node), e.Namespace)}
	if ended := e.termination(ctx, e.PodName(node)); ended != nil {
		end.How = fmt.Sprintf("after it had ended with %s (exit code %d)", ended.Reason, ended.ExitCode)
		if kube.ReasonFor(ended.Reason) == fail.OutOfMemory {
			end.Reason = fail.OutOfMemory
		}
	}
	return end
}

// kubeletTime is how much later than the agent of a new container the kubelet may report the end of the old one.
const kubeletTime = 30 * time.Second

// termination returns how the earlier container of a pod ended, nil if the kubelet does not report it in time.
func (e Environment) termination(ctx context.Context, pod string) (ended *corev1.ContainerStateTerminated) {
	ctx, cancel := context.WithTimeout(ctx, kubeletTime)
	defer cancel()
	named := metav1.ListOptions{FieldSelector: "metadata.name=" + pod}
	_ = kube.WatchUntil(ctx, "pod "+pod, e.clients.Kube.CoreV1().Pods(e.Namespace), named, func(pods []*corev1.Pod) (bool, error) {
		for _, pod := range pods {
			for _, container := range pod.Status.ContainerStatuses {
				ended = cmp.Or(container.LastTerminationState.Terminated, ended)
			}
		}
		return ended != nil, nil
	})
	return ended
}

// WaitAllReady waits until the environment has a ready pod for each of count nodes, and returns the address of node 0. Errors:
// EnvironmentMissing, PodsNotReady.
func (e Environment) WaitAllReady(ctx context.Context, count int, waits func(seen string)) (master string, err error) {
	seen := ""
	err = e.WatchPods(ctx, func(pods []*corev1.Pod) (bool, error) {
		leaving := ""
		for _, pod := range pods {
			if pod.DeletionTimestamp != nil {
				leaving += fmt.Sprintf(", %s on %s is being deleted", pod.Name, pod.Spec.NodeName)
			}
		}
		ready := slices.DeleteFunc(pods, func(p *corev1.Pod) bool { return !kube.IsReady(p) })
		seen = fmt.Sprintf("%d of %s ready", len(ready), humanize.Count(count, "pod")) + leaving
		if len(ready) == count {
			master = ready[0].Status.PodIP // they are sorted, and 0 is the first of all numbers
			return true, nil
		}
		waits(seen)
		if _, err := e.StatefulSet(ctx); apierrors.IsNotFound(err) {
			return false, fail.Becausef(fail.EnvironmentMissing, "environment %s was deleted", e)
		}
		return false, nil
	})
	if err == nil {
		return master, nil
	}
	reason := fail.ReasonOf(err)
	if reason == fail.Internal {
		reason = fail.PodsNotReady
	}
	return "", fail.Advise(fail.Becausef(reason, "%w: %s", err, seen), "oc get pods -n %s -l %s; oc get events -n %s --sort-by=.lastTimestamp",
		e.Namespace, e.Selector(), e.Namespace)
}

// LeaveOut excludes a Kubernetes node from the StatefulSet's template, and deletes the pod of the environment's node on it. count is
// the number of nodes.
//
// The pod of an unreachable Kubernetes node stays, and the StatefulSet does not replace it, until Kubernetes knows that the
// machine is out of service: its ranks may still write to the claims. So LeaveOut never forces the deletion.
func (e Environment) LeaveOut(ctx context.Context, node, count int, host string) error {
	pod, err := e.Pod(ctx, node)
	if err != nil {
		return err
	}
	set, err := e.StatefulSet(ctx)
	if err != nil {
		return err
	}
	spec := &set.Spec.Template.Spec
	if pod.Spec.NodeName != host {
		return fmt.Errorf("its pod has moved to %s", pod.Spec.NodeName)
	}
	if err := objects.MayExclude(set, host, count); err != nil {
		return err
	}
	objects.Exclude(spec, host)
	change := map[string]any{"affinity": spec.Affinity}
	// The image may not be on the other node, and OpenShift may have replaced a Secret since provision named it.
	account, err := e.clients.Kube.CoreV1().ServiceAccounts(e.Namespace).Get(ctx, spec.ServiceAccountName, metav1.GetOptions{})
	if err == nil && len(spec.ImagePullSecrets) > 0 {
		change["imagePullSecrets"] = kube.CurrentPullSecrets(spec.ImagePullSecrets, account)
	}
	// The UID is a precondition of a patch too.
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": set.UID}, "spec": map[string]any{"template": map[string]any{"spec": change}},
	})
	if err != nil {
		return err
	}
	sets, options := e.clients.Kube.AppsV1().StatefulSets(e.Namespace), metav1.PatchOptions{FieldManager: kube.FieldManager}
	if _, err := sets.Patch(ctx, set.Name, types.MergePatchType, patch, options); err != nil {
		return err
	}
	return e.deletePod(ctx, pod)
}

// ReplacePod deletes the pod of the environment's node that has that UID; the StatefulSet creates another one.
func (e Environment) ReplacePod(ctx context.Context, node int, uid types.UID) error {
	return e.deletePod(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: e.PodName(node), UID: uid}})
}

// deletePod deletes that pod, and none that has taken its name, which is not an error.
func (e Environment) deletePod(ctx context.Context, pod *corev1.Pod) error {
	same := metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))}
	err := e.clients.Kube.CoreV1().Pods(e.Namespace).Delete(ctx, pod.Name, same)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// Release is for the holder of the Lease with that UID: it deletes the Lease, with which everything but the claims goes. It does not wait
// for the end of the pods.
func (e Environment) Release(ctx context.Context, log *slog.Logger, lease types.UID) error {
	err := e.Lease(log).Delete(ctx, lease)
	if err == nil {
		e.endPods(ctx, lease)
	}
	return err
}

// fewPods is how many pods endPods deletes itself. For more, requests to the API server would grow with the nodes.
const fewPods = 16

// endPods deletes the StatefulSet and, if they are few, the pods of an environment after its Lease. The garbage collector would do it a
// second later, so a failure changes nothing.
func (e Environment) endPods(ctx context.Context, lease types.UID) {
	set, err := e.StatefulSet(ctx)
	if err != nil || !slices.ContainsFunc(set.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == lease }) {
		return
	}
	background := metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(set.UID)),
		PropagationPolicy: new(metav1.DeletePropagationBackground)}
	err = e.clients.Kube.AppsV1().StatefulSets(e.Namespace).Delete(ctx, set.Name, background)
	if err != nil || objects.NodesOf(set) > fewPods {
		return
	}
	pods, err := e.Pods(ctx)
	if err != nil {
		return
	}
	var group errgroup.Group
	for _, pod := range pods {
		if metav1.IsControlledBy(&pod, set) {
			group.Go(func() error { return e.deletePod(ctx, &pod) })
		}
	}
	_ = group.Wait()
}

// Mode returns the mode that provision decided, "" without an environment.
func (e Environment) Mode(ctx context.Context) (agent.Mode, error) {
	set, err := e.StatefulSet(ctx)
	if apierrors.IsNotFound(err) {
		return "", nil
	} else if err != nil {
		return "", err
	}
	return agent.Mode(set.Annotations[objects.ModeAnnotation]), nil
}

// ReachCommand returns the command by which a person reaches a port of a node.
func (e Environment) ReachCommand(node, port int) string {
	return fmt.Sprintf("oc port-forward pod/%s %d -n %s", e.PodName(node), port, e.Namespace)
}

// RecordClaims returns the claims with the record of a run of count nodes.
func (e Environment) RecordClaims(ctx context.Context, count int) []string {
	set, err := e.StatefulSet(ctx)
	if err != nil {
		set = nil
	}
	return e.Names.RecordClaims(set, count)
}
