// Package attachment reads NetworkAttachmentDefinitions: which devices they give
// to a pod, and which addresses.
package attachment

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// ResourceAnnotation names the extended resource that a pod of the attachment must
// ask for (k8snetworkplumbingwg: the network attachment's annotation).
const ResourceAnnotation = "k8s.v1.cni.cncf.io/resourceName"

// Resource is where the API server keeps them.
func Resource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "k8s.cni.cncf.io", Version: "v1", Resource: "network-attachment-definitions"}
}

// Definition is what matters of one.
type Definition struct {
	Namespace, Name string
	// Resource is what a device plugin gives the device by; empty without one.
	Resource string
	// Ranges are those that its address management gives addresses of.
	Ranges []Range
}

// Full is namespace/name, as cluster files write it.
func (d Definition) Full() string { return d.Namespace + "/" + d.Name }

// Read takes a definition from its object. Errors: a configuration that is no JSON, or
// a range that cannot be read.
func Read(object *unstructured.Unstructured) (Definition, error) {
	d := Definition{
		Namespace: object.GetNamespace(), Name: object.GetName(), Resource: object.GetAnnotations()[ResourceAnnotation],
	}
	text, _, err := unstructured.NestedString(object.Object, "spec", "config")
	if err != nil {
		return d, fmt.Errorf("reading attachment %s: %w", d.Full(), err)
	}
	if text == "" {
		return d, nil // its configuration is a file of the node
	}
	var config struct {
		plugin
		Plugins []plugin `json:"plugins"`
	}
	if err := json.Unmarshal([]byte(text), &config); err != nil {
		return d, fmt.Errorf("reading attachment %s: its spec.config: %w", d.Full(), err)
	}
	for _, p := range append(config.Plugins, config.plugin) {
		for _, part := range p.IPAM.parts() {
			r, err := part.parse()
			if err != nil {
				return d, fmt.Errorf("reading attachment %s: %w", d.Full(), err)
			}
			d.Ranges = append(d.Ranges, r)
		}
	}
	return d, nil
}

// plugin is one of a CNI configuration.
type plugin struct {
	IPAM ipam `json:"ipam"`
}

// ipam has the keys of whereabouts (k8snetworkplumbingwg/whereabouts:doc/extended-configuration.md)
// and of host-local (containernetworking/plugins), which mean the same.
type ipam struct {
	part
	IPRanges []part   `json:"ipRanges"`
	Ranges   [][]part `json:"ranges"`
}

func (i ipam) parts() []part {
	parts := i.IPRanges
	for _, set := range i.Ranges {
		parts = append(parts, set...)
	}
	if i.Range != "" || i.Subnet != "" {
		parts = append(parts, i.part)
	}
	return parts
}

// part is one range. A range of whereabouts is a subnet, or FIRST-LAST/BITS.
type part struct {
	Range      string `json:"range"`
	RangeStart string `json:"range_start"`
	RangeEnd   string `json:"range_end"`
	Subnet     string `json:"subnet"`
	Start      string `json:"rangeStart"`
	End        string `json:"rangeEnd"`
}

func (p part) parse() (Range, error) {
	text := p.Range + p.Subnet
	first, subnet, dashed := strings.Cut(text, "-")
	last := ""
	if dashed {
		last, _, _ = strings.Cut(subnet, "/")
	} else {
		first, subnet = "", text
	}
	prefix, err := netip.ParsePrefix(subnet)
	if err != nil {
		return Range{}, fmt.Errorf("range %q: want a subnet, as in 10.0.103.0/24", text)
	}
	r := Range{Text: text, First: prefix.Masked().Addr(), Last: lastOf(prefix)}
	for _, bound := range []struct {
		text string
		into *netip.Addr
	}{{first + p.RangeStart + p.Start, &r.First}, {last + p.RangeEnd + p.End, &r.Last}} {
		if bound.text == "" {
			continue
		}
		if *bound.into, err = netip.ParseAddr(bound.text); err != nil {
			return Range{}, fmt.Errorf("range %q: its bound %q is no address", text, bound.text)
		}
	}
	return r, nil
}

// lastOf is the highest address of a subnet.
func lastOf(prefix netip.Prefix) netip.Addr {
	bytes := prefix.Masked().Addr().AsSlice()
	for bit := prefix.Bits(); bit < len(bytes)*8; bit++ {
		bytes[bit/8] |= 0x80 >> (bit % 8)
	}
	addr, _ := netip.AddrFromSlice(bytes)
	return addr
}
