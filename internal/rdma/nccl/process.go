// SPDX-License-Identifier: Apache-2.0

package nccl

import (
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Process is what the log of one process shows.
type Process struct {
	// Host is the name up to the first dot, in a pod the pod's.
	Host string `json:"host,omitempty"`
	PID  int    `json:"pid,omitempty"`
	// Version is NCCL's, as in "2.27.7+cuda12.9". Older versions print it in rank 0 alone.
	Version string `json:"version,omitempty"`
	// Network is NCCL's name of the one that it chose last: "IB", "Socket", HPC-X's "IBext_v8".
	Network string `json:"network,omitempty"`
	// Interfaces are those that sockets use.
	Interfaces []Interface `json:"interfaces,omitempty"`
	Devices    []Device    `json:"devices,omitempty"`
	// NoDevice: NCCL looked for RDMA devices and found none.
	NoDevice bool `json:"noDevice,omitempty"`
	// TriedRDMA: NCCL looked for RDMA devices, whether it found some or not.
	TriedRDMA bool `json:"triedRDMA,omitempty"`
	// TooFar: a device reaches GPUs, but one is farther from it than NCCL_NET_GDR_LEVEL, or its default,
	// allows. It is usual for the far ones of several devices, and matters where RDMA goes through host memory.
	TooFar bool `json:"tooFar,omitempty"`
	// Environment are the NCCL_* variables that NCCL has read.
	Environment   map[string]string `json:"environment,omitempty"`
	Communicators []Communicator    `json:"communicators,omitempty"`
	Findings      []Finding         `json:"findings,omitempty"`
}

// LargestCommunicator returns the first communicator with the most ranks, nil if there is none.
func (p *Process) LargestCommunicator() *Communicator {
	var world *Communicator
	for i := range p.Communicators {
		if c := &p.Communicators[i]; world == nil || c.Ranks > world.Ranks {
			world = c
		}
	}
	return world
}

// Transport returns the slowest of the process's communicators, "" if it is part of none. Without a channel it is already Sockets if NCCL
// has chosen them and the ranks are on several nodes.
func (p *Process) Transport() Transport {
	var result Transport
	for i := range p.Communicators {
		c := &p.Communicators[i]
		if len(c.Routes) == 0 && c.Nodes > 1 && p.Network == socketNetwork {
			return Sockets
		}
		// An unused communicator does not hide the transport of the used ones.
		if t := c.Transport(); t != Unknown || len(c.Routes) > 0 {
			result = slower(result, t)
		}
	}
	if result == "" && len(p.Communicators) > 0 {
		return Unknown
	}
	return result
}

// Bounds of what is kept of a log.
const (
	maxText          = 500
	maxProcesses     = 512
	maxCommunicators = 64
	maxRoutes        = 128
	maxThreads       = 256
	maxDevices       = 64
	maxEnvironment   = 128
	maxFindings      = 64
	maxChannels      = 1 << 14 // of all processes together, each with a line of up to maxText
)

// clipText copies a text, shortened to maxText.
func clipText(text string) string {
	if len(text) > maxText {
		return strings.ToValidUTF8(text[:maxText], "") + "…"
	}
	return strings.ToValidUTF8(strings.Clone(text), "\uFFFD")
}

type process struct {
	Process
	devices       []Device
	communicators []*communicator
	threads       map[int]*communicator
	leftOut       int
}

func newProcess(host string, pid int) *process {
	return &process{
		Process: Process{Host: clipText(host), PID: pid, Environment: map[string]string{}},
		threads: map[int]*communicator{},
	}
}

var (
	// usedNetwork: "Using network IB", HPC-X "Using network IBext_v8" (init.cc, plugin/net.cc), since 2.27 "Assigned NET
	// plugin IB to comm".
	usedNetwork = regexp.MustCompile(`^(?:Using network (\S.*)$|Assigned NET plugin (\S.*) to comm)`)
	// setting: "NCCL_IB_TIMEOUT set by environment to 22.", "NCCL_IB_HCA set to mlx5_6" (misc/param.cc, net_ib.cc).
	setting = regexp.MustCompile(`^(NCCL_[A-Z0-9_]+) set (?:by environment )?to (.*)$`)
	// version: "NCCL version 2.27.7+cuda12.9", "NCCL version 2.27.7 compiled with CUDA 12.9".
	version = regexp.MustCompile(`NCCL version (\d+\.\d+\.\d+\S*)(?: compiled with CUDA (\d\S*))?`)
	// wholeNumber is one as the log has it, with a full stop.
	wholeNumber = regexp.MustCompile(`^-?\d+\.$`)
)

// takeMessage takes a message. line is its number in the log, and budget the channels that may still be remembered.
func (p *process) takeMessage(m message, line int64, budget *int) {
	p.TriedRDMA = p.TriedRDMA || strings.HasPrefix(m.text, "NET/IB")
	if finding, ok := recognize(m.file, m.text, m.warning); ok {
		p.note(finding, line)
	}
	// Half of a line may be recognised as something else than the whole.
	if m.cut || m.warning {
		return
	}
	if channel, ok := parseChannel(m.text); ok {
		p.takeChannel(m.thread, channel, m.text, budget)
	} else if !p.takeDevices(m.text) && !p.takeCommunicator(m.thread, m.text) {
		p.takeFact(m.text)
	}
}

func (p *process) takeFact(text string) {
	if m := usedNetwork.FindStringSubmatch(text); m != nil {
		p.Network = clipText(m[1] + m[2])
	} else if m := setting.FindStringSubmatch(text); m != nil {
		p.set(m[1], m[2])
	} else if list, ok := strings.CutPrefix(text, "NET/Socket : Using"); ok {
		if found := parseInterfaces(list); len(found) > 0 {
			p.Interfaces = found
		}
	} else if m := version.FindStringSubmatch(text); m != nil {
		p.Version = clipText(strings.TrimSuffix(m[1]+"+cuda"+m[2], "+cuda"))
	}
}

// set notes a variable. Numbers are printed with a full stop that is not theirs.
func (p *process) set(name, value string) {
	if wholeNumber.MatchString(value) {
		value = strings.TrimSuffix(value, ".")
	}
	if _, known := p.Environment[name]; !known && len(p.Environment) == maxEnvironment {
		p.leftOut++
		return
	}
	p.Environment[clipText(name)] = clipText(value)
}

// snapshot returns the process as it is now. locksAny is as in Reader.
func (p *process) snapshot(locksAny bool) Process {
	result := p.Process
	result.Environment = maps.Clone(p.Environment)
	result.Interfaces = slices.Clone(p.Interfaces)
	for _, device := range p.devices {
		if device.Name != "" {
			result.Devices = append(result.Devices, device)
		}
	}
	ready := false
	for _, c := range p.communicators {
		copied := c.Communicator
		copied.Routes = slices.Clone(c.Routes)
		for i, route := range c.Routes {
			copied.Routes[i].Rail = p.rail(route.Network, route.Device)
		}
		ready = ready || c.Ready
		result.Communicators = append(result.Communicators, copied)
	}
	result.Findings = slices.DeleteFunc(slices.Clone(p.Findings), func(f Finding) bool {
		return ready && f.Reason == ConnectionRetried // the retries have succeeded
	})
	for i := range result.Findings {
		if f := &result.Findings[i]; f.Reason == MemoryLockLimit && locksAny {
			other := newFinding(RegistrationLimit, "")
			f.Reason, f.Cause, f.Next = other.Reason, other.Cause, other.Next
		}
		result.advise(&result.Findings[i])
	}
	return result
}

func (p *process) rail(network string, device int) string {
	switch {
	case device < 0:
	case network == socketNetwork && device < len(p.Interfaces):
		return p.Interfaces[device].Name
	case isRDMA(network) && network != "SHARP" && device < len(p.devices):
		return p.devices[device].Name
	}
	return ""
}
