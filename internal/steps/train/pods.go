package train

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/diagnose"
	"github.com/ml-dev-env/ml-dev-env/internal/env"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/run"
)

// pods are the place of an environment's nodes.
type pods struct {
	env.Environment
	clients *kube.Clients
	certs   string
}

// Attach implements Place.
func (p pods) Attach(ctx context.Context, log *slog.Logger, of run.Flags) (nodes.Set, func(), error) {
	return p.Environment.Attach(ctx, log, p.certs, of)
}

// Instances implements Place.
func (p pods) Instances(ctx context.Context, count int) ([]nodes.Instance, error) {
	found, err := p.Pods(ctx)
	if err != nil {
		return nil, fail.Because(fail.EnvironmentMissing, err)
	}
	instances := make([]nodes.Instance, count)
	for node := range count {
		i := slices.IndexFunc(found, func(pod corev1.Pod) bool { return pod.Name == p.PodName(node) })
		if i < 0 {
			return nil, fail.Becausef(fail.EnvironmentMissing, "looking for pod %s/%s: not found", p.Namespace, p.PodName(node))
		}
		instances[node] = nodes.Instance{ID: string(found[i].UID), Host: found[i].Spec.NodeName}
	}
	return instances, nil
}

// Gone implements Place. Without an answer of the API server in time the pod may be there.
func (p pods) Gone(ctx context.Context, node int, was nodes.Instance) string {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	pod, err := p.Pod(ctx, node)
	switch {
	case apierrors.IsNotFound(err):
		return "its pod was deleted"
	case err != nil:
		return ""
	case string(pod.UID) != was.ID:
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

// kubeletTime is how much later than the agent of a new container the kubelet may report the end of the old one.
const kubeletTime = 30 * time.Second

// Ended implements Place.
func (p pods) Ended(ctx context.Context, node int) (reason fail.Reason, how string) {
	ctx, cancel := context.WithTimeout(ctx, kubeletTime)
	defer cancel()
	var ended *corev1.ContainerStateTerminated
	named := metav1.ListOptions{FieldSelector: "metadata.name=" + p.PodName(node)}
	_ = kube.Until(ctx, "pod "+p.PodName(node), p.clients.Kube.CoreV1().Pods(p.Namespace), named, func(pods []*corev1.Pod) (bool, error) {
		for _, pod := range pods {
			for _, container := range pod.Status.ContainerStatuses {
				ended = cmp.Or(container.LastTerminationState.Terminated, ended)
			}
		}
		return ended != nil, nil
	})
	switch {
	case ended == nil:
		return fail.ContainerRestarted, "for an unknown cause"
	case kube.ReasonFor(ended.Reason) == fail.OutOfMemory:
		reason = fail.OutOfMemory
	default:
		reason = fail.ContainerRestarted
	}
	return reason, fmt.Sprintf("after it had ended with %s (exit code %d)", ended.Reason, ended.ExitCode)
}

// Whole implements Place.
func (p pods) Whole(ctx context.Context, set nodes.Set) error {
	master, seen := "", ""
	err := p.WatchPods(ctx, func(pods []*corev1.Pod) (bool, error) {
		leaving := ""
		for _, pod := range pods {
			if pod.DeletionTimestamp != nil {
				leaving += fmt.Sprintf(", %s on %s is being deleted", pod.Name, pod.Spec.NodeName)
			}
		}
		ready := slices.DeleteFunc(pods, func(p *corev1.Pod) bool { return !kube.IsReady(p) })
		seen = fmt.Sprintf("%d of %s ready", len(ready), humanize.Count(len(set), "pod")) + leaving
		if len(ready) == len(set) {
			master = ready[0].Status.PodIP // they are sorted, and 0 is the first of all numbers
			return true, nil
		}
		if _, err := p.StatefulSet(ctx); apierrors.IsNotFound(err) {
			return false, fail.Becausef(fail.EnvironmentMissing, "environment %s was deleted", p)
		}
		return false, nil
	})
	if err != nil {
		reason := fail.ReasonOf(err)
		if reason == fail.Internal {
			reason = fail.PodsNotReady
		}
		return fail.Advise(fail.Becausef(reason, "%w: %s", err, seen),
			"oc get pods -n %s -l %s; oc get events -n %s --sort-by=.lastTimestamp", p.Namespace, p.Selector(), p.Namespace)
	}
	set.Close() // connections to pods that are gone
	name := p.Host(0)
	return set.Each(ctx, func(ctx context.Context, client *agent.Client) error {
		return nodes.Retry(ctx, func() error {
			answer, err := client.Resolve(ctx, []string{name})
			if err == nil && !slices.Contains(answer.Addresses[name], master) {
				// DNS remembers the address of an earlier pod for a while.
				err = fail.Becausef(fail.AgentUnreachable, "resolving %s on node %d: %v %s; want %s",
					name, client.Node(), answer.Addresses[name], answer.Problems[name], master)
			}
			return err
		})
	})
}

// LeaveOut implements Place: it excludes a Kubernetes node from the StatefulSet's template, and deletes the pod of the environment's
// node on it.
//
// The pod of an unreachable Kubernetes node stays, and the StatefulSet does not replace it, until Kubernetes knows that the
// machine is out of service: its ranks may still write to the claims. So LeaveOut never forces the deletion.
func (p pods) LeaveOut(ctx context.Context, node, count int, host string) error {
	pod, err := p.Pod(ctx, node)
	if err != nil {
		return err
	}
	set, err := p.StatefulSet(ctx)
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
	account, err := p.clients.Kube.CoreV1().ServiceAccounts(p.Namespace).Get(ctx, spec.ServiceAccountName, metav1.GetOptions{})
	if err == nil && len(spec.ImagePullSecrets) > 0 {
		change["imagePullSecrets"] = diagnose.CurrentPullSecrets(spec.ImagePullSecrets, account)
	}
	// The UID is a precondition of a patch too.
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": set.UID}, "spec": map[string]any{"template": map[string]any{"spec": change}},
	})
	if err != nil {
		return err
	}
	sets := p.clients.Kube.AppsV1().StatefulSets(p.Namespace)
	if _, err := sets.Patch(ctx, set.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: kube.FieldManager}); err != nil {
		return err
	}
	err = p.clients.Kube.CoreV1().Pods(p.Namespace).Delete(ctx, pod.Name,
		metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// WantsRDMA implements Place.
func (p pods) WantsRDMA(ctx context.Context) (bool, error) {
	set, err := p.StatefulSet(ctx)
	if apierrors.IsNotFound(err) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	return set.Annotations[objects.ModeAnnotation] == string(objects.RDMA), nil
}

// Host implements Place.
func (p pods) Host(node int) string { return p.TLSName(node) }

// Reach implements Place.
func (p pods) Reach(node, port int) string {
	return fmt.Sprintf("oc port-forward pod/%s %d -n %s", p.PodName(node), port, p.Namespace)
}

// Look implements Place.
func (p pods) Look(node int) string {
	return fmt.Sprintf("oc describe pod %s -n %s", p.PodName(node), p.Namespace)
}
