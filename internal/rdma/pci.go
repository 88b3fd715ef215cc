package rdma

import (
	"slices"
	"strconv"
	"strings"
)

// Distance is how far a GPU and a device are from each other on PCIe, in the words of
// `nvidia-smi topo -m`.
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

// order is that of the constants, 0 for "".
func (d Distance) order() int {
	return 1 + slices.Index([]Distance{PIX, PXB, PHB, NODE, SYS}, d)
}

// Wider is true where d is farther than other.
func (d Distance) Wider(other Distance) bool { return d.order() > other.order() }

// numa is the NUMA node of a PCI function, -1 where the kernel does not know.
func (d *detector) numa(address string) int {
	if n, err := strconv.Atoi(d.text(pciDevices, address, "numa_node")); err == nil {
		return n
	}
	return -1
}

// gpus lists the PCI addresses of NVIDIA's GPUs: 3D controllers, and VGA ones. Where
// the driver's folder is in the container, it has those alone that the container was
// given (NVIDIA/libnvidia-container:src/nvc_mount.c); sysfs has the host's.
func (d *detector) gpus() []string {
	const procGPUs = "proc/driver/nvidia/gpus"
	var gpus []string
	for _, address := range d.names(pciDevices) {
		class := d.text(pciDevices, address, "class")
		if d.text(pciDevices, address, "vendor") != "0x10de" || !strings.HasPrefix(class, "0x0302") && !strings.HasPrefix(class, "0x0300") {
			continue
		}
		if d.exists(procGPUs) && !d.exists(procGPUs, address) {
			continue
		}
		gpus = append(gpus, address)
	}
	return gpus
}

// bridges is the way to a PCI function from its host bridge, both included:
// pci0000:00, 0000:00:01.0, 0000:03:00.0.
func (d *detector) bridges(address string) []string {
	target := d.target(pciDevices, address)
	if _, below, ok := strings.Cut(target, "/pci"); ok {
		return strings.Split(below, "/")
	}
	return nil
}

// distance compares the ways to two functions. They are on one switch where no more
// than one port of it is below the last bridge that they share, on either side. A
// kernel without NUMA knows no node of either. It is "" where a way is not known.
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
	case shared == 0 && d.numa(a) == d.numa(b):
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
