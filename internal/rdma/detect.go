package rdma

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// Options are what a node is looked at through.
type Options struct {
	// Root is the tree at /, as Root gives it. Its /proc is that of the process whose
	// locked memory and network namespace are meant.
	Root fs.FS
	// SysRoot is where Root's sysfs is from, "" for the machine's own. It is reported only.
	SysRoot string
	// Environ is as os.Environ has it.
	Environ []string
	// Interfaces lists those of the pod's network namespace; SystemInterfaces does.
	Interfaces func() ([]Interface, error)
	// Expected is what the cluster file has.
	Expected Expected
}

// Expected is what a cluster file's network.rdma says of a node: an expectation, not
// a setting. Its devices choose only where no device plugin gives any, its numbers
// hold only where detection leaves them open. An empty field says nothing.
type Expected struct {
	Devices      []string       `json:"devices,omitempty"`
	Interfaces   []string       `json:"interfaces,omitempty"`
	GIDIndex     string         `json:"gidIndex,omitempty"`
	GDRLevel     string         `json:"gdrLevel,omitempty"`
	CrossNIC     string         `json:"crossNIC,omitempty"`
	IBTimeout    string         `json:"ibTimeout,omitempty"`
	MinNChannels string         `json:"minNChannels,omitempty"`
	Bandwidth    BytesPerSecond `json:"bandwidthBytesPerSecond,omitempty"`
}

// Detect reads what the node has. What cannot be read is absent, and a finding where it matters.
func Detect(o Options) Facts {
	d := detector{tree: tree{o.Root}, facts: Facts{SysRoot: o.SysRoot}}
	interfaces, err := o.Interfaces()
	if err != nil {
		d.found(fail.Degraded, InterfacesUnknown, "", "listing the network interfaces: %v", err)
	}
	d.facts.Interfaces = interfaces
	d.routes = d.readRoutes()
	d.facts.PodInterface = defaultInterface(d.routes)
	d.facts.GPUs = d.gpus()
	d.facts.GPUDirect = d.gpuDirect()
	d.facts.Memory = d.memlock()
	d.devices(o.Environ, o.Expected)
	d.facts.IOMMU = d.iommu(d.facts.Devices)
	d.check(o.Expected)
	return d.facts
}

// detector gathers facts.
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
)

// devices finds the devices that the pod was given, and reads them.
func (d *detector) devices(environ []string, expected Expected) {
	present := d.names(classInfiniBand)
	allotted, unreadable := allotments(environ)
	d.allotted = len(allotted)
	d.facts.Findings = append(d.facts.Findings, unreadable...)
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
		if by, ok := givenBy[name]; ok {
			d.facts.Devices = append(d.facts.Devices, d.device(name, by))
		} else {
			d.facts.Others = append(d.facts.Others, name)
		}
	}
}

// deviceOf is the RDMA device of a function that a device plugin gave, "" where it
// has none. The plugin's name for it is believed unless the function has a device of
// another name, as after a renaming: the function is what was given. What hangs below
// a physical function proves nothing, for that is all of its virtual ones.
func (d *detector) deviceOf(a allotment) string {
	named := a.device
	if named == "" && a.uverbs != "" {
		named = d.text(classVerbs, a.uverbs, "ibdev")
	}
	byAddress := d.names(pciDevices, a.address, "infiniband")
	switch {
	case len(byAddress) == 0 && named != "" && d.exists(classInfiniBand, named):
		return named
	case len(byAddress) == 0 && (a.rdma || named != ""):
		d.found(fail.Degraded, DeviceMissing, "delete the pod, so that the device plugin gives it another function; where that does not help, restart the SR-IOV device plugin on the node",
			"looking for the RDMA device of %s, which %s gives: there is none below /%s/%s/infiniband: want one", a.address, a.variable, pciDevices, a.address)
		return ""
	case len(byAddress) == 0:
		d.found(fail.Note, DeviceMissing, "", "looking for the RDMA device of %s, which %s gives: there is none: it is a device of another kind, or its driver has no RDMA", a.address, a.variable)
		return ""
	case named != "" && !slices.Contains(byAddress, named):
		d.found(fail.Note, DeviceRenamed, "", "reading %s: it calls %s %s, which is %s now", a.variable, a.address, named, byAddress[0])
	case named != "":
		return named
	}
	return byAddress[0]
}

// hostDevices are those of a pod that no device plugin gave any: it was given those
// whose files are in its /dev/infiniband. Among them the cluster file's choose, unless
// not one of its names is there: names change with every maintenance.
func (d *detector) hostDevices(present []string, expected Expected) map[string]string {
	opened := map[string]string{}
	for _, name := range present {
		if d.uverbs(name) != "" {
			opened[name] = GivenByDev
		}
	}
	chosen := map[string]string{}
	for _, name := range expected.Devices {
		if _, ok := opened[name]; ok {
			chosen[name] = GivenByFile
		}
	}
	if len(chosen) > 0 {
		return chosen
	}
	return opened
}

// uverbs is the name of a device's file in /dev/infiniband, "" where the container has none.
func (d *detector) uverbs(device string) string {
	for _, name := range d.names(classVerbs) {
		if d.text(classVerbs, name, "ibdev") == device && d.exists(strings.TrimPrefix(deviceFiles, "/"), name) {
			return name
		}
	}
	return ""
}
