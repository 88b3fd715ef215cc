// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"slices"
	"strings"
)

// IOMMU is the unit between the devices and memory.
type IOMMU struct {
	Mode IOMMUMode `json:"mode"`
	// CommandLine has the kernel's arguments about it, as in iommu=pt.
	CommandLine string `json:"commandLine,omitempty"`
}

// IOMMUMode is its effect on the given devices or, without such, on all devices.
type IOMMUMode string

// The modes.
const (
	// IOMMUOff: no device is in a group.
	IOMMUOff IOMMUMode = "off"
	// IOMMUPassthrough: addresses are not translated, as with iommu=pt.
	IOMMUPassthrough IOMMUMode = "passthrough"
	// IOMMUTranslated: a device reaches only what was mapped for it. Between a GPU and a NIC that fails with IBV_WC_LOC_PROT_ERR.
	IOMMUTranslated IOMMUMode = "translated"
	// IOMMUUnknown: the groups are of other types.
	IOMMUUnknown IOMMUMode = "unknown"
)

// iommuGroups has the type of each group: identity, DMA, DMA-FQ, blocked, unmanaged
// (linux:drivers/iommu/iommu.c, iommu_group_show_type).
const iommuGroups = "sys/kernel/iommu_groups"

// iommu reads the mode from the groups that count: the kernel's command line is only a request.
func (d *detector) iommu(devices []Device) IOMMU {
	var words []string
	for word := range strings.FieldsSeq(d.readText("proc/cmdline")) {
		key, _, _ := strings.Cut(word, "=")
		if strings.Contains(key, "iommu") {
			words = append(words, word)
		}
	}
	var types []string
	for _, device := range devices {
		if device.IOMMU != "" {
			types = append(types, device.IOMMU)
		}
	}
	if len(devices) == 0 {
		for _, group := range d.listNames(iommuGroups) {
			types = append(types, d.readText(iommuGroups, group, "type"))
		}
	}
	return IOMMU{Mode: mode(types), CommandLine: strings.Join(words, " ")}
}

// mode returns the worst of the groups' types.
func mode(types []string) IOMMUMode {
	switch {
	case len(types) == 0:
		return IOMMUOff
	case slices.Contains(types, "DMA"), slices.Contains(types, "DMA-FQ"):
		return IOMMUTranslated
	case slices.Contains(types, "identity"):
		return IOMMUPassthrough
	}
	return IOMMUUnknown
}
