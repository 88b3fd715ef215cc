package train

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/diagnose"
	"github.com/ml-dev-env/ml-dev-env/internal/env/network"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// faulty is the first node whose GPUs or RDMA devices have a fault. The fault is "" if there is none.
func faulty(facts []agent.Facts, n network.Network) (node int, fault string) {
	for node, f := range facts {
		if fault := f.GPUFault(); fault != "" {
			return node, "its GPUs: " + fault
		}
	}
	for node, f := range n.Facts {
		for _, finding := range f.Findings {
			if finding.Level == fail.Broken {
				return node, finding.Seen
			}
		}
	}
	return 0, ""
}

// silent reports whether an attempt ended because a node did not answer, and still does not, while its pod is as before. A pod
// that was deleted, evicted or preempted may come back to its node.
func (t *Training) silent(ctx context.Context, failed *agent.Attempt) bool {
	if failed.Reason != string(fail.NodeLost) || failed.Node == nil {
		return false
	}
	client := t.Nodes[*failed.Node]
	asking, cancel := context.WithTimeout(ctx, 3*askTime) // nvidia-smi alone may take 20 s
	defer cancel()
	if _, err := client.Facts(asking); err == nil {
		return false
	}
	return t.podGone(ctx, *failed.Node) == nil
}

// leaveOut moves a node of the environment to another Kubernetes node because of a fault. It reports whether it did so. If not,
// the log has the reason.
func (t *Training) leaveOut(ctx context.Context, failed *agent.Attempt, node int, fault string) bool {
	host := t.hosts[node]
	if err := t.exclude(ctx, node, len(t.Nodes), host); err != nil {
		t.Log.Warn(fmt.Sprintf("Kubernetes node %s stays in use although it has a fault (%s): %v.", host, fault, err), "node", node, "kubernetesNode", host, "fault", fault, "error", err)
		return false
	}
	failed.LeftOut = append(failed.LeftOut, host)
	t.Log.Warn(fmt.Sprintf("Kubernetes node %s is left out from now on: %s. Node %d of the environment moves to another one.", host, fault, node), "node", node, "kubernetesNode", host, "fault", fault)
	return true
}

// exclude excludes a Kubernetes node from the StatefulSet's template, and deletes the pod of the environment's node on it.
//
// The pod of an unreachable Kubernetes node stays, and the StatefulSet does not replace it, until Kubernetes knows that the
// machine is out of service: its ranks may still write to the claims. So exclude never forces the deletion.
func (t *Training) exclude(ctx context.Context, node, count int, host string) error {
	pods, sets, e := t.Clients.Kube.CoreV1().Pods(t.Clients.Namespace), t.Clients.Kube.AppsV1().StatefulSets(t.Clients.Namespace), t.environment()
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
	account, err := t.Clients.Kube.CoreV1().ServiceAccounts(t.Clients.Namespace).Get(ctx, spec.ServiceAccountName, metav1.GetOptions{})
	if err == nil && len(spec.ImagePullSecrets) > 0 {
		change["imagePullSecrets"] = diagnose.CurrentPullSecrets(spec.ImagePullSecrets, account)
	}
	// The UID is a precondition of a patch too.
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": set.UID}, "spec": map[string]any{"template": map[string]any{"spec": change}}})
	if err != nil {
		return err
	}
	if _, err := sets.Patch(ctx, set.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: kube.FieldManager}); err != nil {
		return err
	}
	err = pods.Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// outOfService is how the pod of a Kubernetes node that does not answer is replaced.
func outOfService(host string) string {
	return fmt.Sprintf("Kubernetes keeps the pod on %s until the node answers, or until an administrator who knows that the machine is off runs: oc adm taint nodes %s %s=nodeshutdown:NoExecute", host, host, corev1.TaintNodeOutOfService)
}
