// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"slices"
	"strings"
)

// sockets chooses the interfaces on which ranks meet, from the rails that all nodes have. NCCL takes the first of
// them in the kernel's order. If that one is on different networks on different nodes, only one network is named.
func (p *planner) sockets() {
	names, first := railNames(p.nodes), map[string]bool{}
	for n := range p.nodes {
		interfaces := railInterfaces(p.nodes[n], commonPorts(p.nodes, n))
		if len(interfaces) == 0 {
			p.podNetwork()
			return
		}
		first[names[interfaces[0].Port]] = true
	}
	own := railInterfaces(p.own, p.ports)
	reason := "the interfaces of the rails that all nodes have"
	if len(first) > 1 {
		own = []RailPort{slices.MinFunc(own, func(a, b RailPort) int { return strings.Compare(names[a.Port], names[b.Port]) })}
		reason = "one network for all nodes: the kernel has the interfaces of the rails in another order on another node"
	}
	var netdevs []string
	for _, rail := range own {
		netdevs = append(netdevs, rail.Port.Netdev)
	}
	p.setEnv("NCCL_SOCKET_IFNAME", "="+strings.Join(netdevs, ","), "%s; ranks meet on %s", reason, own[0].Port.Network())
	p.setEnv("GLOO_SOCKET_IFNAME", own[0].Port.Netdev, "gloo takes one interface: the first of NCCL's")
}

func (p *planner) podNetwork() {
	if p.own.PodInterface == "" {
		p.setEnv("NCCL_SOCKET_IFNAME", "", "no interface has a default route: NCCL looks for one itself")
		return
	}
	const reason = "the pod network's interface: the rails have none that all nodes share"
	p.setEnv("NCCL_SOCKET_IFNAME", "="+p.own.PodInterface, reason)
	p.setEnv("GLOO_SOCKET_IFNAME", p.own.PodInterface, reason)
}

// railInterfaces returns a node's ports with an interface, in the kernel's order. Those of InfiniBand may have no address.
func railInterfaces(node Facts, ports []RailPort) []RailPort {
	order := map[string]int{}
	for _, i := range node.Interfaces {
		order[i.Name] = i.Index
	}
	ports = slices.DeleteFunc(slices.Clone(ports), func(rail RailPort) bool {
		_, known := order[rail.Port.Netdev]
		return !known || rail.Port.LinkLayer != Ethernet
	})
	slices.SortFunc(ports, func(a, b RailPort) int { return order[a.Port.Netdev] - order[b.Port.Netdev] })
	return ports
}
