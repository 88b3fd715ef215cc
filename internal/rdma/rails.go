package rdma

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// Rail is one network of a training and the ports that the nodes have on it. Ports of
// different nodes belong together by the subnet of their IPv4 GIDs, on InfiniBand by
// the fabric: never by name or position, which differ between nodes.
type Rail struct {
	Network netip.Prefix
	// Ports are those of each node, by the node's number. On InfiniBand all ports of a
	// node are mostly on one fabric.
	Ports [][]RailPort
}

// Common is true where every node has a port.
func (r Rail) Common() bool {
	return !slices.ContainsFunc(r.Ports, func(ports []RailPort) bool { return len(ports) == 0 })
}

// Rails matches the usable ports of the nodes, in the order of their networks.
func Rails(nodes []Facts) []Rail {
	rails := map[netip.Prefix]*Rail{}
	for n, node := range nodes {
		for _, port := range node.Rails() {
			network := port.Port.Network()
			if rails[network] == nil {
				rails[network] = &Rail{Network: network, Ports: make([][]RailPort, len(nodes))}
			}
			rails[network].Ports[n] = append(rails[network].Ports[n], port)
		}
	}
	var result []Rail
	for _, network := range slices.SortedFunc(maps.Keys(rails), netip.Prefix.Compare) {
		result = append(result, *rails[network])
	}
	return result
}

// commonPorts are a node's usable ports on the rails that all nodes have, in the order
// of its devices.
func commonPorts(nodes []Facts, node int) []RailPort {
	common := map[netip.Prefix]bool{}
	for _, rail := range Rails(nodes) {
		common[rail.Network] = rail.Common()
	}
	return slices.DeleteFunc(nodes[node].Rails(), func(port RailPort) bool { return !common[port.Port.Network()] })
}

// Compare finds what does not fit between the nodes of a training. Findings of single
// nodes are in their facts.
func Compare(nodes []Facts) []fail.Finding {
	var numbers []int
	for n := range nodes {
		numbers = append(numbers, n)
	}
	return CompareSome(nodes, numbers)
}

// CompareSome is Compare of some nodes of a training, as of those that answer: numbers are
// theirs in it.
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
			networks = append(networks, rail.Network.String())
		}
		found(fail.Broken, NoCommonRail, "matching the rails of %d nodes: no network has ports of all of them, seen are %s: want at least one", len(nodes), orNone(networks))
	}
	for _, rail := range rails {
		most, first := 0, RailPort{}
		for n, ports := range rail.Ports {
			most = max(most, len(ports))
			for _, port := range ports {
				if first.Port == nil {
					first = port
				}
				if port.Port.Rate != first.Port.Rate {
					found(fail.Degraded, RailDiffers, "rail %s: %s on node %d has %s, %s has %s: want the same rate", rail.Network, port.Device.Name, numbers[n], port.Port.Rate, first.Device.Name, first.Port.Rate)
				}
				if port.Port.MTU != first.Port.MTU {
					found(fail.Degraded, RailDiffers, "rail %s: %s on node %d has MTU %d, %s has %d: want the same: large messages hang where it differs", rail.Network, port.Device.Name, numbers[n], port.Port.MTU, first.Device.Name, first.Port.MTU)
				}
			}
		}
		for n, ports := range rail.Ports {
			if len(ports) < most {
				found(fail.Degraded, RailMissing, "rail %s: node %d has %d usable ports on it, another has %d: want the same on every node", rail.Network, numbers[n], len(ports), most)
			}
		}
	}
	return slices.Concat(findings, addressesTwice(nodes, numbers), railOrder(nodes, numbers))
}

// railOrder compares in which order the nodes have their isolated rails on PCIe. NCCL
// joins devices by their place in the node and does not look at their subnets
// (https://github.com/NVIDIA/nccl/issues/1755).
func railOrder(nodes []Facts, numbers []int) []fail.Finding {
	if !Isolated(nodes) {
		return nil
	}
	order := func(node int) string {
		ports := commonPorts(nodes, node)
		slices.SortStableFunc(ports, func(a, b RailPort) int { return strings.Compare(a.Device.PCI, b.Device.PCI) })
		var networks []string
		for _, port := range ports {
			networks = append(networks, port.Port.Network().String())
		}
		return strings.Join(networks, ", ")
	}
	var findings []fail.Finding
	for n := 1; n < len(nodes); n++ {
		if first, other := order(0), order(n); first != other {
			findings = append(findings, fail.Finding{Level: fail.Degraded, Reason: RailOrder,
				Seen: fmt.Sprintf("by PCI address node %d has the rails %s, node %d has %s: want the same order: NCCL joins devices by their place, and these have no route to each other", numbers[0], first, numbers[n], other)})
		}
	}
	return findings
}

// addressesTwice finds ports with one address, as attachments with overlapping ranges give them.
func addressesTwice(nodes []Facts, numbers []int) []fail.Finding {
	holders := map[netip.Addr][]string{}
	var order []netip.Addr
	for n, node := range nodes {
		for _, rail := range node.Rails() {
			if address := rail.Port.Address.Addr(); address.IsValid() {
				if holders[address] == nil {
					order = append(order, address)
				}
				holders[address] = append(holders[address], fmt.Sprintf("%s on node %d", rail.Device.Name, numbers[n]))
			}
		}
	}
	var findings []fail.Finding
	for _, address := range order {
		if at := holders[address]; len(at) > 1 {
			findings = append(findings, fail.Finding{Level: fail.Broken, Reason: AddressTwice, Next: "oc get network-attachment-definitions -A -o yaml (and look for ranges that overlap)",
				Seen: fmt.Sprintf("address %s is that of %s: want an address for each port", address, strings.Join(at, " and of "))})
		}
	}
	return findings
}

// Isolated is true where a port of some node cannot reach the networks of the other
// rails: its interface has no route there. A policy rule with a table of its own is
// not seen, and counts as no route, which is the safe side.
func Isolated(nodes []Facts) bool {
	rails := Rails(nodes)
	for _, rail := range rails {
		for _, ports := range rail.Ports {
			for _, port := range ports {
				if slices.ContainsFunc(rails, func(other Rail) bool { return !port.Port.reaches(other.Network) }) {
					return true
				}
			}
		}
	}
	return false
}

// reaches is true where the port has a way to a network.
func (p *Port) reaches(network netip.Prefix) bool {
	if p.Network() == network {
		return true
	}
	return slices.ContainsFunc(p.Routes, func(to netip.Prefix) bool {
		return to.Bits() <= network.Bits() && to.Contains(network.Addr())
	})
}
