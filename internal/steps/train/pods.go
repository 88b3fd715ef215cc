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
	"k8s.io/client-go/kubernetes"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

type clusterPods struct {
	client          kubernetes.Interface
	namespace, name string
	// uids and hosts are the pods' UIDs and Kubernetes nodes at the start of the training, by node.
	uids  map[int]types.UID
	hosts map[int]string
}

func newPods(ctx context.Context, client kubernetes.Interface, namespace, name string, count int) (*clusterPods, error) {
	p := &clusterPods{client: client, namespace: namespace, name: name, uids: map[int]types.UID{}, hosts: map[int]string{}}
	found, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: objects.Selector(name).String()})
	if err != nil {
		return nil, fail.Because(fail.EnvironmentMissing, fmt.Errorf("listing the pods of environment %s/%s: %w", namespace, name, err))
	}
	pods := map[string]*corev1.Pod{}
	for i := range found.Items {
		pods[found.Items[i].Name] = &found.Items[i]
	}
	for node := range count {
		pod, known := pods[objects.NamesOf(name).PodName(node)]
		if !known {
			return nil, fail.Becausef(fail.EnvironmentMissing, "looking for pod %s/%s: not found", namespace, objects.NamesOf(name).PodName(node))
		}
		p.uids[node], p.hosts[node] = pod.UID, pod.Spec.NodeName
	}
	return p, nil
}

// Host implements Pods.
func (p *clusterPods) Host(client *agent.Client) string { return p.hosts[client.Node()] }

// Lost implements Pods. Without an answer of the API server the pod may still exist.
func (p *clusterPods) Lost(ctx context.Context, client *agent.Client) error {
	pod, err := p.client.CoreV1().Pods(p.namespace).Get(ctx, objects.NamesOf(p.name).PodName(client.Node()), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return lost(p, client, "its pod was deleted")
	case err != nil:
		return nil //nolint:nilerr // it may be there
	case pod.UID != p.uids[client.Node()]:
		return lost(p, client, "its pod was deleted and recreated")
	case pod.DeletionTimestamp != nil:
		return lost(p, client, "its pod is being deleted%s", whyEnded(pod))
	case kube.HasEnded(pod):
		return lost(p, client, "its pod has ended: %s %s", pod.Status.Reason, pod.Status.Message)
	}
	return nil
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

// Restarted implements Pods.
func (p *clusterPods) Restarted(ctx context.Context, client *agent.Client) error {
	reason, how := fail.ContainerRestarted, "for an unknown cause"
	if ended := p.termination(ctx, objects.NamesOf(p.name).PodName(client.Node())); ended != nil {
		how = fmt.Sprintf("after it had ended with %s (exit code %d)", ended.Reason, ended.ExitCode)
		if kube.ReasonFor(ended.Reason) == fail.OutOfMemory {
			reason = fail.OutOfMemory
		}
	}
	err := fail.Becausef(reason, "training: the container of node %d was restarted under the job %s", client.Node(), how)
	if reason == fail.OutOfMemory {
		return fail.Advise(err, "raise resources.limits.memory in the cluster file, or use a smaller batch, fewer workers or offloading")
	}
	return fail.Advise(err, "oc describe pod %s -n %s; then start the run again, with the last checkpoint if there is one", objects.NamesOf(p.name).PodName(client.Node()), p.namespace)
}

// kubeletTime is how much later than the agent of a new container the kubelet may report the end of the old one.
const kubeletTime = 30 * time.Second

// termination returns how the earlier container of a pod ended, nil if the kubelet does not report it in time.
func (p *clusterPods) termination(ctx context.Context, pod string) (ended *corev1.ContainerStateTerminated) {
	ctx, cancel := context.WithTimeout(ctx, kubeletTime)
	defer cancel()
	named := metav1.ListOptions{FieldSelector: "metadata.name=" + pod}
	_ = kube.Until(ctx, "pod "+pod, p.client.CoreV1().Pods(p.namespace), named, func(pods []*corev1.Pod) (bool, error) {
		for _, pod := range pods {
			for _, container := range pod.Status.ContainerStatuses {
				ended = cmp.Or(container.LastTerminationState.Terminated, ended)
			}
		}
		return ended != nil, nil
	})
	return ended
}
