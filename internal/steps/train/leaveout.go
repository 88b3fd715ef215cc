package train

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/network"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
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

// silent reports whether an attempt ended because a node did not answer while its pod was as before. A pod that was deleted,
// evicted or preempted may come back to its node.
func (t *Training) silent(ctx context.Context, failed *agent.Attempt) bool {
	return failed.Reason == string(fail.NodeLost) && failed.Node != nil && t.Pods.Lost(ctx, t.Nodes[*failed.Node]) == nil
}

// leaveOut moves a node of the environment to another Kubernetes node: it excludes the present one from the StatefulSet's
// template and deletes the pod. It reports whether it did so. If not, the log has the reason.
//
// The pod of an unreachable Kubernetes node stays, and the StatefulSet does not replace it, until Kubernetes knows that the
// machine is out of service: its ranks may still write to the claims. So leaveOut never forces the deletion.
func (a *attempt) leaveOut(ctx context.Context, t *Training, failed *agent.Attempt, node int, fault string) bool {
	pods, sets, names := a.Clients.Kube.CoreV1().Pods(a.Clients.Namespace), a.Clients.Kube.AppsV1().StatefulSets(a.Clients.Namespace), objects.NamesOf(a.Name)
	host := t.Pods.Host(t.Nodes[node])
	stays := func(why string) bool {
		a.Log.Warn(fmt.Sprintf("Kubernetes node %s stays in use although it has a fault (%s): %s.", host, fault, why), "node", node, "kubernetesNode", host, "fault", fault)
		return false
	}
	pod, err := pods.Get(ctx, names.PodName(node), metav1.GetOptions{})
	if err != nil {
		return stays(err.Error())
	}
	host = pod.Spec.NodeName
	set, err := sets.Get(ctx, names.StatefulSet, metav1.GetOptions{})
	if err != nil {
		return stays(err.Error())
	}
	spec := &set.Spec.Template.Spec
	allowed, _ := objects.Placement(spec)
	switch {
	case len(set.Spec.VolumeClaimTemplates) > 0:
		return stays("the claims of its pod may exist on this node alone")
	case !slices.Contains(allowed, host):
		return stays("nodes.gpu_nodes of the cluster file does not list it, so the other nodes are not known")
	case len(allowed) <= len(t.Nodes):
		return stays(fmt.Sprintf("without it nodes.gpu_nodes of the cluster file leaves %s, want %d", humanize.Count(len(allowed)-1, "node"), len(t.Nodes)))
	}
	objects.Exclude(spec, host)
	// The UID is a precondition of a patch too.
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": set.UID}, "spec": map[string]any{"template": map[string]any{"spec": map[string]any{"affinity": spec.Affinity}}}})
	if err == nil {
		_, err = sets.Patch(ctx, set.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: kube.FieldManager})
	}
	if err == nil {
		err = pods.Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return stays(err.Error())
	}
	failed.LeftOut = append(failed.LeftOut, host)
	a.Log.Warn(fmt.Sprintf("Kubernetes node %s is left out from now on: %s. Node %d of the environment moves to another one.", host, fault, node), "node", node, "kubernetesNode", host, "fault", fault)
	return true
}

// outOfService is how the pod of a Kubernetes node that does not answer is replaced.
func outOfService(host string) string {
	return fmt.Sprintf("Kubernetes keeps the pod on %s until the node answers, or until an administrator who knows that the machine is off runs: oc adm taint nodes %s %s=nodeshutdown:NoExecute", host, host, corev1.TaintNodeOutOfService)
}
