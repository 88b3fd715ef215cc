// Package attachment reads NetworkAttachmentDefinitions: by which resource a pod gets
// their device, and which addresses they give.
package attachment

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// ResourceAnnotation of an attachment names the resource whose devices it uses
// (k8snetworkplumbingwg/network-attachment-definition-client).
const ResourceAnnotation = "k8s.v1.cni.cncf.io/resourceName"

// Resource is where the API server keeps them.
func Resource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "k8s.cni.cncf.io", Version: "v1", Resource: "network-attachment-definitions"}
}

// Definition is what matters of one.
type Definition struct {
	// Name is namespace/name, as pods ask for it.
	Name string
	// Resource is what a device plugin gives the device by; empty without one.
	Resource string
	Ranges   []Range
	// Problem says why the ranges are not known, "" where they are.
	Problem string
}

// Read takes a definition from its object.
func Read(object *unstructured.Unstructured) Definition {
	config, _, _ := unstructured.NestedString(object.Object, "spec", "config")
	d := Definition{Name: object.GetNamespace() + "/" + object.GetName(), Resource: object.GetAnnotations()[ResourceAnnotation]}
	d.Ranges, d.Problem = RangesOf(config)
	return d
}

// Overlap is a pair of attachments of one pod with overlapping subnets. Rails are told
// apart by their subnets, by NCCL, by the kernel's routes and by us, and two pods may get
// one address: four attachments with one range trained on two nodes and hung on eight.
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

// Overlaps is true where an address of one may be one of the other too.
func (d Definition) Overlaps(other Definition) bool {
	for _, a := range d.Ranges {
		for _, b := range other.Ranges {
			if a.Subnet.Overlaps(b.Subnet) {
				return true
			}
		}
	}
	return false
}
