package rdma

import (
	"path"
	"slices"
	"strings"
)

// IOMMU is what stands between the devices and memory.
type IOMMU struct {
	Mode IOMMUMode `json:"mode"`
	// CommandLine are the words of the kernel's that are about it, as in iommu=pt.
	CommandLine string `json:"commandLine,omitempty"`
}

// IOMMUMode says what it does to the given devices or, where there are none, to all.
type IOMMUMode string

// The modes.
const (
	// IOMMUOff: no device is in a group.
	IOMMUOff IOMMUMode = "off"
	// IOMMUPassthrough: addresses pass as they are. It is what iommu=pt asks for.
	IOMMUPassthrough IOMMUMode = "passthrough"
	// IOMMUTranslated: a device reaches only what was mapped for it. Between a GPU and
	// a NIC that ends with IBV_WC_LOC_PROT_ERR.
	IOMMUTranslated IOMMUMode = "translated"
	// IOMMUUnknown: there are groups of a type that says neither.
	IOMMUUnknown IOMMUMode = "unknown"
)

// iommuGroup is the type of a PCI function's group, "" without one: identity, DMA,
// DMA-FQ, blocked, unmanaged (linux:drivers/iommu/iommu.c, iommu_group_show_type).
func (d *detector) iommuGroup(address string) string {
	group := d.target(pciDevices, address, "iommu_group")
	if group == "" {
		return ""
	}
	return d.text(iommuGroups, path.Base(group), "type")
}

const iommuGroups = "sys/kernel/iommu_groups"

// iommu reads the mode from the groups that count: the kernel's command line is only
// what somebody asked for.
func (d *detector) iommu(devices []Device) IOMMU {
	var result IOMMU
	var words []string
	for word := range strings.FieldsSeq(d.text("proc/cmdline")) {
		key, _, _ := strings.Cut(word, "=")
		if strings.Contains(key, "iommu") {
			words = append(words, word)
		}
	}
	result.CommandLine = strings.Join(words, " ")
	var types []string
	for _, device := range devices {
		if device.IOMMU != "" {
			types = append(types, device.IOMMU)
		}
	}
	if len(devices) == 0 {
		for _, group := range d.names(iommuGroups) {
			types = append(types, d.text(iommuGroups, group, "type"))
		}
	}
	result.Mode = mode(types)
	return result
}

// mode is the worst of the groups' types.
func mode(types []string) IOMMUMode {
	translated := func(t string) bool { return t == "DMA" || t == "DMA-FQ" }
	passed := func(t string) bool { return t == "identity" }
	switch {
	case len(types) == 0:
		return IOMMUOff
	case slices.ContainsFunc(types, translated):
		return IOMMUTranslated
	case slices.ContainsFunc(types, passed):
		return IOMMUPassthrough
	}
	return IOMMUUnknown
}
