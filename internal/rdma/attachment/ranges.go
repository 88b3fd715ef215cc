// SPDX-License-Identifier: Apache-2.0

package attachment

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
)

// Range is a range of addresses that an attachment gives: First to Last, both included.
type Range struct {
	Subnet      netip.Prefix
	First, Last netip.Addr
}

// String returns the subnet, with the bounds unless they are the subnet's own.
func (r Range) String() string {
	if r == all(r.Subnet) {
		return r.Subnet.String()
	}
	return fmt.Sprintf("%s to %s of %s", r.First, r.Last, r.Subnet)
}

// Size returns the number of addresses, at most math.MaxUint32.
func (r Range) Size() uint64 {
	if r.Last.Less(r.First) {
		return 0
	}
	first, last := r.First.As16(), r.Last.As16()
	if !bytes.Equal(first[:8], last[:8]) {
		return math.MaxUint32
	}
	between := binary.BigEndian.Uint64(last[8:]) - binary.BigEndian.Uint64(first[8:])
	return min(between, math.MaxUint32-1) + 1
}

// all returns the addresses of a subnet except its own and, in IPv4, the broadcast address, as
// whereabouts and host-local count them.
func all(subnet netip.Prefix) Range {
	subnet = subnet.Masked()
	address := subnet.Addr().AsSlice()
	for i := range address {
		host := min(max((i+1)*8-subnet.Bits(), 0), 8)
		address[i] |= byte(1<<host - 1)
	}
	last, _ := netip.AddrFromSlice(address)
	found := Range{Subnet: subnet, First: subnet.Addr().Next(), Last: last}
	if last.Is4() {
		found.Last = last.Prev()
	}
	return found
}

// ipamRange is a range in the configuration of whereabouts (k8snetworkplumbingwg/whereabouts:doc/extended-configuration.md) or of
// host-local (containernetworking/plugins).
type ipamRange struct {
	Range  string `json:"range"`
	Start  string `json:"range_start"`
	End    string `json:"range_end"`
	Subnet string `json:"subnet"`
	First  string `json:"rangeStart"`
	Last   string `json:"rangeEnd"`
}

// ipam has one range, or whereabouts' ipRanges, or host-local's ranges.
type ipam struct {
	Type string `json:"type"`
	ipamRange
	IPRanges []ipamRange   `json:"ipRanges"`
	Ranges   [][]ipamRange `json:"ranges"`
}

// hostLocal is the IPAM plugin that gives addresses on each Kubernetes node by itself.
const hostLocal = "host-local"

// RangesOf reads the ranges of an attachment's spec.config, a CNI configuration or a list of them, and its IPAM plugin. problem is why the
// ranges are not known.
func RangesOf(config string) (found []Range, plugin, problem string) {
	var conf struct {
		IPAM    ipam `json:"ipam"`
		Plugins []struct {
			IPAM ipam `json:"ipam"`
		} `json:"plugins"`
	}
	if strings.TrimSpace(config) == "" {
		return nil, "", "its spec.config is empty: the CNI configuration is on the nodes"
	}
	if err := json.Unmarshal([]byte(config), &conf); err != nil {
		return nil, "", fmt.Sprintf("its spec.config cannot be read: %v", err)
	}
	from := conf.IPAM
	for _, plugin := range conf.Plugins {
		if from.Type == "" {
			from = plugin.IPAM
		}
	}
	for _, r := range slices.Concat([]ipamRange{from.ipamRange}, from.IPRanges, slices.Concat(from.Ranges...)) {
		text := cmp.Or(r.Range, r.Subnet)
		if text == "" {
			continue
		}
		parsed, err := parseRange(text, cmp.Or(r.Start, r.First), cmp.Or(r.End, r.Last))
		if err != nil {
			return nil, from.Type, fmt.Sprintf("its range %s cannot be read: %v", text, err)
		}
		found = append(found, parsed)
	}
	switch {
	case len(found) > 0:
		return found, from.Type, ""
	case from.Type == "":
		return nil, "", "its spec.config has no ipam, so it gives no addresses"
	}
	return nil, from.Type, fmt.Sprintf("ipam %s does not name its range here", from.Type)
}

// masterOf returns the first plugin of a CNI configuration that makes an interface, and the host's interface on which it does.
func masterOf(config string) (plugin, master string) {
	type link struct {
		Type   string `json:"type"`
		Master string `json:"master"`
	}
	var conf struct {
		link
		Plugins []link `json:"plugins"`
	}
	_ = json.Unmarshal([]byte(config), &conf) // RangesOf reports the error
	if conf.Type == "" && len(conf.Plugins) > 0 {
		conf.link = conf.Plugins[0]
	}
	return conf.Type, conf.Master
}

// parseRange reads "10.0.103.0/24" and whereabouts' "10.0.103.10-10.0.103.20/24",
// with the first and last address if they are given.
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
	if first != "" {
		found.First, err = netip.ParseAddr(first)
	}
	if last != "" && err == nil {
		found.Last, err = netip.ParseAddr(last)
	}
	if err != nil {
		return Range{}, err
	}
	return found, nil
}
