// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"encoding/binary"
	"encoding/hex"
	"math/bits"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// Interface is a network interface of the pod's namespace.
type Interface struct {
	Name string `json:"name"`
	// Index is the kernel's: NCCL and gloo meet the interfaces in its order.
	Index int `json:"index"`
	// MTU in bytes.
	MTU int `json:"mtu"`
	// Addresses are the IPv4 addresses, with the length of their subnets.
	Addresses []netip.Prefix `json:"addresses,omitempty"`
}

// SystemInterfaces lists the interfaces of this process's network namespace that are up.
func SystemInterfaces() ([]Interface, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var result []Interface
	for _, i := range interfaces {
		if i.Flags&net.FlagUp == 0 || i.Flags&net.FlagLoopback != 0 {
			continue
		}
		addresses, err := i.Addrs()
		if err != nil {
			return nil, err
		}
		found := Interface{Name: i.Name, Index: i.Index, MTU: i.MTU}
		for _, address := range addresses {
			if prefix, err := netip.ParsePrefix(address.String()); err == nil && prefix.Addr().Is4() {
				found.Addresses = append(found.Addresses, prefix)
			}
		}
		result = append(result, found)
	}
	return result, nil
}

// interfaceWith finds the interface that has an address, and the address with its subnet.
func interfaceWith(interfaces []Interface, address netip.Addr) (*Interface, netip.Prefix) {
	for i := range interfaces {
		for _, prefix := range interfaces[i].Addresses {
			if prefix.Addr() == address {
				return &interfaces[i], prefix
			}
		}
	}
	return nil, netip.Prefix{}
}

// route is one of the kernel's main table.
type route struct {
	netdev string
	to     netip.Prefix
	metric int
}

// readRoutes reads /proc/self/net/route (linux:net/ipv4/fib_trie.c, fib_route_seq_show), whose addresses are eight hexadecimal digits of
// a number in the machine's byte order. Routes of other tables are missing, and count as no route.
func (d *detector) readRoutes() []route {
	var routes []route
	for line := range strings.Lines(d.readText("proc/self/net/route")) {
		fields := strings.Fields(line)
		if len(fields) < 8 {
			continue
		}
		to, ok := hexAddress(fields[1])
		mask, ok2 := hexAddress(fields[7])
		flags, err := strconv.ParseUint(fields[3], 16, 32)
		metric, err2 := strconv.Atoi(fields[6])
		const up, reject = 0x1, 0x200
		if !ok || !ok2 || err != nil || err2 != nil || flags&up == 0 || flags&reject != 0 {
			continue // the head line too
		}
		m := mask.As4()
		length := bits.OnesCount32(binary.BigEndian.Uint32(m[:]))
		routes = append(routes, route{netdev: fields[0], to: netip.PrefixFrom(to, length).Masked(), metric: metric})
	}
	return routes
}

func hexAddress(digits string) (netip.Addr, bool) {
	number, err := hex.DecodeString(digits)
	if err != nil || len(number) != 4 {
		return netip.Addr{}, false
	}
	// The digits are of the number as the machine reads it.
	var address [4]byte
	binary.NativeEndian.PutUint32(address[:], binary.BigEndian.Uint32(number))
	return netip.AddrFrom4(address), true
}

// defaultInterface has the default route of the least metric, empty if there is none.
func defaultInterface(routes []route) string {
	var best route
	for _, r := range routes {
		if r.to.Bits() == 0 && (best.netdev == "" || r.metric < best.metric) {
			best = r
		}
	}
	return best.netdev
}

func routesBy(routes []route, netdev string) (to []netip.Prefix) {
	for _, r := range routes {
		if r.netdev == netdev {
			to = append(to, r.to)
		}
	}
	return to
}
