package rdma

// Finding is something that people should know of a node, or of several together.
type Finding struct {
	Severity Severity `json:"severity"`
	Kind     Kind     `json:"kind"`
	// Text names the object, what was seen and what was wanted.
	Text string `json:"text"`
	// Next is what would show or mend it. It may be empty.
	Next string `json:"next,omitempty"`
}

// Severity says what a finding means for a training.
type Severity string

// The severities.
const (
	// Broken: RDMA cannot be used, or ends with an error.
	Broken Severity = "broken"
	// Degraded: RDMA works, and not as it could.
	Degraded Severity = "degraded"
	// Note: nothing is wrong by itself.
	Note Severity = "note"
)

// Kind is one word that says what a finding is about.
type Kind string

// The kinds of findings in one node.
const (
	// NoDevice: the pod has no RDMA device.
	NoDevice Kind = "NoDevice"
	// DeviceMissing: a device plugin gave a function that has no RDMA device.
	DeviceMissing Kind = "DeviceMissing"
	// DeviceRenamed: a device plugin's name for a device is not its name.
	DeviceRenamed Kind = "DeviceRenamed"
	// DeviceFileMissing: the container has no file to open the device by.
	DeviceFileMissing Kind = "DeviceFileMissing"
	// VariableUnreadable: a device plugin's variable is in no form that is known.
	VariableUnreadable Kind = "VariableUnreadable"
	// InterfacesUnknown: the network interfaces could not be listed.
	InterfacesUnknown Kind = "InterfacesUnknown"
	// NoRail: not one port of the devices can be used.
	NoRail Kind = "NoRail"
	// PortDown: a port is not active.
	PortDown Kind = "PortDown"
	// NoGID: a RoCE port has no RoCE v2 GID with an IPv4 address of the pod.
	NoGID Kind = "NoGID"
	// GIDChoice: NCCL would choose another GID than the pod's, and cannot be told better.
	GIDChoice Kind = "GIDChoice"
	// LinkLayersMixed: some ports are InfiniBand and some Ethernet.
	LinkLayersMixed Kind = "LinkLayersMixed"
	// RatesMixed: the ports have different rates.
	RatesMixed Kind = "RatesMixed"
	// PCIeBelowMaximum: a card's link is slower or narrower than the card can.
	PCIeBelowMaximum Kind = "PCIeBelowMaximum"
	// PCIeBelowPort: a card's link carries less than its port.
	PCIeBelowPort Kind = "PCIeBelowPort"
	// SubnetShared: several RoCE ports of a node are in one subnet.
	SubnetShared Kind = "SubnetShared"
	// MemoryLimited: too little memory can be locked.
	MemoryLimited Kind = "MemoryLimited"
	// IOMMUTranslates: the IOMMU translates the devices' addresses.
	IOMMUTranslates Kind = "IOMMUTranslates"
	// NoGPUDirect: data between GPU and NIC is copied through the host's memory.
	NoGPUDirect Kind = "NoGPUDirect"
)

// The kinds of findings where detection and the cluster file differ.
const (
	// DevicesDiffer: other devices than network.rdma.devices.
	DevicesDiffer Kind = "DevicesDiffer"
	// InterfacesDiffer: other interfaces than network.rdma.interfaces.
	InterfacesDiffer Kind = "InterfacesDiffer"
	// SettingDiffers: a number of network.rdma does not go with what was detected.
	SettingDiffers Kind = "SettingDiffers"
)

// The kinds of findings between nodes.
const (
	// RailMissing: a node has fewer ports on a network than another.
	RailMissing Kind = "RailMissing"
	// NoCommonRail: no network has ports of all nodes.
	NoCommonRail Kind = "NoCommonRail"
	// RailDiffers: the ports of a network differ in rate or MTU.
	RailDiffers Kind = "RailDiffers"
	// RailOrder: the nodes have isolated rails in different order on PCIe.
	RailOrder Kind = "RailOrder"
	// AddressTwice: two ports have one address.
	AddressTwice Kind = "AddressTwice"
)
