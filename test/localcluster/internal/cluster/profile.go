// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/rdma"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/storage"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/topology"
)

// machine writes the files from which the kubelet of a profile's node reads its processors and memory, and returns them
// by the paths that they replace. Nothing else on the node sees them. The kubelet counts the processors of each NUMA
// node, and confines pods to their numbers. So the files describe many NUMA nodes, each with this machine's processors.
func (p *plan) machine(n topology.Netns) map[string]string {
	like := p.options.like()
	dir := filepath.Join(n.Dir(), "machine")
	kilobytes := like.Memory.Value() >> 10
	p.writeText(filepath.Join(dir, "meminfo"), fmt.Sprintf("MemTotal: %d kB\nSwapTotal: 0 kB\n", kilobytes))
	nodes := max(1, like.Processors/runtime.NumCPU())
	for node := range nodes {
		folder := filepath.Join(dir, "node", fmt.Sprintf("node%d", node))
		p.writeText(filepath.Join(folder, "meminfo"), fmt.Sprintf("Node %d MemTotal: %d kB\n", node, kilobytes/int64(nodes)))
		for cpu := range runtime.NumCPU() {
			processor := filepath.Join(folder, fmt.Sprintf("cpu%d", cpu), "topology")
			p.writeText(filepath.Join(processor, "core_id"), fmt.Sprintln(cpu))
			p.writeText(filepath.Join(processor, "physical_package_id"), fmt.Sprintln(node))
		}
	}
	return map[string]string{
		"/proc/meminfo":            filepath.Join(dir, "meminfo"),
		"/sys/devices/system/node": filepath.Join(dir, "node"),
	}
}

// Labels of nodes with GPUs (NVIDIA/k8s-device-plugin: GPU feature discovery), and a label of nodes that are only
// simulated.
const (
	gpuPresent  = "nvidia.com/gpu.present"
	gpuCount    = "nvidia.com/gpu.count"
	gpuProduct  = "nvidia.com/gpu.product"
	absentLabel = "localcluster/absent"
)

// gpuLabels returns the labels of a node with GPUs. The values are strings.
func (o Options) gpuLabels() map[string]any {
	labels := map[string]any{gpuPresent: "true", gpuCount: fmt.Sprint(o.GPUs), gpuProduct: "NVIDIA-H100-80GB-HBM3"}
	for name, value := range o.like().Labels {
		labels[name] = value
	}
	return labels
}

// describeNodes labels the nodes, and creates the profile's nodes that are switched off.
func describeNodes(ctx context.Context, options Options) error {
	client, err := adminClient()
	if err != nil {
		return err
	}
	for _, n := range options.nodes() {
		labels := map[string]any{gpuPresent: nil, gpuCount: nil, gpuProduct: nil}
		if options.gpusOf(n) > 0 {
			labels = options.gpuLabels()
		}
		if n.Node == n.Name {
			labels[corev1.LabelTopologyZone] = "local"
		}
		patch, err := json.Marshal(document{"metadata": document{"labels": labels}})
		if err != nil {
			return err
		}
		if _, err := client.CoreV1().Nodes().Patch(ctx, n.Node, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("labelling node %s: %w", n.Node, err)
		}
	}
	return describeAbsent(ctx, client, options)
}

// describeAbsent creates the Nodes of machines without a kubelet, which therefore are NotReady.
func describeAbsent(ctx context.Context, client kubernetes.Interface, options Options) error {
	nodes := client.CoreV1().Nodes()
	like := options.like()
	there, err := nodes.List(ctx, metav1.ListOptions{LabelSelector: absentLabel})
	if err != nil {
		return err
	}
	for _, node := range there.Items {
		if slices.Contains(like.AbsentNodes, node.Name) {
			continue
		}
		if err := nodes.Delete(ctx, node.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	status, err := json.Marshal(document{"status": options.absentStatus()})
	if err != nil {
		return err
	}
	labels := options.gpuLabels()
	for _, name := range like.AbsentNodes {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{absentLabel: "true"}}}
		// Cordon the node: the node controller taints it too late, and the scheduler would bind pods to it before.
		node.Spec.Unschedulable = true
		for label, value := range labels {
			node.Labels[label] = fmt.Sprint(value)
		}
		if _, err := nodes.Create(ctx, node, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
			continue
		} else if err != nil {
			return err
		}
		// Patch the status, because controllers already write to the node.
		if _, err := nodes.Patch(ctx, name, types.MergePatchType, status, metav1.PatchOptions{}, "status"); err != nil {
			return err
		}
	}
	return nil
}

// absentStatus returns the status of a node whose kubelet has reported the same resources as the others, and then
// stopped.
func (o Options) absentStatus() corev1.NodeStatus {
	like := o.like()
	offers := corev1.ResourceList{
		corev1.ResourceCPU: *resource.NewQuantity(int64(like.Processors), resource.DecimalSI), corev1.ResourceMemory: like.Memory,
		corev1.ResourcePods: resource.MustParse("110"), "nvidia.com/gpu": *resource.NewQuantity(int64(o.GPUs), resource.DecimalSI),
	}
	for name, amount := range like.RDMA.Offers() {
		if amount > 0 {
			offers[corev1.ResourceName(name)] = *resource.NewQuantity(amount, resource.DecimalSI)
		}
	}
	return corev1.NodeStatus{Capacity: offers, Allocatable: offers, Conditions: []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: "NodeStatusUnknown", Message: "Kubelet stopped posting node status.",
	}}}
}

// ownConstraints are the constraints of a cluster without a profile, in addition to OpenShift's own.
var ownConstraints = []string{"nccl-scc"}

// withoutConstraints selects from ownConstraints what the cluster of the profile lacks.
func (o Options) withoutConstraints() []string {
	if o.Profile == "" {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(ownConstraints), func(name string) bool { return slices.Contains(o.like().Constraints, name) })
}

// infrastructure returns OpenShift's description of the cluster, from which clients read the API server's name.
func (o Options) infrastructure() document {
	api := topology.APIServerURL
	if o.Profile != "" {
		api = "https://" + o.like().API + ":6443"
	}
	return document{
		"apiVersion": "config.openshift.io/v1", "kind": "Infrastructure", "metadata": document{"name": "cluster"},
		"spec":   document{"platformSpec": document{"type": "None"}},
		"status": document{"apiServerURL": api, "platform": "None"},
	}
}

// profiled returns the objects in which clusters differ: those that the cluster has, and those that it lacks.
func (o Options) profiled() (has, lacks []document) {
	has = append(has, o.infrastructure())
	add := func(it bool, object document) {
		if it {
			has = append(has, object)
		} else {
			lacks = append(lacks, object)
		}
	}
	for _, class := range storage.Classes() {
		add(o.Profile == "" || slices.Contains(o.like().StorageClasses, class.Name), document{
			"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": document{"name": class.Name},
			"provisioner": class.Driver, "reclaimPolicy": class.Reclaim, "volumeBindingMode": "Immediate", "allowVolumeExpansion": class.Expands,
		})
	}
	form := cmp.Or(o.like().RDMA.Form, rdma.SRIOV)
	for _, nic := range rdma.NICs {
		annotations := document{}
		if form != rdma.Shared {
			annotations["k8s.v1.cni.cncf.io/resourceName"] = nic.Resource()
		}
		add(form == rdma.SRIOV || form == rdma.Shared, document{
			"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
			"metadata": document{"name": nic.Attachment(), "namespace": "default", "annotations": annotations},
			"spec":     document{"config": nic.AttachmentConfig(form)},
		})
	}
	return has, lacks
}

func profilePath() string { return topology.State("profile-applied") }

// applyProfile applies the objects that the cluster has and deletes those that it lacks, unless that is already done.
func (u *startup) applyProfile(ctx context.Context) error {
	has, lacks := u.options.profiled()
	lists := make([]string, 3)
	for i, items := range [][]document{has, has[:1], lacks} {
		content, err := marshal(document{"apiVersion": "v1", "kind": "List", "items": items})
		if err != nil {
			return err
		}
		lists[i] = content
	}
	if applied, err := os.ReadFile(profilePath()); err == nil && string(applied) == lists[0] {
		return nil
	}
	for i, args := range [][]string{
		applying,
		append([]string{"apply", "--subresource=status"}, applying[1:]...),
		{"delete", "--ignore-not-found", "--filename=-"},
	} {
		if i == 2 && len(lacks) == 0 {
			continue // kubectl fails for an empty list
		}
		if err := kubectl(ctx, lists[i], args); err != nil {
			return err
		}
	}
	return os.WriteFile(profilePath(), []byte(lists[0]), 0o644)
}
