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

// Rail is one network of a training and the ports that the nodes have on it. Ports of different nodes belong together
// by the subnet of their IPv4 GIDs, on InfiniBand by the fabric: never by name, which differs between nodes.
type Rail struct {
	// Network is the ports' subnet or fabric; with Slot, it is the subnet of one of the ports.
	Network netip.Prefix
	// Slot is set for ports in different subnets with routes to each other: it is the resource that gives them to pods, or the card's
	// PCI address where pods use the host's devices.
	Slot string
	// Ports has each node's ports, by the node's number. On InfiniBand all ports of a node are mostly on one fabric.
	Ports [][]RailPort
}

// Common reports whether every node has a port.
func (r Rail) Common() bool {
	return !slices.ContainsFunc(r.Ports, func(ports []RailPort) bool { return len(ports) == 0 })
}

// String returns the rail's network or slot.
func (r Rail) String() string { return cmp.Or(r.Slot, r.Network.String()) }

// Rails matches the usable ports of the nodes, in the order of their networks. Ports on networks that not all nodes have are
// matched by their slots.
func Rails(nodes []Facts) []Rail {
	matched := map[*Port]bool{}
	var result []Rail
	match := func(key func(RailPort) string, slots bool, fits func(Rail) bool) {
		rails := map[string]*Rail{}
		for n, node := range nodes {
			for _, port := range node.Rails() {
				if matched[port.Port] {
					continue
				}
				rail := rails[key(port)]
				if rail == nil {
					rail = &Rail{Network: port.Port.Network(), Ports: make([][]RailPort, len(nodes))}
					rails[key(port)] = rail
				}
				rail.Ports[n] = append(rail.Ports[n], port)
			}
		}
		for name, rail := range rails {
			if !fits(*rail) {
				continue
			}
			if slots {
				rail.Slot = name
			}
			result = append(result, *rail)
			for _, port := range slices.Concat(rail.Ports...) {
				matched[port.Port] = true
			}
		}
	}
	byNetwork := func(port RailPort) string { return port.Port.Network().String() }
	match(byNetwork, false, Rail.Common)
	match(RailPort.slot, true, func(r Rail) bool { return r.Common() && r.routed() })
	match(byNetwork, false, func(Rail) bool { return true })
	slices.SortFunc(result, func(a, b Rail) int { return cmp.Or(a.Network.Compare(b.Network), cmp.Compare(a.Slot, b.Slot)) })
	return result
}

// slot returns a name that ports of nodes have in common if the nodes were set up alike.
func (r RailPort) slot() string {
	if resource, ok := strings.CutPrefix(r.Device.GivenBy, pluginPrefix); ok {
		return strings.TrimSuffix(resource, "_INFO")
	}
	return cmp.Or(r.Device.PhysicalFunction, r.Device.PCI)
}

// routed reports whether each port reaches all others of the rail. Routes of the host are not known: check-fabric tries them.
func (r Rail) routed() bool {
	return !separate(slices.Concat(r.Ports...), func(from RailPort) bool { return !from.Port.OfHost })
}

// railNames returns the rails of the nodes' ports.
func railNames(nodes []Facts) map[*Port]string {
	names := map[*Port]string{}
	for _, rail := range Rails(nodes) {
		for _, port := range slices.Concat(rail.Ports...) {
			names[port.Port] = rail.String()
		}
	}
	return names
}

// commonPorts returns a node's usable ports on the rails that all nodes have, in the order of its devices.
func commonPorts(nodes []Facts, node int) []RailPort {
	common := map[*Port]bool{}
	for _, rail := range Rails(nodes) {
		for _, port := range rail.Ports[node] {
			common[port.Port] = rail.Common()
		}
	}
	return slices.DeleteFunc(nodes[node].Rails(), func(port RailPort) bool { return !common[port.Port] })
}

// Compare finds the differences between the nodes of a training that matter. Findings of single
// nodes are in their facts.
func Compare(nodes []Facts) []fail.Finding {
	var numbers []int
	for n := range nodes {
		numbers = append(numbers, n)
	}
	return CompareSome(nodes, numbers)
}

// CompareSome is Compare for some nodes of a training, for example those that answer. numbers are their numbers in it.
func CompareSome(nodes []Facts, numbers []int) []fail.Finding {
	if len(nodes) < 2 {
		return nil
	}
	var findings []fail.Finding
	found := func(level fail.Level, reason fail.Reason, format string, args ...any) {
		findings = append(findings, fail.Finding{Level: level, Reason: reason, Seen: fmt.Sprintf(format, args...)})
	}
	rails := Rails(nodes)
	if !slices.ContainsFunc(rails, Rail.Common) {
		var networks []string
		for _, rail := range rails {
			networks = append(networks, rail.String())
		}
		found(fail.Broken, NoCommonRail, "matching the rails of %d nodes: no network has ports of all of them, seen are %s: want at least one",
			len(nodes), orNone(networks))
	}
	for _, rail := range rails {
		most, first := 0, slices.Concat(rail.Ports...)[0]
		for n, ports := range rail.Ports {
			most = max(most, len(ports))
			for _, port := range ports {
				if port.Port.Rate != first.Port.Rate {
					found(fail.Degraded, RailDiffers, "rail %s: %s on node %d has %s, %s has %s: want the same rate", rail, port.Device.Name, numbers[n],
						port.Port.Rate, first.Device.Name, first.Port.Rate)
				}
				if here, there := port.Device.card(), first.Device.card(); here != there {
					found(fail.Note, RailDiffers, "rail %s: %s on node %d is %s, %s is %s: a card's firmware can limit its rate",
						rail, port.Device.Name, numbers[n], here, first.Device.Name, there)
				}
				if port.Port.MTU != first.Port.MTU {
					found(fail.Degraded, RailDiffers, "rail %s: %s on node %d has MTU %d, %s has %d: want the same: large messages hang if it differs",
						rail, port.Device.Name, numbers[n], port.Port.MTU, first.Device.Name, first.Port.MTU)
				}
			}
		}
		for n, ports := range rail.Ports {
			if len(ports) < most {
				found(fail.Degraded, RailMissing, "rail %s: node %d has %d usable ports on it, another has %d: want the same on every node", rail,
					numbers[n], len(ports), most)
			}
		}
	}
	return slices.Concat(findings, addressesTwice(nodes, numbers), railOrder(nodes, numbers))
}

// card returns for example "MT4129 with firmware 28.39.1002".
func (d Device) card() string {
	return cmp.Or(d.Model, "of an unknown model") + " with firmware " + cmp.Or(d.Firmware, "of an unknown version")
}

// railOrder compares the order of the nodes' isolated rails on PCIe. NCCL joins devices by their position in the node, not by their
// subnets (https://github.com/NVIDIA/nccl/issues/1755).
func railOrder(nodes []Facts, numbers []int) []fail.Finding {
	if !Isolated(nodes) {
		return nil
	}
	names := railNames(nodes)
	order := func(node int) string {
		ports := commonPorts(nodes, node)
		slices.SortStableFunc(ports, func(a, b RailPort) int { return strings.Compare(a.Device.PCI, b.Device.PCI) })
		var networks []string
		for _, port := range ports {
			networks = append(networks, names[port.Port])
		}
		return strings.Join(networks, ", ")
	}
	var findings []fail.Finding
	for n := 1; n < len(nodes); n++ {
		if first, other := order(0), order(n); first != other {
			findings = append(findings, fail.Finding{Level: fail.Degraded, Reason: RailOrder, Next: "put the cards of all nodes into the same " +
				"slots, name devices by PCI address (NAME_PCI of rdma-core's rename rule), or give the rails routes to each other",
				Seen: fmt.Sprintf("by PCI address node %d has the rails %s, node %d has %s: want the same order: NCCL joins devices by their place, "+
					"and these have no route to each other", numbers[0], first, numbers[n], other)})
		}
	}
	return findings
}

// addressesTwice finds ports with one address, as attachments with overlapping ranges give them.
func addressesTwice(nodes []Facts, numbers []int) []fail.Finding {
	holders := map[netip.Addr][]string{}
	for n, node := range nodes {
		for _, rail := range node.Rails() {
			if address := rail.Port.Address.Addr(); address.IsValid() {
				holders[address] = append(holders[address], fmt.Sprintf("%s on node %d", rail.Device.Name, numbers[n]))
			}
		}
	}
	var findings []fail.Finding
	for _, address := range slices.SortedFunc(maps.Keys(holders), netip.Addr.Compare) {
		if at := holders[address]; len(at) > 1 {
			findings = append(findings, fail.Finding{Level: fail.Broken, Reason: AddressTwice, Next: "oc get network-attachment-definitions -A -o " +
				"yaml (and look for ranges that overlap)",
				Seen: fmt.Sprintf("address %s is that of %s: want an address for each port", address, strings.Join(at, " and of "))})
		}
	}
	return findings
}

// Isolated reports whether a port of some node cannot reach the networks of the other rails: its interface has no route there. A policy
// rule with its own table counts as no route, which is the safe side.
func Isolated(nodes []Facts) bool {
	var ports []RailPort
	for _, node := range nodes {
		ports = append(ports, node.Rails()...)
	}
	return separate(ports, func(RailPort) bool { return true })
}

// separate reports whether one of the ports that count does not reach all others.
func separate(ports []RailPort, counts func(RailPort) bool) bool {
	return slices.ContainsFunc(ports, func(from RailPort) bool {
		return counts(from) && slices.ContainsFunc(ports, func(to RailPort) bool { return !from.Port.reaches(to.Port.Network()) })
	})
}

func (p *Port) reaches(network netip.Prefix) bool {
	if p.Network() == network {
		return true
	}
	return slices.ContainsFunc(p.Routes, func(to netip.Prefix) bool {
		return to.Bits() <= network.Bits() && to.Contains(network.Addr())
	})
}
