package rdma

import "github.com/ml-dev-env/ml-dev-env/internal/fail"

// The reasons of findings in one node.
const (
	// NoDevice: the pod has no RDMA device.
	NoDevice fail.Reason = "NoDevice"
	// DeviceMissing: a function from the device plugin has no RDMA device.
	DeviceMissing fail.Reason = "DeviceMissing"
	// DeviceRenamed: the device plugin's name for a device is not the device's name.
	DeviceRenamed fail.Reason = "DeviceRenamed"
	// DeviceFileMissing: the container has no device file for an RDMA device.
	DeviceFileMissing fail.Reason = "DeviceFileMissing"
	// VariableUnreadable: a device plugin's variable has an unknown form.
	VariableUnreadable fail.Reason = "VariableUnreadable"
	// InterfacesUnknown: the network interfaces could not be listed.
	InterfacesUnknown fail.Reason = "InterfacesUnknown"
	// NoRail: no port of the devices is usable.
	NoRail fail.Reason = "NoRail"
	// PortDown: a port is not active.
	PortDown fail.Reason = "PortDown"
	// NoGID: a RoCE port has no RoCE v2 GID with an IPv4 address of the pod.
	NoGID fail.Reason = "NoGID"
	// HostGID: a RoCE port's GID has an address of the host, which a pod with the host's devices may be able to use.
	HostGID fail.Reason = "HostGID"
	// GIDChoice: NCCL would choose another GID than the pod's, and no setting can change that.
	GIDChoice fail.Reason = "GIDChoice"
	// LinkLayersMixed: some ports are InfiniBand and some Ethernet.
	LinkLayersMixed fail.Reason = "LinkLayersMixed"
	// RatesMixed: the ports have different rates.
	RatesMixed fail.Reason = "RatesMixed"
	// PCIeBelowMaximum: a card's PCIe link is slower or narrower than the card supports.
	PCIeBelowMaximum fail.Reason = "PCIeBelowMaximum"
	// PCIeBelowPort: a card's PCIe link is slower than its port.
	PCIeBelowPort fail.Reason = "PCIeBelowPort"
	// SubnetShared: several RoCE ports of a node are in one subnet.
	SubnetShared fail.Reason = "SubnetShared"
	// MemoryLimited: the memory that can be locked is too small.
	MemoryLimited fail.Reason = "MemoryLimited"
	// IOMMUTranslates: the IOMMU translates the devices' addresses.
	IOMMUTranslates fail.Reason = "IOMMUTranslates"
	// NoGPUDirect: data between GPU and NIC is copied through the host's memory.
	NoGPUDirect fail.Reason = "NoGPUDirect"
)

// The reasons of findings where detection and the cluster file differ.
const (
	// DevicesDiffer: the detected devices are not those of network.rdma.devices.
	DevicesDiffer fail.Reason = "DevicesDiffer"
	// InterfacesDiffer: the detected interfaces are not those of network.rdma.interfaces.
	InterfacesDiffer fail.Reason = "InterfacesDiffer"
	// SettingDiffers: a value of network.rdma does not match the detected devices.
	SettingDiffers fail.Reason = "SettingDiffers"
)

// The reasons of findings between nodes.
const (
	// RailMissing: a node has fewer ports on a network than another node.
	RailMissing fail.Reason = "RailMissing"
	// NoCommonRail: no network has ports on all nodes.
	NoCommonRail fail.Reason = "NoCommonRail"
	// RailDiffers: the ports of a network differ in rate or MTU.
	RailDiffers fail.Reason = "RailDiffers"
	// RailOrder: the nodes have isolated rails in a different order on PCIe.
	RailOrder fail.Reason = "RailOrder"
	// AddressTwice: two ports have the same address.
	AddressTwice fail.Reason = "AddressTwice"
)
