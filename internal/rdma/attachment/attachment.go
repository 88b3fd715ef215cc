// SPDX-License-Identifier: Apache-2.0

// Package attachment reads NetworkAttachmentDefinitions: the resource of their device, and the addresses that they give.
package attachment

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// ResourceAnnotation of an attachment names the resource whose devices it uses
// (k8snetworkplumbingwg/network-attachment-definition-client).
const ResourceAnnotation = "k8s.v1.cni.cncf.io/resourceName"

// Resource returns the API's resource of attachments.
func Resource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "k8s.cni.cncf.io", Version: "v1", Resource: "network-attachment-definitions"}
}

// Definition is a NetworkAttachmentDefinition.
type Definition struct {
	// Name is namespace/name, as pods request it.
	Name string
	// Resource is the device plugin's resource of the device; empty without one.
	Resource string
	// Type is the CNI plugin, as in sriov, macvlan or ipoib, and Master the host's interface on which it makes one; empty if unknown.
	Type, Master string
	Ranges       []Range
	// Problem is why the ranges are not known, empty if they are.
	Problem string
	// PerNode is true if each Kubernetes node gives addresses by itself, so that pods on two of them may get the same one.
	PerNode bool
}

// Read reads a definition from its object.
func Read(object *unstructured.Unstructured) Definition {
	config, _, _ := unstructured.NestedString(object.Object, "spec", "config")
	d := Definition{Name: object.GetNamespace() + "/" + object.GetName(), Resource: object.GetAnnotations()[ResourceAnnotation]}
	var plugin string
	d.Ranges, plugin, d.Problem = RangesOf(config)
	d.Type, d.Master = masterOf(config)
	d.PerNode = plugin == hostLocal
	return d
}

// OnShared reports whether the attachment makes an interface on one of the host's, which has no device of its own: so the pods' shared
// RDMA devices get addresses.
func (d Definition) OnShared() bool {
	return d.Resource == "" && (d.Type == "macvlan" || d.Type == "ipoib")
}

// Overlaps names the pairs of attachments of one pod whose subnets overlap. NCCL, the kernel's routes and this project distinguish rails by
// their subnets, and two pods may get the same address: four attachments with one range worked on two nodes and hung on eight.
func Overlaps(definitions []Definition) (found []string) {
	for i, a := range definitions {
		for _, b := range definitions[i+1:] {
			if a.Overlaps(b) {
				found = append(found, fmt.Sprintf("attachments %s (%s) and %s (%s) overlap", a.Name, a.Ranges[0], b.Name, b.Ranges[0]))
			}
		}
	}
	return found
}

// Overlaps reports whether both may give the same address.
func (d Definition) Overlaps(other Definition) bool {
	return slices.ContainsFunc(d.Ranges, func(a Range) bool {
		return slices.ContainsFunc(other.Ranges, func(b Range) bool { return a.Subnet.Overlaps(b.Subnet) })
	})
}
