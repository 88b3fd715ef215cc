// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// Options are the sources of what is detected.
type Options struct {
	// Root is the tree at /, as the function Root returns it. Its /proc belongs to the process whose
	// locked memory and network namespace count.
	Root fs.FS
	// SysRoot is the folder of Root's sysfs, empty for the machine's own. It is only reported.
	SysRoot string
	// Environ is as os.Environ has it.
	Environ []string
	// Interfaces lists the interfaces of the pod's network namespace, as SystemInterfaces does.
	Interfaces func() ([]Interface, error)
	// GPUs are the PCI addresses of those that the container was given, nil if they are not known.
	GPUs []string
	// NVLink is yes if NVLink joins the container's GPUs; empty is unknown.
	NVLink   Answer
	Expected Expected
}

// Expected is what a cluster file's network.rdma expects of a node. Its devices are a choice only if no device plugin gives any; its
// other values count only if detection leaves them open. An empty field expects nothing.
type Expected struct {
	Devices      []string `json:"devices,omitempty"`
	Interfaces   []string `json:"interfaces,omitempty"`
	GIDIndex     string   `json:"gidIndex,omitempty"`
	GDRLevel     string   `json:"gdrLevel,omitempty"`
	CrossNIC     string   `json:"crossNIC,omitempty"`
	IBTimeout    string   `json:"ibTimeout,omitempty"`
	TrafficClass string   `json:"trafficClass,omitempty"`
	ServiceLevel string   `json:"serviceLevel,omitempty"`
	MinNChannels string   `json:"minNChannels,omitempty"`
	// MTU is what the rails' interfaces should have, in bytes.
	MTU       int            `json:"mtu,omitempty"`
	Bandwidth BytesPerSecond `json:"bandwidthBytesPerSecond,omitempty"`
	Figures   Figures        `json:"figures,omitzero"`
	// Sockets is network.tcp's: the bandwidth without RDMA.
	Sockets BytesPerSecond `json:"socketsBytesPerSecond,omitempty"`
}

// Figures are what a cluster file expects of single measurements of check-fabric, in bytes per second.
type Figures struct {
	// OneGPU is the ring of jobs with one GPU per node, and the most that a rail alone reaches.
	OneGPU BytesPerSecond `json:"oneGPU,omitempty"`
	// Inside is all_reduce inside a node, Pair what each of two nodes sends.
	Inside BytesPerSecond `json:"inside,omitempty"`
	Pair   BytesPerSecond `json:"pair,omitempty"`
	// HostCopy is from the host's memory to each GPU, HostRDMA from one host's memory to another's on one rail.
	HostCopy BytesPerSecond `json:"hostCopy,omitempty"`
	HostRDMA BytesPerSecond `json:"hostRDMA,omitempty"`
}

// Detect reads the facts of a node. An unreadable fact is absent, and a finding if it matters.
func Detect(o Options) Facts {
	d := detector{tree: tree{o.Root}, facts: Facts{SysRoot: o.SysRoot, NVLink: o.NVLink}}
	interfaces, err := o.Interfaces()
	if err != nil {
		d.found(fail.Degraded, InterfacesUnknown, "", "listing the network interfaces: %v", err)
	}
	d.facts.Interfaces = interfaces
	d.routes = d.readRoutes()
	d.facts.PodInterface = defaultInterface(d.routes)
	d.facts.GPUs = d.gpus(o.GPUs)
	d.facts.GPULinks = d.gpuLinks()
	d.facts.GPUDirect = d.gpuDirect()
	d.facts.Memory = d.memlock()
	d.devices(o.Environ, o.Expected)
	d.facts.IOMMU = d.iommu(d.facts.Devices)
	d.check(o.Expected)
	return d.facts
}

type detector struct {
	tree
	facts  Facts
	routes []route
	// allotted is how many functions device plugins gave.
	allotted int
}

func (d *detector) found(level fail.Level, reason fail.Reason, next, format string, args ...any) {
	d.facts.Findings = append(d.facts.Findings, fail.Finding{Level: level, Reason: reason, Seen: fmt.Sprintf(format, args...), Next: next})
}

const (
	classInfiniBand = "sys/class/infiniband"
	classVerbs      = "sys/class/infiniband_verbs"
	pciDevices      = "sys/bus/pci/devices"
	auxiliary       = "sys/bus/auxiliary/devices"
)

func (d *detector) devices(environ []string, expected Expected) {
	present := d.listNames(classInfiniBand)
	allotted := d.allotments(environ)
	d.allotted = len(allotted)
	givenBy := map[string]string{}
	for _, a := range allotted {
		if name := d.deviceOf(a); name != "" {
			givenBy[name] = a.variable
		}
	}
	if len(allotted) == 0 {
		givenBy = d.hostDevices(present, expected)
	}
	for _, name := range present {
		if by := givenBy[name]; by != "" {
			d.facts.Devices = append(d.facts.Devices, d.device(name, by))
		} else {
			d.facts.Others = append(d.facts.Others, name)
		}
	}
}

// folder returns the function's folder in sysfs.
func (a allotment) folder() string {
	if pciAddress.MatchString(a.id) {
		return path.Join(pciDevices, a.id)
	}
	return path.Join(auxiliary, a.id)
}

// deviceOf returns the RDMA device of a function that a device plugin gave, empty if it has none. The plugin's name for it counts, unless
// the function has only a device of another name, as after a renaming.
func (d *detector) deviceOf(a allotment) string {
	named := a.device
	if named == "" && a.uverbs != "" {
		named = d.readText(classVerbs, a.uverbs, "ibdev")
	}
	folder := a.folder()
	byAddress := d.listNames(folder, "infiniband")
	switch {
	case len(byAddress) == 0 && named != "" && d.exists(classInfiniBand, named):
		return named
	case len(byAddress) == 0 && (a.rdma || named != ""):
		d.found(fail.Degraded, DeviceMissing, "delete the pod, so that the device plugin gives it another function; if that does not help, "+
			"restart the SR-IOV device plugin on the node",
			"looking for the RDMA device of %s, which %s gives: there is none below /%s/infiniband: want one", a.id, a.variable, folder)
		return ""
	case len(byAddress) == 0:
		d.found(fail.Note, DeviceMissing, "", "looking for the RDMA device of %s, which %s gives: there is none: it is a device of another "+
			"kind, or its driver has no RDMA", a.id, a.variable)
		return ""
	case named != "" && !slices.Contains(byAddress, named):
		d.found(fail.Note, DeviceRenamed, "", "reading %s: it calls %s %s, which is %s now", a.variable, a.id, named, byAddress[0])
	case named != "":
		return named
	}
	return byAddress[0]
}

// hostDevices returns the devices of a pod to which no device plugin names any: those with a file in its /dev/infiniband. The cluster
// file's names choose among them if all exist. In a pod without privileges all others count, too: a plugin of shared devices gives just
// their files. In a privileged pod, which has the files of all cards, those on a GPU's switch count, because names change with
// maintenance, and a card for storage is elsewhere. If no device is on such a switch, or the switches are unknown, the names that exist
// choose.
func (d *detector) hostDevices(present []string, expected Expected) map[string]string {
	opened, chosen, near := map[string]string{}, map[string]string{}, map[string]string{}
	for _, name := range present {
		if d.uverbs(name) == "" {
			continue
		}
		opened[name] = GivenByDev
		if slices.Contains(expected.Devices, name) {
			chosen[name] = GivenByFile
		}
		if d.nearGPU(name) {
			near[name] = GivenByDev
		}
	}
	if !d.hostDevicesForm() {
		near = nil
	}
	switch {
	case len(chosen) > 0 && (len(chosen) == len(expected.Devices) || len(near) == 0):
		return chosen
	case len(near) > 0:
		return near
	}
	return opened
}

// nearGPU reports whether no processor is between the device and some GPU of the machine.
func (d *detector) nearGPU(device string) bool {
	address := d.addressOf(device)
	return slices.ContainsFunc(d.machineGPUs(), func(gpu string) bool {
		distance := d.distance(address, gpu)
		return distance == PIX || distance == PXB
	})
}

// uverbs returns the name of a device's file in /dev/infiniband, empty if the container has none.
func (d *detector) uverbs(device string) string {
	for _, name := range d.listNames(classVerbs) {
		if d.readText(classVerbs, name, "ibdev") == device && d.exists(strings.TrimPrefix(deviceFiles, "/"), name) {
			return name
		}
	}
	return ""
}
