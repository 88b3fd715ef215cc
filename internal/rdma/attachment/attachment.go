// Package attachment reads NetworkAttachmentDefinitions: the resource of their device, and the addresses that they give.
package attachment

import (
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// ResourceAnnotation of an attachment names the resource whose devices it uses
// (k8snetworkplumbingwg/network-attachment-definition-client).
const ResourceAnnotation = "k8s.v1.cni.cncf.io/resourceName"

// Resource is their resource in the API.
func Resource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "k8s.cni.cncf.io", Version: "v1", Resource: "network-attachment-definitions"}
}

// Definition is a NetworkAttachmentDefinition.
type Definition struct {
	// Name is namespace/name, as pods request it.
	Name string
	// Resource is the device plugin's resource of the device; empty without one.
	Resource string
	Ranges   []Range
	// Problem is why the ranges are not known, empty if they are.
	Problem string
}

// Read reads a definition from its object.
func Read(object *unstructured.Unstructured) Definition {
	config, _, _ := unstructured.NestedString(object.Object, "spec", "config")
	d := Definition{Name: object.GetNamespace() + "/" + object.GetName(), Resource: object.GetAnnotations()[ResourceAnnotation]}
	d.Ranges, d.Problem = RangesOf(config)
	return d
}

// Overlap is a pair of attachments of one pod with overlapping subnets. NCCL, the kernel's routes and this project distinguish rails by
// their subnets, and two pods may get the same address: four attachments with one range worked on two nodes and hung on eight.
type Overlap struct{ A, B Definition }

// String names both with their ranges.
func (o Overlap) String() string {
	return "attachments " + o.A.Name + " (" + o.A.Ranges[0].String() + ") and " + o.B.Name + " (" + o.B.Ranges[0].String() + ") overlap"
}

// Overlaps finds all such pairs.
func Overlaps(definitions []Definition) []Overlap {
	var found []Overlap
	for i, a := range definitions {
		for _, b := range definitions[i+1:] {
			if a.Overlaps(b) {
				found = append(found, Overlap{A: a, B: b})
			}
		}
	}
	return found
}

// Overlaps is true if both may give the same address.
func (d Definition) Overlaps(other Definition) bool {
	return slices.ContainsFunc(d.Ranges, func(a Range) bool {
		return slices.ContainsFunc(other.Ranges, func(b Range) bool { return a.Subnet.Overlaps(b.Subnet) })
	})
}
