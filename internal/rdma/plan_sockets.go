package rdma

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
)

// sockets chooses the interfaces on which ranks meet. Those of the rails that all nodes
// have are used. NCCL meets on the first of them in the kernel's order, so where that is
// on another network on another node, one network alone is named.
func (p *planner) sockets() {
	var own []railInterface
	first := map[netip.Prefix]bool{}
	for n := range p.nodes {
		interfaces := railInterfaces(p.nodes[n], commonPorts(p.nodes, n))
		if len(interfaces) == 0 {
			p.podNetwork()
			return
		}
		first[interfaces[0].network] = true
	}
	own = railInterfaces(p.own, p.ports)
	reason := "the interfaces of the rails that all nodes have"
	if len(first) > 1 {
		own = []railInterface{slices.MinFunc(own, func(a, b railInterface) int { return a.network.Compare(b.network) })}
		reason = "one network for all nodes: the kernel has the interfaces of the rails in another order on another node"
	}
	var names []string
	for _, i := range own {
		names = append(names, i.name)
	}
	p.set("NCCL_SOCKET_IFNAME", "="+strings.Join(names, ","), "%s; ranks meet on %s", reason, own[0].network)
	p.set("GLOO_SOCKET_IFNAME", own[0].name, "gloo takes one interface: the first of NCCL's")
}

func (p *planner) podNetwork() {
	if p.own.PodInterface == "" {
		p.set("NCCL_SOCKET_IFNAME", "", "no interface has a default route: NCCL looks for one itself")
		return
	}
	const reason = "the pod network's interface: the rails have none that all nodes share"
	p.set("NCCL_SOCKET_IFNAME", "="+p.own.PodInterface, reason)
	p.set("GLOO_SOCKET_IFNAME", p.own.PodInterface, reason)
}

type railInterface struct {
	name    string
	network netip.Prefix
	index   int
}

// railInterfaces are the interfaces of a node's ports, in the kernel's order. Those of
// InfiniBand may have no address.
func railInterfaces(node Facts, ports []RailPort) []railInterface {
	var interfaces []railInterface
	for _, port := range ports {
		i := slices.IndexFunc(node.Interfaces, func(i Interface) bool { return i.Name == port.Port.Netdev })
		if port.Port.LinkLayer == Ethernet && i >= 0 {
			interfaces = append(interfaces, railInterface{name: port.Port.Netdev, network: port.Port.Network(), index: node.Interfaces[i].Index})
		}
	}
	slices.SortFunc(interfaces, func(a, b railInterface) int { return cmp.Compare(a.index, b.index) })
	return interfaces
}
