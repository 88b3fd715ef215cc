package attachment

import (
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"strings"
)

// Range is what an attachment gives addresses from: First to Last, both included.
type Range struct {
	Subnet      netip.Prefix
	First, Last netip.Addr
}

// String is the subnet, with the bounds where they are not its own.
func (r Range) String() string {
	if r == all(r.Subnet) {
		return r.Subnet.String()
	}
	return fmt.Sprintf("%s to %s of %s", r.First, r.Last, r.Subnet)
}

// Size is how many addresses there are, at most what 32 bits count.
func (r Range) Size() uint64 {
	first, last := r.First.As16(), r.Last.As16()
	for i := range 12 {
		if first[i] != last[i] {
			return math.MaxUint32
		}
	}
	number := func(b [16]byte) uint64 {
		return uint64(b[12])<<24 | uint64(b[13])<<16 | uint64(b[14])<<8 | uint64(b[15])
	}
	if r.Last.Less(r.First) {
		return 0
	}
	return number(last) - number(first) + 1
}

// all are the addresses of a subnet but its own and, in IPv4, the broadcast's, as
// whereabouts and host-local count them.
func all(subnet netip.Prefix) Range {
	subnet = subnet.Masked()
	bytes := subnet.Addr().AsSlice()
	for i := range bytes {
		host := min(max((i+1)*8-subnet.Bits(), 0), 8)
		bytes[i] |= byte(1<<host - 1)
	}
	last, _ := netip.AddrFromSlice(bytes)
	found := Range{Subnet: subnet, First: subnet.Addr().Next(), Last: last}
	if last.Is4() {
		found.Last = last.Prev()
	}
	return found
}

// ipam is what a CNI plugin's configuration says of addresses: whereabouts' range
// and ipRanges (k8snetworkplumbingwg/whereabouts:doc/extended-configuration.md),
// host-local's subnet and ranges (containernetworking/plugins).
type ipam struct {
	Type       string `json:"type"`
	Range      string `json:"range"`
	RangeStart string `json:"range_start"`
	RangeEnd   string `json:"range_end"`
	IPRanges   []struct {
		Range      string `json:"range"`
		RangeStart string `json:"range_start"`
		RangeEnd   string `json:"range_end"`
	} `json:"ipRanges"`
	hostLocal
	Ranges [][]hostLocal `json:"ranges"`
}

type hostLocal struct {
	Subnet     string `json:"subnet"`
	RangeFirst string `json:"rangeStart"`
	RangeLast  string `json:"rangeEnd"`
}

// RangesOf reads the ranges of an attachment's spec.config, a CNI configuration or a
// list of them. problem says why there is none to be known.
func RangesOf(config string) (found []Range, problem string) {
	var conf struct {
		IPAM    ipam `json:"ipam"`
		Plugins []struct {
			IPAM ipam `json:"ipam"`
		} `json:"plugins"`
	}
	if strings.TrimSpace(config) == "" {
		return nil, "its spec.config is empty: the CNI configuration lies on the nodes"
	}
	if err := json.Unmarshal([]byte(config), &conf); err != nil {
		return nil, fmt.Sprintf("its spec.config cannot be read: %v", err)
	}
	from := conf.IPAM
	for _, plugin := range conf.Plugins {
		if from.Type == "" {
			from = plugin.IPAM
		}
	}
	asked := [][3]string{}
	add := func(subnet, first, last string) {
		if subnet != "" {
			asked = append(asked, [3]string{subnet, first, last})
		}
	}
	add(from.Range, from.RangeStart, from.RangeEnd)
	for _, r := range from.IPRanges {
		add(r.Range, r.RangeStart, r.RangeEnd)
	}
	add(from.Subnet, from.RangeFirst, from.RangeLast)
	for _, set := range from.Ranges {
		for _, r := range set {
			add(r.Subnet, r.RangeFirst, r.RangeLast)
		}
	}
	for _, a := range asked {
		r, err := parseRange(a[0], a[1], a[2])
		if err != nil {
			return nil, fmt.Sprintf("its range %s cannot be read: %v", a[0], err)
		}
		found = append(found, r)
	}
	switch {
	case len(found) > 0:
		return found, ""
	case from.Type == "":
		return nil, "its spec.config has no ipam, so it gives no addresses"
	}
	return nil, fmt.Sprintf("ipam %s does not say its range here", from.Type)
}

// parseRange reads "10.0.103.0/24" and whereabouts' "10.0.103.10-10.0.103.20/24",
// with the first and last address where they are said apart.
func parseRange(text, first, last string) (Range, error) {
	if from, to, both := strings.Cut(text, "-"); both {
		address, bits, _ := strings.Cut(to, "/")
		first, last, text = strings.TrimSpace(from), strings.TrimSpace(address), strings.TrimSpace(from)+"/"+bits
	}
	subnet, err := netip.ParsePrefix(strings.TrimSpace(text))
	if err != nil {
		return Range{}, err
	}
	found := all(subnet)
	for _, bound := range []struct {
		text string
		into *netip.Addr
	}{{first, &found.First}, {last, &found.Last}} {
		if bound.text == "" {
			continue
		}
		if *bound.into, err = netip.ParseAddr(bound.text); err != nil {
			return Range{}, err
		}
	}
	return found, nil
}
