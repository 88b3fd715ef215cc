// SPDX-License-Identifier: Apache-2.0

// Package rdma is a stand-in for RDMA NICs, which a test machine does not have: the functions of four cards as sysfs
// shows them, with the real addresses of the pods' interfaces. It has no verbs.
//
// A device plugin allocates the functions as the SR-IOV network device plugin does: PCIDEVICE_* and PCIDEVICE_*_INFO, and files in
// /dev/infiniband that are /dev/null. The CNI plugin sriov replaces the real one: net1 to net4 are macvlans on the node's eno5np0 to
// eno8np0, with MTU 9000, which are cables to four switches in the namespace mlenv-fabric; no route connects the switches. A sysfs tree at
// MLENV_SYS_ROOT, for mlenv-agent rdma --sys-root, has all devices of the node, as in shared RDMA namespace mode, with the GIDs of the
// interfaces' real addresses, PCIe, IOMMU groups, and GPUs on the same switches. Pods request the resources of their attachments
// automatically, as with the network resources injector, without its volume podnetinfo.
//
// With Shared, the device plugin gives pods as the RDMA shared device plugin does: every pod gets the files of all physical functions, and
// no variables. The attachments' macvlans are the real plugin's, which adds their GIDs to the table of the card, as the kernel does. The
// names of their interfaces are those of the pods, so several are net1.
//
// ib_write_bw sends by TCP on the device's interface, at a four-hundredth of the port's rate, and prints that.
package rdma

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// NIC is a card that every node has, at a link of 400 Gb/s.
type NIC struct {
	// Name is the name of its interface in the node's namespace.
	Name string
	// Bus is its PCI bus, as in "a3".
	Bus string
	// NUMA is the number of its NUMA node.
	NUMA int
	// Range is the network of its rail.
	Range string
}

// NICs are the NICs of each node, with Barcelona's names, addresses and networks. No route leads from one network to
// another.
var NICs = []NIC{
	{"eno5np0", "03", 0, "10.0.103.0/24"},
	{"eno6np0", "23", 0, "10.0.104.0/24"},
	{"eno7np0", "a3", 1, "10.0.105.0/24"},
	{"eno8np0", "c3", 1, "10.0.106.0/24"},
}

// SharedResource is the resource of all NICs that are Shared, named as in OpenShift's guide. Shares is how many pods may use them.
const (
	SharedResource = "rdma/rdma_shared_device_eth"
	Shares         = 63
)

// FunctionsEach is the number of virtual functions of a NIC. The clusters have one. With several, several environments
// can run in parallel here.
const FunctionsEach = 4

// Resource returns the resource name of the NIC's virtual functions, which pods request.
func (n NIC) Resource() string { return "openshift.io/" + n.Name + "rdma" }

// Attachment returns the name of the NetworkAttachmentDefinition of the NIC's rail.
func (n NIC) Attachment() string { return n.Name + "-network" }

// AttachmentConfig returns the CNI configuration of the NIC's rail: with Shared that of a MacvlanNetwork, otherwise the same as on the
// clusters.
func (n NIC) AttachmentConfig(form Form) string {
	if form == Shared {
		return fmt.Sprintf(
			`{"cniVersion":"0.3.1","name":%q,"type":"macvlan","master":%q,"mode":"bridge","mtu":9000,"ipam":{"type":"whereabouts","range":%q}}`,
			n.Attachment(), n.Name, n.Range)
	}
	return fmt.Sprintf(
		`{"cniVersion":"0.3.1","name":%q,"type":"sriov","vlan":0,"spoofchk":"off","trust":"on","vlanQoS":0,"link_state":"enable",`+
			`"ipam":{"type":"whereabouts","range":%q}}`,
		n.Attachment(), n.Range)
}

// Function is a PCI function of a NIC with an RDMA device.
type Function struct {
	NIC NIC
	// Number is 0 for the physical function, 1 and up for a virtual one.
	Number int
	// node is the number of its node, and device the number of its RDMA device.
	node, device int
}

// Address returns the function's PCI address.
func (f Function) Address() string {
	// Virtual functions begin at .2, as the second port of a card would be .1.
	number := f.Number
	if number > 0 {
		number++
	}
	return fmt.Sprintf("0000:%s:00.%d", f.NIC.Bus, number)
}

// HostAddress returns the address of the function's interface on a node with HostDevices.
func (f Function) HostAddress() netip.Prefix {
	rail := netip.MustParsePrefix(f.NIC.Range)
	address := rail.Addr().As4()
	address[3] = byte(10 + f.node)
	return netip.PrefixFrom(netip.AddrFrom4(address), rail.Bits())
}

// MAC returns the MAC of the function's network interface. As with hardware, it is the same for every pod.
func (f Function) MAC() string {
	return fmt.Sprintf("02:6d:6c:%02x:%s:%02x", f.node, f.NIC.Bus, f.Number)
}

// Device returns the name of the function's RDMA device.
func (f Function) Device() string { return "mlx5_" + strconv.Itoa(f.device) }

// Uverbs returns the name of the function's uverbs file in /dev/infiniband.
func (f Function) Uverbs() string { return f.file("uverbs") }

// Files returns the names of all files of the function in /dev/infiniband.
func (f Function) Files() []string {
	return []string{f.Uverbs(), f.file("umad"), f.file("issm")}
}

func (f Function) file(kind string) string { return kind + strconv.Itoa(f.device) }

// Form is the way in which pods get the NICs.
type Form string

// The forms.
const (
	// SRIOV means that device plugins give pods virtual functions, and attachments give them the interfaces.
	SRIOV Form = "sriov"
	// HostDevices means that privileged pods see the physical functions, whose interfaces and addresses belong to the
	// node.
	HostDevices Form = "host"
	// Shared means that a device plugin gives pods the physical functions, which all of them use at once, and attachments give each pod a
	// macvlan of each NIC.
	Shared Form = "shared"
	// NoNICs means that the node has no NICs.
	NoNICs Form = "none"
)

// Layout is the form of a node's NICs and the names of their devices. The zero Layout is SRIOV with the usual names.
type Layout struct {
	Form Form `json:"form"`
	// Devices has the device number of each NIC: the number for its first virtual function or, without virtual functions, for
	// its physical function. The other functions get the numbers that are free.
	Devices []int `json:"devices"`
}

// usualDevices are the device numbers of a layout without numbers, by node. They differ between the nodes, as on the
// clusters.
var usualDevices = [][]int{
	{6, 7, 8, 9},
	{2, 3, 4, 5},
	{6, 7, 10, 11},
}

// storage is a card that a node with HostDevices or Shared has in addition to the NICs. It is on no GPU's switch, and its link is
// active.
var storage = NIC{"eno1np0", "53", 0, "10.0.110.0/24"}

// Functions returns all functions of the node, NIC by NIC, each NIC's physical function first.
func (l Layout) Functions(node string) []Function {
	number, err := strconv.Atoi(strings.TrimPrefix(node, "node-"))
	if err != nil || number < 1 {
		number = 1
	}
	first := l.Devices
	if len(first) == 0 {
		first = usualDevices[(number-1)%len(usualDevices)]
	}
	var functions []Function
	switch l.Form {
	case NoNICs:
		return nil
	case HostDevices, Shared:
		for i, nic := range NICs {
			functions = append(functions, Function{NIC: nic, node: number, device: first[i]})
		}
		return append(functions, Function{NIC: storage, node: number})
	}
	taken := map[int]bool{}
	for _, d := range first {
		taken[d] = true
	}
	next := 0
	free := func() int {
		for taken[next] {
			next++
		}
		taken[next] = true
		return next
	}
	devices := make([][]int, len(NICs))
	for n := range FunctionsEach + 1 {
		for i := range NICs {
			if n == 1 {
				devices[i] = append(devices[i], first[i])
			} else {
				devices[i] = append(devices[i], free())
			}
		}
	}
	for i, nic := range NICs {
		for n, device := range devices[i] {
			functions = append(functions, Function{NIC: nic, Number: n, node: number, device: device})
		}
	}
	return functions
}

// Offers returns the amounts of the resources that the node's device plugins advertise. It has all resources, also with 0.
func (l Layout) Offers() map[string]int64 {
	offers := map[string]int64{SharedResource: 0}
	for _, nic := range NICs {
		offers[nic.Resource()] = 0
		if l.Form == SRIOV {
			offers[nic.Resource()] = FunctionsEach
		}
	}
	if l.Form == Shared {
		offers[SharedResource] = Shares
	}
	return offers
}

// FunctionAt returns the node's function with that PCI address.
func (l Layout) FunctionAt(node, address string) (Function, bool) {
	for _, f := range l.Functions(node) {
		if f.Address() == address {
			return f, true
		}
	}
	return Function{}, false
}
