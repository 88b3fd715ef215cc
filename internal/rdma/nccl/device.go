// SPDX-License-Identifier: Apache-2.0

package nccl

import (
	"regexp"
	"slices"
	"strings"
)

// Device is a rail as NCCL sees it: an RDMA device's port, or several merged ones.
type Device struct {
	// Name is the device's, as "mlx5_6"; merged ones are joined by a plus sign.
	Name string `json:"name"`
	// Port is 0 for merged devices.
	Port int `json:"port,omitempty"`
	// Link is "RoCE" or "IB".
	Link string `json:"link,omitempty"`
	// GPUDirect is yes if the device can reach the memory of GPUs at all. Routes show whether a channel uses it.
	GPUDirect Answer `json:"gpuDirect,omitempty"`
	// MTU is the port's in bytes, 0 if it is not shown.
	MTU int `json:"mtu,omitempty"`
	// GIDIndex is nil if it is not shown, and on InfiniBand.
	GIDIndex *int `json:"gidIndex,omitempty"`

	// physical are NCCL's numbers of the ports themselves.
	physical []int
}

// Answer is yes, no, or empty if it is not known.
type Answer string

// The answers.
const (
	Yes Answer = "yes"
	No  Answer = "no"
)

// Interface is a network interface with its address, as in eth0 and 10.1.2.3.
type Interface struct {
	Name    string `json:"name"`
	Address string `json:"address,omitempty"`
}

var (
	// usedDevice: "[0]mlx5_6:1/RoCE", "[1]mlx5_0:1/IB/SHARP" (HPC-X), "[0]mlx5_6:1:0:1/RoCE" with rail
	// and plane (2.30), and merged as 2.20 to 2.23 have it "[0]={[0] mlx5_0:1/RoCE, [1] mlx5_1:1/RoCE}"
	// (net_ib.cc, ncclIbInit; net_ib/init.cc, ncclIbInitDevices).
	usedDevice = regexp.MustCompile(`\[(\d+)\](?:=\{([^}]*)\}|([^\s:\[\]{}]+):(\d+)(?::\d*){0,2}/(IB|RoCE)\b)`)
	// mergedDevice is one within the braces.
	mergedDevice = regexp.MustCompile(`\[(\d+)\] ?([^\s:\[\]{}]+):(\d+)/(IB|RoCE)`)
	// madeDevice: "NET/IB : Made virtual device [4] name=mlx5_6+mlx5_7 speed=800000 ndevs=2" (2.26 and on).
	madeDevice = regexp.MustCompile(`^NET/IB : Made virtual device \[(\d+)\] name=(\S+) speed=\d+ ndevs=\d+`)
	// gpuDirectLine: "NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_6'" (graph/topo.cc).
	gpuDirectLine = regexp.MustCompile(`^NET/(?:IB\S*|UCX\S*|SPCX\S*|SHARP) : GPU Direct RDMA (Enabled|Disabled) for HCA (\d+) '([^']+)'`)
	// queuePair: "NET/IB: NCCL Dev 0 IbDev 0 Port 1 qpn 1234 mtu 5 GID 3 (0/...) ..." (connect.cc); before
	// 2.20 "NET/IB: Dev 0 Port 1 qpn ...", since 2.30 "qp_num". MTU and GID are this end's.
	queuePair = regexp.MustCompile(
		`^NET/IB: .*?Dev (\d+) Port \d+ qp(?:n|_num) \d+ mtu ([1-5]) (?:query_ece=\{[^}]*\} )?(?:GID (\d+)|LID \d+)`)
	// usedInterface: "[0]eth0:10.1.2.3<0>", "net1:fe80::1%net1<0>".
	usedInterface = regexp.MustCompile(`(?:\[\d+\])?([^\s:\[\];]+):([^\s<;]+)<\d+>`)
)

// parseDevices reads the list of "NET/IB : Using ...". The place in it is NCCL's number of the device.
func parseDevices(list string) []Device {
	var result []Device
	for _, m := range usedDevice.FindAllStringSubmatch(list, maxDevices) {
		if m[3] != "" {
			result = append(result, Device{Name: clipText(m[3]), Port: number(m[4]), Link: m[5], physical: []int{number(m[1])}})
			continue
		}
		var merged Device
		var names []string
		for _, part := range mergedDevice.FindAllStringSubmatch(m[2], -1) {
			names = append(names, part[2])
			merged.Link = part[4]
			merged.physical = append(merged.physical, number(part[1]))
		}
		merged.Name = clipText(strings.Join(names, "+"))
		result = append(result, merged)
	}
	return result
}

func parseInterfaces(list string) []Interface {
	var result []Interface
	for _, m := range usedInterface.FindAllStringSubmatch(list, maxDevices) {
		result = append(result, Interface{Name: clipText(m[1]), Address: clipText(m[2])})
	}
	return result
}

// takeDevices takes what a line reports about the devices, and is false for other lines.
func (p *process) takeDevices(text string) bool {
	if list, ok := strings.CutPrefix(text, "NET/IB : Using"); ok {
		devices, _, _ := strings.Cut(list, "; OOB ")
		p.listDevices(parseDevices(devices))
	} else if strings.HasPrefix(text, "NET/IB : No device found") {
		p.NoDevice = true
	} else if strings.HasPrefix(text, "GPU Direct RDMA Disabled for GPU ") {
		p.TooFar = true // "... for GPU 0 / HCA 1 (distance 7 > 5)" (graph/paths.cc)
	} else if m := madeDevice.FindStringSubmatch(text); m != nil {
		p.nameDevice(number(m[1]), m[2])
	} else if m := gpuDirectLine.FindStringSubmatch(text); m != nil {
		if device := p.nameDevice(number(m[2]), m[3]); device != nil {
			device.GPUDirect = map[string]Answer{"Enabled": Yes, "Disabled": No}[m[1]]
		}
	} else if m := queuePair.FindStringSubmatch(text); m != nil {
		p.takeQueuePair(number(m[1]), m[2], m[3])
	} else {
		return false
	}
	return true
}

// listDevices takes the list, and keeps what is known about its devices: each communicator prints it again.
func (p *process) listDevices(list []Device) {
	for i, device := range list {
		switch {
		case i == len(p.devices):
			p.devices = append(p.devices, device)
		case p.devices[i].Name != device.Name || p.devices[i].Port != device.Port:
			p.devices[i] = device
		}
	}
}

// nameDevice returns the device of that number, which has that name. It is nil beyond the bounds.
func (p *process) nameDevice(index int, name string) *Device {
	if index >= maxDevices {
		return nil
	}
	for len(p.devices) <= index {
		p.devices = append(p.devices, Device{})
	}
	device := &p.devices[index]
	if name = clipText(name); device.Name != name {
		*device = Device{Name: name, physical: device.physical}
	}
	return device
}

// takeQueuePair takes MTU and GID of the port with NCCL's number physical. The MTU is
// libibverbs' enum ibv_mtu: 1 for 256 bytes up to 5 for 4096.
func (p *process) takeQueuePair(physical int, mtu, gid string) {
	for i := range p.devices {
		device := &p.devices[i]
		if !slices.Contains(device.physical, physical) {
			continue
		}
		device.MTU = 128 << number(mtu)
		if gid != "" {
			index := number(gid)
			device.GIDIndex = &index
		}
	}
}
