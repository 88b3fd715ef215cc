// SPDX-License-Identifier: Apache-2.0

package nccl

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

// Summary is what one or several logs show.
type Summary struct {
	// Transport is the slowest that any rank has, Unknown as long as one is not known (and none is on sockets).
	Transport Transport `json:"transport"`
	// Versions and Networks are NCCL's and those that it chose, sorted; more than one is worth a look.
	Versions []string `json:"versions,omitempty"`
	Networks []string `json:"networks,omitempty"`
	// Ranks are sorted by their number.
	Ranks []Rank `json:"ranks,omitempty"`
	// Rails are sorted by host and name.
	Rails []Rail `json:"rails,omitempty"`
	// Findings are sorted: consequences of others come last, and otherwise the earlier line first.
	Findings  []Finding `json:"findings,omitempty"`
	Processes []Process `json:"processes,omitempty"`
	// LeftOut counts what was beyond the bounds of the reader.
	LeftOut int `json:"leftOut,omitempty"`
}

// Rank is one of the ranks of a training, by its largest communicator.
type Rank struct {
	Rank      int       `json:"rank"`
	Host      string    `json:"host"`
	PID       int       `json:"pid"`
	Transport Transport `json:"transport"`
	// Rails are the names of the devices and interfaces that it uses.
	Rails []string `json:"rails,omitempty"`
}

// Rail is a device or interface of a host, with what goes over it.
type Rail struct {
	Host   string `json:"host"`
	Name   string `json:"name"`
	Device Device `json:"device,omitzero"`
	// Transport is the slowest of its channels', empty without channels.
	Transport Transport `json:"transport,omitempty"`
	// Channels counts ends of channels: those that send and those that receive.
	Channels int `json:"channels"`
}

// Merge combines the summaries of several logs of one run, such as its nodes' logs.
func Merge(summaries ...Summary) Summary {
	var processes []Process
	leftOut := 0
	for _, s := range summaries {
		processes = append(processes, s.Processes...)
		leftOut += s.LeftOut
	}
	return summarize(processes, leftOut)
}

// RanksOn returns the ranks that have the transport.
func (s Summary) RanksOn(transport Transport) []Rank {
	return slices.DeleteFunc(slices.Clone(s.Ranks), func(r Rank) bool { return r.Transport != transport })
}

// Unproven returns why the log does not prove RDMA between the nodes, as a clause. It is "" if the log does, and for ranks on sockets.
func (s Summary) Unproven() string {
	if s.Transport == Sockets {
		return ""
	}
	var others []string
	inside := false
	for i := range s.Processes {
		for _, c := range s.Processes[i].Communicators {
			for _, route := range c.Routes {
				switch route.Transport {
				case RDMAGPU, RDMAHost, MultiNodeNVLink:
					return ""
				case WithinNode:
					inside = true
				case Unknown, Sockets:
					others = addName(others, route.Network)
				}
			}
		}
	}
	switch {
	case len(others) > 0:
		return "the ranks reach each other by NET/" + strings.Join(others, ", NET/") + ", and whether that is RDMA is not known"
	case inside:
		return "NCCL's log shows channels within the node only"
	}
	return "NCCL's log shows no channel"
}

// String returns the verdict in one line: "RDMA with GPUDirect, 8 ranks, on mlx5_6 mlx5_7".
func (s Summary) String() string {
	text := s.Transport.DisplayName() + ", " + humanize.Count(len(s.Ranks), "rank")
	var names []string
	for _, rail := range s.Rails {
		if rail.Channels > 0 {
			names = addName(names, rail.Name)
		}
	}
	if len(names) > 0 {
		text += ", on " + strings.Join(names, " ")
	}
	return text
}

func summarize(processes []Process, leftOut int) Summary {
	s := Summary{Transport: Unknown, Processes: processes, LeftOut: leftOut}
	var transport Transport
	rails := map[[2]string]*Rail{}
	for i := range processes {
		p := &processes[i]
		s.Versions = addName(s.Versions, p.Version)
		s.Networks = addName(s.Networks, p.Network)
		s.Findings = append(s.Findings, p.Findings...)
		p.addRails(rails)
		world := p.LargestCommunicator()
		if world == nil {
			continue
		}
		rank := Rank{Rank: world.Rank, Host: p.Host, PID: p.PID, Transport: p.Transport()}
		for _, c := range p.Communicators {
			for _, route := range c.Routes {
				rank.Rails = addName(rank.Rails, route.Rail)
			}
		}
		transport = slower(transport, rank.Transport)
		s.Ranks = append(s.Ranks, rank)
	}
	s.Transport = cmp.Or(transport, Unknown)
	slices.SortStableFunc(s.Ranks, func(a, b Rank) int {
		return cmp.Or(cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.Host, b.Host), cmp.Compare(a.PID, b.PID))
	})
	for _, key := range slices.SortedFunc(maps.Keys(rails), func(a, b [2]string) int { return slices.Compare(a[:], b[:]) }) {
		s.Rails = append(s.Rails, *rails[key])
	}
	if mismatch, found := mtuMismatch(s.Rails); found {
		s.Findings = append(s.Findings, mismatch)
	}
	sortFindings(s.Findings)
	return s
}

// addName keeps a list of names sorted and without doubles.
func addName(names []string, name string) []string {
	at, found := slices.BinarySearch(names, name)
	if name == "" || found {
		return names
	}
	return slices.Insert(names, at, name)
}

// addRails adds what a process shows of its host's devices and interfaces. rails are by host and name.
func (p *Process) addRails(rails map[[2]string]*Rail) {
	named := func(name string) *Rail {
		key := [2]string{p.Host, name}
		if rails[key] == nil {
			rails[key] = &Rail{Host: p.Host, Name: name}
		}
		return rails[key]
	}
	for _, device := range p.Devices {
		rail := named(device.Name)
		device.GPUDirect = cmp.Or(device.GPUDirect, rail.Device.GPUDirect)
		device.MTU = cmp.Or(device.MTU, rail.Device.MTU)
		device.GIDIndex = cmp.Or(device.GIDIndex, rail.Device.GIDIndex)
		rail.Device = device
	}
	for _, c := range p.Communicators {
		for _, route := range c.Routes {
			if route.Network == "" || route.Device == None {
				continue
			}
			rail := named(cmp.Or(route.Rail, fmt.Sprintf("%s/%d", route.Network, route.Device)))
			rail.Transport = slower(rail.Transport, route.Transport)
			rail.Channels += route.Channels
		}
	}
}

func sortFindings(findings []Finding) {
	last := map[bool]int{true: 1}
	slices.SortStableFunc(findings, func(a, b Finding) int {
		return cmp.Or(last[a.Consequence]-last[b.Consequence], cmp.Compare(a.Line, b.Line), cmp.Compare(a.Host, b.Host),
			cmp.Compare(a.PID, b.PID),
			cmp.Compare(a.Reason, b.Reason))
	})
}

// mtuMismatch compares the MTUs of all ports of one link layer. NCCL itself connects two such ports with the smaller
// one, but a switch or an interface with a smaller MTU still drops the larger frames.
func mtuMismatch(rails []Rail) (Finding, bool) {
	firsts := map[string]Rail{} // by link layer
	for _, b := range rails {
		if b.Device.MTU == 0 {
			continue
		}
		a, found := firsts[b.Device.Link]
		if !found {
			firsts[b.Device.Link] = b
			continue
		}
		if a.Device.MTU == b.Device.MTU {
			continue
		}
		smaller := slices.MinFunc([]Rail{a, b}, func(a, b Rail) int { return a.Device.MTU - b.Device.MTU })
		finding := newFinding(MTUMismatch, fmt.Sprintf("MTU %d on %s of %s, %d on %s of %s",
			a.Device.MTU, a.Name, a.Host, b.Device.MTU, b.Name, b.Host))
		finding.Host, finding.Device = smaller.Host, smaller.Name
		return finding, true
	}
	return Finding{}, false
}
