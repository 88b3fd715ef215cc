// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"cmp"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// Candidate is a node for pods that do not exist yet.
type Candidate struct {
	// Node is nil if the cluster has no node of that name.
	Node *corev1.Node
	Name string
	// Finding is what keeps pods away. Nothing was seen if nothing does.
	fail.Finding
}

// Candidates returns the nodes that the pod's selector and affinity allow, and the missing nodes that its affinity names or
// excludes, sorted by name. It ignores their free resources.
func Candidates(nodes []corev1.Node, spec *corev1.PodSpec) []Candidate {
	var found []Candidate
	for i := range nodes {
		node := &nodes[i]
		if !isCandidate(node, spec) {
			continue
		}
		candidate := Candidate{Node: node, Name: node.Name}
		why, taints := whyUnfit(node), untolerated(node, spec)
		switch {
		case why == cordoned:
			candidate.Finding = fail.Finding{Reason: fail.NodesUnavailable, Seen: why, Next: "oc adm uncordon " + node.Name, Final: true}
		case why != "":
			candidate.Finding = fail.Finding{Reason: fail.NodesUnavailable, Seen: why, Next: "oc describe node " + node.Name}
		case len(taints) > 0:
			candidate.Finding = fail.Finding{Reason: fail.NodeTainted, Seen: "the pods do not tolerate its taint " + taints[0].ToString(),
				Next: toleration(taints[0]), Final: true}
		}
		found = append(found, candidate)
	}
	e := &explainer{Snapshot: Snapshot{Nodes: nodes}}
	missing := Candidate{Finding: fail.Finding{
		Reason: fail.NodesUnavailable, Seen: "the cluster has no such node; its nodes with GPUs: " + e.gpuNodes(),
		Next: "correct nodes.gpu_nodes in the cluster file (oc get nodes)", Final: true,
	}}
	for _, missing.Name = range e.absent(namesAsked(spec)) {
		found = append(found, missing)
	}
	if allowed, excluded := objects.Placement(spec); allowed == nil { // else Request.Validate knows the names
		missing.Next, missing.Reason = "correct exclude-nodes (oc get nodes)", fail.InvalidInput
		for _, missing.Name = range e.absent(excluded) {
			found = append(found, missing)
		}
	}
	slices.SortFunc(found, func(a, b Candidate) int { return cmp.Compare(a.Name, b.Name) })
	return found
}

// Usage is what pods of a node hold of a resource.
type Usage struct {
	Amount resource.Quantity
	// Holders name each pod and what it holds.
	Holders []string
}

// UsageOf adds up what the pods on a node hold of a resource.
func UsageOf(node string, pods []corev1.Pod, name corev1.ResourceName) Usage {
	var held Usage
	for i := range pods {
		if pods[i].Spec.NodeName != node || released(&pods[i]) {
			continue
		}
		if q := RequestOf(&pods[i].Spec, name); !q.IsZero() {
			held.Amount.Add(q)
			held.Holders = append(held.Holders, holder(&pods[i], q))
		}
	}
	return held
}

// ExplainRejection explains the API server's refusal of a pod of a StatefulSet that does not exist yet.
func ExplainRejection(set *appsv1.StatefulSet, quotas []corev1.ResourceQuota, err error) fail.Finding {
	return (&explainer{Snapshot: Snapshot{StatefulSet: set, Quotas: quotas}}).refusal(err.Error())
}

// StorageServerWaits reports whether a class can provide nothing because its server waits for its own claim. claims are
// the claims in the server's namespace; ours is the namespace of the new claims.
func StorageServerWaits(class *storagev1.StorageClass, classes []storagev1.StorageClass, claims []corev1.PersistentVolumeClaim,
	ours string) (fail.Finding, bool) {
	set := &appsv1.StatefulSet{}
	set.Namespace = ours
	f, waits := (&explainer{Snapshot: Snapshot{StatefulSet: set, Classes: classes, Claims: claims}}).storageServer(class.Name, class)
	f.Reason, f.Object = fail.ClaimUnbound, "storage class "+class.Name
	return f, waits
}
