// SPDX-License-Identifier: Apache-2.0

// Package rdma detects the RDMA devices of a node and their state, and derives NCCL's settings
// from them. It reads files of /sys, /proc and /dev, and needs no cluster.
package rdma

import (
	"net/netip"
	"slices"
	"strconv"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// Facts are what was detected in one node. They are reported as JSON.
type Facts struct {
	// SysRoot is the folder of the sysfs, empty for the machine's own.
	SysRoot string `json:"sysRoot,omitempty"`
	// Devices are those that this pod was given, in the order of their names.
	Devices []Device `json:"devices"`
	// Others are devices that the pod sees and was not given: in shared RDMA namespace mode every pod sees all of the host.
	Others []string `json:"others,omitempty"`
	// GPUs are the PCI addresses of NVIDIA's GPUs, in order.
	GPUs []string `json:"gpus,omitempty"`
	// GPULinks are the fastest links that the GPUs and their slots support, by PCI address. An idle GPU lowers the speed of its link,
	// so what a link has now shows nothing.
	GPULinks map[string]Link `json:"gpuLinks,omitempty"`
	// NVLink is yes if NVLink joins the GPUs, empty if that is unknown.
	NVLink Answer `json:"nvLink,omitempty"`
	// Interfaces are in the pod's network namespace, in the kernel's order.
	Interfaces []Interface `json:"interfaces,omitempty"`
	// PodInterface has the default route: the pod network's.
	PodInterface string         `json:"podInterface,omitempty"`
	Memory       Memlock        `json:"memlock"`
	IOMMU        IOMMU          `json:"iommu"`
	GPUDirect    GPUDirect      `json:"gpuDirect"`
	Findings     []fail.Finding `json:"findings,omitempty"`
}

// Device is one RDMA device, as in /sys/class/infiniband.
type Device struct {
	Name string `json:"name"`
	// PCI is the address of its function, as in 0000:03:00.2.
	PCI string `json:"pci"`
	// Model is the card's, as ibv_devinfo names it: MT4129 is a ConnectX-7. Firmware is the version of its firmware. Either is "" if the
	// kernel does not show it.
	Model    string `json:"model,omitempty"`
	Firmware string `json:"firmware,omitempty"`
	// Auxiliary is the name of a scalable function, as in mlx5_core.sf.4, "" for other devices. PCI is the function that it is a part of.
	Auxiliary string `json:"auxiliary,omitempty"`
	// GivenBy is the evidence that the pod was given the device: the variable's name, or one of the constants GivenBy.
	GivenBy string `json:"givenBy"`
	// PhysicalFunction is the PCI address of a virtual function's physical one, "" for a physical function.
	PhysicalFunction string `json:"physicalFunction,omitempty"`
	// Uverbs is the name of its file in the container's /dev/infiniband, empty if there is none: then nothing can open the device.
	Uverbs string `json:"uverbs,omitempty"`
	// NoGUID is true if its node GUID is 0.
	NoGUID bool `json:"noGUID,omitempty"`
	// NUMA is the node that the device is on, -1 if the kernel does not know.
	NUMA int `json:"numa"`
	// PCIe and PCIeMaximum are the link of the card: a virtual function has none of its own.
	PCIe        Link `json:"pcie"`
	PCIeMaximum Link `json:"pcieMaximum"`
	// IOMMU is the type of its IOMMU group, as in identity or DMA-FQ, "" without one.
	IOMMU string `json:"iommu,omitempty"`
	// GPUs is the distance to each GPU, by its PCI address.
	GPUs  map[string]Distance `json:"gpus,omitempty"`
	Ports []Port              `json:"ports"`
}

// The values of GivenBy that are not variables.
const (
	// GivenByFile: the cluster file chooses it among the host's devices.
	GivenByFile = "network.rdma.devices"
	// GivenByDev: its device file is in the container.
	GivenByDev = deviceFiles
)

// deviceFiles is the folder of the devices' files, uverbs0 and so on.
const deviceFiles = "/dev/infiniband"

// The link layers, as sysfs has them.
const (
	InfiniBand = "InfiniBand"
	Ethernet   = "Ethernet"
)

// Port is one port of a device. State and PhysicalState are the kernel's words
// (linux:drivers/infiniband/core/sysfs.c), as in ACTIVE and LinkUp.
type Port struct {
	Number        int           `json:"number"`
	State         string        `json:"state"`
	PhysicalState string        `json:"physicalState"`
	LinkLayer     string        `json:"linkLayer"`
	Rate          BitsPerSecond `json:"rateBitsPerSecond"`
	GIDs          []GID         `json:"gids,omitempty"`
	// Netdev is the network interface of the port, empty if the pod has none.
	Netdev string `json:"netdev,omitempty"`
	// MTU of Netdev in bytes.
	MTU int `json:"mtu,omitempty"`
	// GIDIndex selects the RoCE v2 GID with an IPv4 address of this pod, or of the host with OfHost; -1 without one.
	GIDIndex int `json:"gidIndex"`
	// Address is the IPv4 address in the GID, with its subnet's length.
	Address netip.Prefix `json:"address,omitzero"`
	// OfHost is true if Address is the host's, and not one of the pod: then its subnet and routes are not known.
	OfHost bool `json:"ofHost,omitempty"`
	// Routes are the destinations that the kernel reaches by Netdev, in addition to its subnet.
	Routes []netip.Prefix `json:"routes,omitempty"`
}

// Active reports whether traffic can pass. NCCL uses no other port.
func (p Port) Active() bool { return p.State == "ACTIVE" }

// Usable reports whether the pod can use the port: RoCE needs an IPv4 address of the pod, InfiniBand has its own addresses.
func (p Port) Usable() bool {
	return p.Active() && (p.LinkLayer == InfiniBand || p.GIDIndex >= 0)
}

// Network identifies the ports of other nodes on the same rail: the subnet of the IPv4 GID,
// on InfiniBand the fabric's GID prefix. It is the zero prefix for a port without.
func (p Port) Network() netip.Prefix {
	if p.LinkLayer != InfiniBand {
		return p.Address.Masked()
	}
	if len(p.GIDs) == 0 {
		return netip.Prefix{}
	}
	return netip.PrefixFrom(p.GIDs[0].GID, 64).Masked()
}

// RailPort is a usable port and its device.
type RailPort struct {
	Device *Device
	Port   *Port
}

// HCA returns how NCCL names the port: its device, and the port's number if the device has several.
func (r RailPort) HCA() string {
	if len(r.Device.Ports) > 1 {
		return r.Device.Name + ":" + strconv.Itoa(r.Port.Number)
	}
	return r.Device.Name
}

// Rails returns the usable ports of the devices that can be opened, in the order of Devices.
func (f Facts) Rails() []RailPort {
	var rails []RailPort
	for d := range f.Devices {
		device := &f.Devices[d]
		for p := range device.Ports {
			if port := &device.Ports[p]; device.Uverbs != "" && port.Usable() {
				rails = append(rails, RailPort{device, port})
			}
		}
	}
	return rails
}

// Broken reports whether the node cannot use RDMA.
func (f Facts) Broken() bool {
	return slices.ContainsFunc(f.Findings, func(finding fail.Finding) bool { return finding.Level == fail.Broken })
}
