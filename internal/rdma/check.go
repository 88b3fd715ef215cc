// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

func (d *detector) check(expected Expected) {
	if len(d.facts.Devices) == 0 {
		d.found(fail.Broken, NoDevice, "", "looking for RDMA devices: %s: want one that the pod was given", d.seen())
	}
	for _, device := range d.facts.Devices {
		d.checkDevice(device)
	}
	rails := d.facts.Rails()
	if len(d.facts.Devices) > 0 && len(rails) == 0 {
		next := ""
		if len(d.facts.Interfaces) > 0 && slices.ContainsFunc(d.facts.Devices, withoutAddress) {
			next = "see that the attachments of these devices are in network.rdma.attachments of the cluster file, and in the pod's annotation " +
				"k8s.v1.cni.cncf.io/network-status: they give it net1 and so on with an address each"
		}
		d.found(fail.Broken, NoRail, next, "looking for ports that can be used: the pod's devices (%d) have none: want at least one",
			len(d.facts.Devices))
	}
	if len(rails) > 0 {
		d.checkRails(rails)
		d.checkNode()
		d.compare(expected, rails)
	}
}

// seen returns what exists if the pod was given no device.
func (d *detector) seen() string {
	others := len(d.facts.Others)
	switch {
	case d.allotted > 0:
		return fmt.Sprintf("the %s* variables give %d functions, none of which has one", pluginPrefix, d.allotted)
	case others > 0:
		return fmt.Sprintf("the machine has %d, and this pod was given none: no %s* variable is set, and no file in %s opens one", others,
			pluginPrefix, deviceFiles)
	}
	return "there are none in /" + classInfiniBand
}

// withoutAddress reports whether the device is an Ethernet device whose port is active and has no address of the pod.
func withoutAddress(device Device) bool {
	return slices.ContainsFunc(device.Ports, func(p Port) bool { return p.Active() && p.LinkLayer != InfiniBand && p.GIDIndex < 0 })
}

func (d *detector) checkDevice(device Device) {
	if device.Uverbs == "" {
		d.found(fail.Degraded, DeviceFileMissing, "delete the pod, so that the device plugin gives it another one",
			"opening %s, given by %s: the container has no %s/uverbsN of it: want one", device.Name, device.GivenBy, deviceFiles)
	}
	// Not every device of a host is meant for training.
	severity := fail.Degraded
	if device.GivenBy == GivenByDev {
		severity = fail.Note
	}
	for _, port := range device.Ports {
		name := fmt.Sprintf("%s port %d", device.Name, port.Number)
		switch {
		case !port.Active():
			guid := ""
			if port.LinkLayer == InfiniBand && device.NoGUID {
				guid = ", node GUID 0"
			}
			d.found(severity, PortDown, device.waitsFor(port),
				"%s: state %s, physical state %s%s: want ACTIVE and LinkUp", name, port.State, port.PhysicalState, guid)
		case port.LinkLayer == InfiniBand && device.NoGUID:
			d.found(severity, PortDown, device.waitsFor(port), "%s: its node GUID is 0: want one that the subnet manager knows", name)
		case port.LinkLayer != InfiniBand && port.GIDIndex < 0:
			d.found(severity, NoGID, "ip -4 address (and the network attachments of the pod)",
				"%s: of its %d GIDs none is of type RoCE v2 with an IPv4 address of this pod: want one", name, len(port.GIDs))
		case port.OfHost:
			d.found(fail.Note, HostGID, "mlenv check-fabric proves whether it works",
				"%s: its GID %d has an address of the host, %s: whether a pod can use it is unproven", name, port.GIDIndex, port.Address.Addr())
		}
		if carries := device.PCIe.Rate(); carries > 0 && carries < port.Rate {
			d.found(fail.Note, PCIeBelowPort, "", "%s: the port's rate is %s, its PCIe link of %s carries %s", name, port.Rate, device.PCIe, carries)
		}
	}
	if device.PCIe != (Link{}) && (device.PCIe.Speed < device.PCIeMaximum.Speed || device.PCIe.Width < device.PCIeMaximum.Width) {
		d.found(fail.Degraded, PCIeBelowMaximum, "", "%s at %s: its PCIe link is %s: want %s, as the card can: look at the slot, its settings "+
			"and the seat of the card",
			device.Name, device.PCI, device.PCIe, device.PCIeMaximum)
	}
}

// waitsFor returns what an InfiniBand port needs to become ACTIVE. Only the subnet manager moves a port from INIT to ARMED and ACTIVE. A
// virtual function without GUID has none to find it by, and is DOWN or in INIT.
func (d Device) waitsFor(port Port) string {
	const manager = "see that a subnet manager runs in the fabric (sminfo on the node; opensm or UFM)"
	switch {
	case port.LinkLayer != InfiniBand:
		return ""
	case d.NoGUID:
		return "give the virtual function a GUID (guid or ib-kubernetes in the attachment's configuration; " +
			"ip link set PF vf N node_guid GUID), and " + manager + " that serves virtual functions"
	case slices.Contains([]string{"INIT", "ARMED"}, port.State) || port.PhysicalState == "LinkUp":
		return manager + " and serves this port's partition"
	}
	return ""
}

func (d *detector) checkRails(rails []RailPort) {
	byRate := func(a, b RailPort) int { return cmp.Compare(a.Port.Rate, b.Port.Rate) }
	slow, fast := slices.MinFunc(rails, byRate), slices.MaxFunc(rails, byRate)
	onNetwork := map[netip.Prefix][]string{}
	for _, rail := range rails {
		if rail.Port.LinkLayer != rails[0].Port.LinkLayer {
			d.found(fail.Degraded, LinkLayersMixed, "name the devices of one of them in network.rdma.devices, or in NCCL_IB_HCA in the nccl block",
				"%s is %s and %s is %s: want one link layer for a training", rails[0].Device.Name, rails[0].Port.LinkLayer, rail.Device.Name,
				rail.Port.LinkLayer)
			return
		}
		if rail.Port.LinkLayer == Ethernet {
			onNetwork[rail.Port.Network()] = append(onNetwork[rail.Port.Network()], rail.Device.Name)
		}
	}
	if slow.Port.Rate < fast.Port.Rate {
		d.found(fail.Degraded, RatesMixed, "", "%s has %s and %s has %s: want the same: NCCL gives all rails the same load, and waits for the "+
			"slowest",
			slow.Device.Name, slow.Port.Rate, fast.Device.Name, fast.Port.Rate)
	}
	for _, network := range slices.SortedFunc(maps.Keys(onNetwork), netip.Prefix.Compare) {
		if names := onNetwork[network]; len(names) > 1 {
			d.found(fail.Degraded, SubnetShared, "oc get network-attachment-definitions -A -o yaml (and look at their ranges)",
				"%s are all in %s: want a subnet for each rail: replies may leave by another rail than requests came in", strings.Join(names, ", "),
				network)
		}
	}
}

func (d *detector) checkNode() {
	if memory := d.facts.Memory; !memory.Enough() {
		d.found(fail.Broken, MemoryLimited, "give the pod's service account an SCC that allows IPC_LOCK and root, or raise CRI-O's "+
			"default_ulimits to memlock=-1:-1",
			"locking memory: %s: want IPC_LOCK to be effective, or a hard limit of %s or more: registering memory would fail with ENOMEM", memory,
			leastLocked)
	}
	if iommu := d.facts.IOMMU; iommu.Mode == IOMMUTranslated {
		d.found(fail.Degraded, IOMMUTranslates, "boot the node's kernel with iommu=pt (by a MachineConfig)",
			"IOMMU: it translates the devices' addresses (command line %q): want passthrough: GPUDirect may end with IBV_WC_LOC_PROT_ERR",
			iommu.CommandLine)
	}
	if direct := d.facts.GPUDirect; len(d.facts.GPUs) > 0 && !direct.Peermem && direct.DMABUF == No {
		d.found(fail.Degraded, NoGPUDirect, "load nvidia_peermem, or install the open kernel modules of the GPU's driver",
			"GPUDirect: %s: want one of the two", direct)
	}
}

func (d *detector) compare(expected Expected, rails []RailPort) {
	var names, netdevs []string
	for _, rail := range rails {
		names = append(names, rail.Device.Name)
		if rail.Port.Netdev != "" {
			netdevs = append(netdevs, rail.Port.Netdev)
		}
	}
	d.facts.Findings = append(d.facts.Findings, d.facts.OtherMTUs(expected.MTU)...)
	if len(expected.Devices) > 0 && !sameNames(names, expected.Devices) {
		severity := fail.Note
		if len(names) < len(expected.Devices) {
			severity = fail.Degraded
		}
		d.found(severity, DevicesDiffer, "", "network.rdma.devices has %s: usable are %s: what was detected is used",
			strings.Join(expected.Devices, ","), strings.Join(names, ","))
	}
	if len(expected.Interfaces) > 0 && !sameNames(netdevs, expected.Interfaces) {
		d.found(fail.Note, InterfacesDiffer, "", "network.rdma.interfaces has %s: the rails have %s: what was detected is used",
			strings.Join(expected.Interfaces, ","), orNone(netdevs))
	}
}

// OtherMTUs finds the rails whose interfaces have another MTU than the expected one, 0 for none.
func (f Facts) OtherMTUs(expected int) (findings []fail.Finding) {
	byMTU := map[int][]string{}
	for _, rail := range f.Rails() {
		if mtu := rail.Port.MTU; mtu > 0 && expected > 0 && mtu != expected {
			byMTU[mtu] = append(byMTU[mtu], rail.Port.Netdev)
		}
	}
	for _, mtu := range slices.Sorted(maps.Keys(byMTU)) {
		findings = append(findings, fail.Finding{
			Level: fail.Degraded, Reason: MTUDiffers,
			Seen: fmt.Sprintf("the MTU of %s is %d: want %d, as network.rdma.mtu has it", strings.Join(byMTU[mtu], ", "), mtu, expected),
			Next: "give the interfaces and the switch ports this MTU (spec.config of the network attachments), or correct network.rdma.mtu",
		})
	}
	return findings
}

func sameNames(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

func orNone(names []string) string { return cmp.Or(strings.Join(names, ","), "none") }

// Check returns the state of the node in one line, and whether it has no fault. A note is not a fault.
func (f Facts) Check() (line string, fine bool) {
	worst := slices.DeleteFunc(slices.Clone(f.Findings), func(finding fail.Finding) bool { return finding.Level == fail.Note })
	if len(worst) == 0 {
		return "fine: " + f.summary(), true
	}
	slices.SortStableFunc(worst, func(a, b fail.Finding) int { return a.Level.Compare(b.Level) })
	more := ""
	if len(worst) > 1 {
		more = fmt.Sprintf(" (and %d more)", len(worst)-1)
	}
	return fmt.Sprintf("%s: %s: %s%s", worst[0].Level, worst[0].Reason, worst[0].Seen, more), false
}

// summary returns "rails mlx5_6 (400 Gb/s, Ethernet), ...; expected 194.0 GB/s ...".
func (f Facts) summary() string {
	var rails []string
	for _, rail := range f.Rails() {
		rails = append(rails, fmt.Sprintf("%s (%s, %s)", rail.Device.Name, rail.Port.Rate, rail.Port.LinkLayer))
	}
	return fmt.Sprintf("rails %s; expected %s; GPUDirect %s; memory to lock %s; IOMMU %s",
		strings.Join(rails, ", "), f.ExpectedBandwidth(), f.GPUDirect.Describe(), f.Memory.MaxLockable(), f.IOMMU.Mode)
}
