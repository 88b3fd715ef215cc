// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"cmp"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// zeroGUID is the node GUID of a virtual function to which nothing has given one.
var zeroGUID = regexp.MustCompile(`^[0:]+$`)

func (d *detector) device(name, givenBy string) Device {
	device := Device{Name: name, GivenBy: givenBy, Uverbs: d.uverbs(name), NUMA: -1}
	device.NoGUID = zeroGUID.MatchString(d.readText(classInfiniBand, name, "node_guid"))
	device.PCI = d.addressOf(name)
	device.Model, device.Firmware = d.readText(classInfiniBand, name, "hca_type"), d.readText(classInfiniBand, name, "fw_ver")
	if name := path.Base(d.functionOf(name)); auxiliaryDevice.MatchString(name) {
		device.Auxiliary = name
	}
	for _, number := range d.listNames(classInfiniBand, name, "ports") {
		if n, err := strconv.Atoi(number); err == nil {
			device.Ports = append(device.Ports, d.port(device, n))
		}
	}
	if device.PCI == "" {
		return device // one in software, as rxe
	}
	device.PhysicalFunction = addressIn(d.target(pciDevices, device.PCI, "physfn"))
	device.NUMA = d.numaNode(device.PCI)
	device.IOMMU = d.readText(iommuGroups, path.Base(d.target(pciDevices, device.PCI, "iommu_group")), "type")
	// The link registers of a virtual function are reserved: sysfs shows "Unknown" and 0.
	card := cmp.Or(device.PhysicalFunction, device.PCI)
	device.Model = cmp.Or(d.model(card), device.Model)
	device.PCIe = parseLink(d.readText(pciDevices, card, "current_link_speed"), d.readText(pciDevices, card, "current_link_width"))
	device.PCIeMaximum = d.maxLink(card)
	device.GPUs = map[string]Distance{}
	for _, gpu := range d.facts.GPUs {
		device.GPUs[gpu] = d.distance(device.PCI, gpu)
	}
	return device
}

// model returns the model of one of NVIDIA's cards by the ID of its physical function: the ID of a virtual function, which hca_type has, is
// the same for several models.
func (d *detector) model(card string) string {
	id, err := strconv.ParseUint(strings.TrimPrefix(d.readText(pciDevices, card, "device"), "0x"), 16, 16)
	if err != nil || d.readText(pciDevices, card, "vendor") != "0x15b3" {
		return ""
	}
	return "MT" + strconv.FormatUint(id, 10)
}

// functionOf returns the folder of a device's function: /sys/class/infiniband/mlx5_6 leads to .../0000:03:00.2/infiniband/mlx5_6.
func (d *detector) functionOf(device string) string {
	return path.Dir(path.Dir(d.target(classInfiniBand, device)))
}

// addressOf returns the PCI address of a device, empty for one in software. A scalable function has the address of its parent function:
// .../0000:03:00.0/mlx5_core.sf.4/infiniband/mlx5_8.
func (d *detector) addressOf(device string) string {
	folder := d.functionOf(device)
	for auxiliaryDevice.MatchString(path.Base(folder)) {
		folder = path.Dir(folder)
	}
	return addressIn(folder)
}

// addressIn returns the PCI address that ends a path, empty if none does.
func addressIn(folder string) string {
	if address := path.Base(folder); pciAddress.MatchString(address) {
		return address
	}
	return ""
}

func (d *detector) port(device Device, number int) Port {
	dir := path.Join(classInfiniBand, device.Name, "ports", strconv.Itoa(number))
	port := Port{
		Number:        number,
		State:         afterColon(d.readText(dir, "state")),
		PhysicalState: afterColon(d.readText(dir, "phys_state")),
		LinkLayer:     d.readText(dir, "link_layer"),
		Rate:          parseRate(d.readText(dir, "rate")),
		GIDs:          d.gids(dir),
		GIDIndex:      -1,
	}
	usable := slices.DeleteFunc(slices.Clone(port.GIDs), func(gid GID) bool { return gid.Type != RoCEv2 || !gid.IPv4().IsValid() })
	for _, gid := range usable {
		// An interface of the same name may be another one, in the host's namespace, so the address decides.
		if i, prefix := interfaceWith(d.facts.Interfaces, gid.IPv4()); i != nil {
			port.GIDIndex, port.Netdev, port.Address = gid.Index, i.Name, prefix
			break
		}
	}
	// The host's interfaces, and so their subnets and routes, are not known.
	ofHost := slices.IndexFunc(usable, func(gid GID) bool { return !gid.IPv4().IsLinkLocalUnicast() })
	if port.GIDIndex < 0 && port.LinkLayer != InfiniBand && ofHost >= 0 && d.hostDevicesForm() {
		address := usable[ofHost].IPv4()
		port.GIDIndex, port.Address, port.OfHost = usable[ofHost].Index, netip.PrefixFrom(address, address.BitLen()), true
	}
	netdevs := d.listNames(pciDevices, device.PCI, "net")
	if device.Auxiliary != "" {
		netdevs = d.listNames(d.functionOf(device.Name), "net")
	}
	if port.Netdev == "" && device.PCI != "" && len(netdevs) > 0 {
		port.Netdev = netdevs[0]
	}
	port.MTU = d.mtu(port.Netdev)
	port.Routes = routesBy(d.routes, port.Netdev)
	return port
}

// hostDevicesForm returns true in a privileged pod to which no device plugin gave devices.
func (d *detector) hostDevicesForm() bool {
	const capSysRawIO = 17 // no runtime gives it to other pods
	return d.allotted == 0 && d.facts.Memory.has(capSysRawIO)
}

// mtu returns an interface's MTU in bytes, 0 if there is no such interface.
func (d *detector) mtu(netdev string) int {
	if n, err := strconv.Atoi(d.readText("sys/class/net", netdev, "mtu")); err == nil {
		return n
	}
	if i := slices.IndexFunc(d.facts.Interfaces, func(i Interface) bool { return i.Name == netdev }); i >= 0 {
		return d.facts.Interfaces[i].MTU
	}
	return 0
}

// afterColon returns the word of "4: ACTIVE".
func afterColon(text string) string {
	_, word, _ := strings.Cut(text, ": ")
	return word
}

// The types of GIDs, as sysfs has them. InfiniBand's are of the first type too.
const (
	RoCEv1 = "IB/RoCE v1"
	RoCEv2 = "RoCE v2"
)

// GID is one entry of a port's table: an address as RDMA has it.
type GID struct {
	Index int        `json:"index"`
	GID   netip.Addr `json:"gid"`
	Type  string     `json:"type"`
	// Netdev is its interface, which may be one of another namespace.
	Netdev string `json:"netdev,omitempty"`
}

// IPv4 returns the IPv4 address in the GID, invalid if there is none.
func (g GID) IPv4() netip.Addr {
	if !g.GID.Is4In6() {
		return netip.Addr{}
	}
	return g.GID.Unmap()
}

// gids reads the table of a port. Its entries that are not used are zero, or cannot be
// read: EINVAL (linux:drivers/infiniband/core/sysfs.c).
func (d *detector) gids(port string) []GID {
	var gids []GID
	for _, name := range d.listNames(port, "gids") {
		index, err := strconv.Atoi(name)
		gid, err2 := netip.ParseAddr(d.readText(port, "gids", name))
		if err != nil || err2 != nil || !gid.Is6() || gid.IsUnspecified() {
			continue
		}
		gids = append(gids, GID{
			Index: index, GID: gid,
			Type:   d.readText(port, "gid_attrs/types", name),
			Netdev: d.readText(port, "gid_attrs/ndevs", name),
		})
	}
	return gids
}
