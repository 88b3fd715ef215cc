// SPDX-License-Identifier: Apache-2.0

package nccl

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// Wanted is the expectation of a run.
type Wanted struct {
	// Transport is the slowest that is right: RDMAGPU, RDMAHost or Sockets. Unknown and "" want nothing.
	Transport Transport
	// Environment are the NCCL_* variables that ranks were given. If it is nil, they are not compared.
	Environment map[string]string
	// Devices are each host's RDMA devices by name.
	Devices map[string][]string
}

// Against finds what differs from the expectation. A rank with an unknown transport is not a finding: there may be no channel yet.
func (s Summary) Against(wanted Wanted) []Finding {
	var result []Finding
	for i := range s.Processes {
		p := &s.Processes[i]
		found := func(name fail.Reason, evidence, device string, reasons ...string) {
			finding := newFinding(name, evidence)
			finding.Host, finding.PID, finding.Device = p.Host, p.PID, device
			if device != "" {
				finding.Next = strings.ReplaceAll(finding.Next, "DEVICE", device)
			}
			if len(reasons) > 0 {
				finding.Cause += ": " + strings.Join(reasons, "; ")
			}
			p.advise(&finding)
			result = append(result, finding)
		}
		p.transportAgainst(wanted.Transport, found)
		if wanted.Environment != nil {
			p.environmentAgainst(wanted.Environment, found)
		}
		p.devicesAgainst(wanted.Devices[p.Host], found)
	}
	sortFindings(result)
	return result
}

// finder takes a finding of a process, with its device if there is one, and reasons to add to its cause.
type finder func(name fail.Reason, evidence, device string, reasons ...string)

func (p *Process) transportAgainst(wanted Transport, found finder) {
	if wanted != RDMAGPU && wanted != RDMAHost {
		return
	}
	transport := p.Transport()
	if p.NoDevice && transport != RDMAGPU && transport != RDMAHost {
		found(NoRDMADevice, "NET/IB : No device found."+p.settingShown("NCCL_IB_HCA"), "")
	}
	switch {
	case transport == Sockets:
		found(SocketsInsteadOfRDMA, p.routeShown(Sockets), "", p.whySockets()...)
	case transport == RDMAHost && wanted == RDMAGPU:
		found(HostMemoryInsteadOfGPU, p.routeShown(RDMAHost), "", p.whyHostMemory()...)
	}
}

// routeShown returns the evidence for a transport: how many channels have it, else the choice of the network.
func (p *Process) routeShown(transport Transport) string {
	for _, c := range p.Communicators {
		for _, route := range c.Routes {
			if route.Transport == transport {
				return fmt.Sprintf("rank %d of %d in its communicator: %d of its channels go over %s", c.Rank, c.Ranks, route.Channels,
					route.Network)
			}
		}
	}
	return "Using network " + p.Network
}

// whySockets returns what the log shows of why there is no RDMA.
func (p *Process) whySockets() (reasons []string) {
	if value := p.Environment["NCCL_IB_DISABLE"]; value != "" && value != "0" {
		reasons = append(reasons, "NCCL_IB_DISABLE="+value+" is set")
	}
	if slices.ContainsFunc(p.Findings, func(f Finding) bool { return f.Reason == VerbsLibraryMissing }) {
		reasons = append(reasons, "the image has no libibverbs")
	}
	if p.NoDevice {
		reasons = append(reasons, "it found no RDMA device"+p.settingShown("NCCL_IB_HCA"))
	}
	if len(reasons) == 0 && !p.TriedRDMA { // NCCL reads the variable without a word (plugin/net.cc)
		reasons = append(reasons, "NCCL did not look for RDMA devices, as with NCCL_NET=Socket in the script, the image or /etc/nccl.conf")
	}
	return reasons
}

// whyHostMemory returns what the log shows of why GPUDirect is off.
func (p *Process) whyHostMemory() (reasons []string) {
	var off []string
	for _, device := range p.Devices {
		if device.GPUDirect == No {
			off = append(off, device.Name)
		}
	}
	if len(off) > 0 {
		reasons = append(reasons, "neither nvidia_peermem nor DMA-BUF lets "+strings.Join(off, ", ")+" reach the GPUs")
	}
	if value := p.Environment["NCCL_NET_GDR_LEVEL"]; value == "LOC" || value == "0" {
		reasons = append(reasons, "NCCL_NET_GDR_LEVEL="+value+" turns it off")
	} else if p.TooFar {
		reasons = append(reasons, "a GPU and a device are farther apart than is allowed"+p.settingShown("NCCL_NET_GDR_LEVEL"))
	}
	if p.Environment["NCCL_DMABUF_ENABLE"] == "0" {
		reasons = append(reasons, "NCCL_DMABUF_ENABLE=0 is set")
	}
	return reasons
}

func (p *Process) settingShown(name string) string {
	if value, set := p.Environment[name]; set {
		return fmt.Sprintf(" (%s=%s)", name, value)
	}
	return ""
}

// environmentAgainst compares the variables that NCCL shows, which are those that are set and read. Users may change how much it prints.
func (p *Process) environmentAgainst(given map[string]string, found finder) {
	for _, name := range slices.Sorted(maps.Keys(p.Environment)) {
		value := p.Environment[name]
		want, known := given[name]
		if strings.HasPrefix(name, "NCCL_DEBUG") || known && sameValue(name, want, value) {
			continue
		}
		what := "was not given"
		if known {
			what = want + " was given"
		}
		found(SettingChanged, fmt.Sprintf("%s is %s, and %s", name, value, what), "")
	}
}

// sameValue reports whether NCCL prints a value as shown that was given as want: levels by their names, numbers in base 10.
func sameValue(name, want, shown string) bool {
	if strings.EqualFold(want, shown) {
		return true
	}
	number, err := strconv.ParseInt(want, 0, 64)
	if err != nil {
		return false
	}
	if levels := []string{"LOC", "PIX", "PXB", "PHB", "SYS"}; strings.HasSuffix(name, "_LEVEL") && number >= 0 { // graph/topo.h, ncclGetLevel
		return levels[min(int(number), len(levels)-1)] == shown
	}
	return strconv.FormatInt(number, 10) == shown
}

// devicesAgainst finds devices that NCCL does not list. Before NCCL prints its list it finds nothing.
func (p *Process) devicesAgainst(wanted []string, found finder) {
	var listed []string
	for _, device := range p.Devices {
		listed = append(listed, strings.Split(device.Name, "+")...)
	}
	for _, name := range wanted {
		if len(listed) > 0 && !slices.Contains(listed, name) {
			found(DeviceNotUsed, "NET/IB : Using "+strings.Join(listed, " ")+p.settingShown("NCCL_IB_HCA"), name)
		}
	}
}
