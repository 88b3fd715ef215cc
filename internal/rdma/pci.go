// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"cmp"
	"io/fs"
	"slices"
	"strconv"
	"strings"
)

// Distance is the distance between a GPU and a device on PCIe, in the words of `nvidia-smi topo -m`.
type Distance string

// The distances, the nearest first.
const (
	// PIX: both are on one PCIe switch, or on one bridge.
	PIX Distance = "PIX"
	// PXB: several switches are between them, but not the processor.
	PXB Distance = "PXB"
	// PHB: a host bridge, so the processor, is between them.
	PHB Distance = "PHB"
	// NODE: two host bridges of one NUMA node are between them.
	NODE Distance = "NODE"
	// SYS: two NUMA nodes, and what joins these.
	SYS Distance = "SYS"
)

// Compare orders distances, the nearest first and unknown ones last.
func (d Distance) Compare(other Distance) int {
	order := []Distance{PIX, PXB, PHB, NODE, SYS}
	return cmp.Compare(uint(slices.Index(order, d)), uint(slices.Index(order, other)))
}

// CrossesHostBridge reports whether data crosses host bridges, where neither GPUDirect nor a host's memory reaches a NIC's rate.
func (d Distance) CrossesHostBridge() bool { return d == NODE || d == SYS }

// numaNode returns the NUMA node of a PCI function, -1 if the kernel does not know.
func (d *detector) numaNode(address string) int {
	if n, err := strconv.Atoi(d.readText(pciDevices, address, "numa_node")); err == nil {
		return n
	}
	return -1
}

// CPUsNear returns the processors of the NUMA node of a PCI function, as the kernel lists them, for example 0-31,64-95: "" if it does
// not know.
func CPUsNear(root fs.FS, address string) string {
	if address == "" {
		return ""
	}
	return tree{root}.readText(pciDevices, address, "local_cpulist")
}

// machineGPUs lists the PCI addresses of NVIDIA's GPUs in sysfs: 3D controllers, and VGA ones.
func (d *detector) machineGPUs() (gpus []string) {
	for _, address := range d.listNames(pciDevices) {
		class := d.readText(pciDevices, address, "class")
		if d.readText(pciDevices, address, "vendor") == "0x10de" && (strings.HasPrefix(class, "0x0302") || strings.HasPrefix(class, "0x0300")) {
			gpus = append(gpus, address)
		}
	}
	return gpus
}

// gpus lists the PCI addresses of the container's GPUs. The driver's folder, if there is one, lists only these
// (NVIDIA/libnvidia-container:src/nvc_mount.c); sysfs lists the host's, and so does that folder for GPUs that were injected by CDI: of
// these only those given count, if sysfs has any of them.
func (d *detector) gpus(given []string) []string {
	const procGPUs = "proc/driver/nvidia/gpus"
	gpus := d.machineGPUs()
	if d.exists(procGPUs) {
		gpus = slices.DeleteFunc(gpus, func(address string) bool { return !d.exists(procGPUs, address) })
	}
	if own := slices.DeleteFunc(slices.Clone(gpus), func(address string) bool { return !slices.Contains(given, address) }); len(own) > 0 {
		return own
	}
	return gpus
}

// maxLink returns the fastest link that a PCI function supports.
func (d *detector) maxLink(address string) Link {
	return parseLink(d.readText(pciDevices, address, "max_link_speed"), d.readText(pciDevices, address, "max_link_width"))
}

// gpuLinks returns the links of the container's GPUs that are known, nil if none is.
func (d *detector) gpuLinks() (links map[string]Link) {
	for _, gpu := range d.facts.GPUs {
		if link := d.slotLink(gpu); link != (Link{}) {
			if links == nil {
				links = map[string]Link{}
			}
			links[gpu] = link
		}
	}
	return links
}

// slotLink returns the fastest link that a PCI function and the port above it support, the zero Link if the function's is not known.
func (d *detector) slotLink(address string) Link {
	link := d.maxLink(address)
	if way := d.bridges(address); len(way) > 1 {
		if port := d.maxLink(way[len(way)-2]); port != (Link{}) {
			link.Speed, link.Width = min(link.Speed, port.Speed), min(link.Width, port.Width)
		}
	}
	return link
}

// bridges returns the path to a PCI function from its host bridge, both included: pci0000:00, 0000:00:01.0, 0000:03:00.0.
func (d *detector) bridges(address string) []string {
	target := d.target(pciDevices, address)
	if _, below, ok := strings.Cut(target, "/pci"); ok {
		return strings.Split(below, "/")
	}
	return nil
}

// distance compares the paths to two functions. They are on one switch if at most
// one port of it is below the last shared bridge, on either side. It is empty if a path is not known.
func (d *detector) distance(a, b string) Distance {
	wayA, wayB := d.bridges(a), d.bridges(b)
	if wayA == nil || wayB == nil {
		return ""
	}
	shared := 0
	for shared < min(len(wayA), len(wayB)) && wayA[shared] == wayB[shared] {
		shared++
	}
	switch {
	case shared == 0 && d.numaNode(a) == d.numaNode(b):
		return NODE
	case shared == 0:
		return SYS
	case shared == 1:
		return PHB
	case len(wayA)-shared <= 2 && len(wayB)-shared <= 2:
		return PIX
	}
	return PXB
}
