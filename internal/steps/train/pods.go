package train

import (
	"cmp"
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// readPods notes the pods that the environment has now.
func (t *Training) readPods(ctx context.Context) error {
	found, err := t.environment().Pods(ctx)
	if err != nil {
		return fail.Because(fail.EnvironmentMissing, err)
	}
	pods := map[string]*corev1.Pod{}
	for i := range found {
		pods[found[i].Name] = &found[i]
	}
	uids, hosts := map[int]types.UID{}, map[int]string{}
	for node := range t.Nodes {
		pod, known := pods[t.podName(node)]
		if !known {
			return fail.Becausef(fail.EnvironmentMissing, "looking for pod %s/%s: not found", t.Clients.Namespace, t.podName(node))
		}
		uids[node], hosts[node] = pod.UID, pod.Spec.NodeName
	}
	t.uids, t.hosts = uids, hosts
	return nil
}

func (t *Training) podName(node int) string { return t.environment().PodName(node) }

// podLost is the error for a node whose pod is not the one that the job was started in, nil if that one may come back. Without an
// answer of the API server it may.
func (t *Training) podLost(ctx context.Context, node int) error {
	pod, err := t.environment().Pod(ctx, node)
	switch {
	case apierrors.IsNotFound(err):
		return t.gone(node, "its pod was deleted")
	case err != nil:
		return nil //nolint:nilerr // it may be there
	case pod.UID != t.uids[node]:
		return t.gone(node, "its pod was deleted and recreated")
	case pod.DeletionTimestamp != nil:
		return t.gone(node, "its pod is being deleted%s", whyEnded(pod))
	case kube.HasEnded(pod):
		return t.gone(node, "its pod has ended: %s %s", pod.Status.Reason, pod.Status.Message)
	}
	return nil
}

// podGone is podLost, except that it does not wait long: the API server may be away too.
func (t *Training) podGone(ctx context.Context, node int) error {
	asking, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	return t.podLost(asking, node)
}

// gone is the error for a node that will not come back.
func (t *Training) gone(node int, why string, args ...any) error {
	where := ""
	if host := t.hosts[node]; host != "" {
		where = ", on Kubernetes node " + host + ","
	}
	return fail.Advise(fail.Becausef(fail.NodeLost, "training: node %d%s is gone: %s", node, where, fmt.Sprintf(why, args...)),
		"look at the node's events: oc get events --sort-by=.lastTimestamp; then start the run again, with the last checkpoint if there is one")
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

// restarted is the error for a container that was restarted under the job.
func (t *Training) restarted(ctx context.Context, node int) error {
	reason, how := fail.ContainerRestarted, "for an unknown cause"
	if ended := t.termination(ctx, t.podName(node)); ended != nil {
		how = fmt.Sprintf("after it had ended with %s (exit code %d)", ended.Reason, ended.ExitCode)
		if kube.ReasonFor(ended.Reason) == fail.OutOfMemory {
			reason = fail.OutOfMemory
		}
	}
	err := fail.Becausef(reason, "training: the container of node %d was restarted under the job %s", node, how)
	if reason == fail.OutOfMemory {
		return fail.Advise(err, "raise resources.limits.memory in the cluster file, or use a smaller batch, fewer workers or offloading")
	}
	return fail.Advise(err, "oc describe pod %s -n %s; then start the run again, with the last checkpoint if there is one", t.podName(node), t.Clients.Namespace)
}

// kubeletTime is how much later than the agent of a new container the kubelet may report the end of the old one.
const kubeletTime = 30 * time.Second

// termination returns how the earlier container of a pod ended, nil if the kubelet does not report it in time.
func (t *Training) termination(ctx context.Context, pod string) (ended *corev1.ContainerStateTerminated) {
	ctx, cancel := context.WithTimeout(ctx, kubeletTime)
	defer cancel()
	named := metav1.ListOptions{FieldSelector: "metadata.name=" + pod}
	_ = kube.Until(ctx, "pod "+pod, t.Clients.Kube.CoreV1().Pods(t.Clients.Namespace), named, func(pods []*corev1.Pod) (bool, error) {
		for _, pod := range pods {
			for _, container := range pod.Status.ContainerStatuses {
				ended = cmp.Or(container.LastTerminationState.Terminated, ended)
			}
		}
		return ended != nil, nil
	})
	return ended
}
