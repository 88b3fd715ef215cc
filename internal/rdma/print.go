package rdma

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Print writes the facts as tables for people.
func (f Facts) Print(w io.Writer) {
	if f.SysRoot != "" {
		fmt.Fprintf(w, "sysfs is read from %s\n\n", f.SysRoot)
	}
	if len(f.Devices) > 0 {
		f.printPorts(w)
		f.printDevices(w)
		f.printDistances(w)
		f.printGIDs(w)
	}
	if len(f.Others) > 0 {
		fmt.Fprintf(w, "seen, but not given to this pod: %s\n", strings.Join(f.Others, ", "))
	}
	table := newTable(w)
	table.row("locked memory", f.Memory.String())
	table.row("CapEff", cmp.Or(f.Memory.CapEff, "unknown"))
	table.row("IOMMU", strings.TrimSuffix(fmt.Sprintf("%s (command line %s)", f.IOMMU.Mode, f.IOMMU.CommandLine), " (command line )"))
	table.row("GPUDirect", f.GPUDirect.String())
	table.row("pod network", cmp.Or(f.PodInterface, "no default route"))
	if len(f.Rails()) > 0 {
		table.row("expected", f.ExpectedBandwidth().String())
	}
	table.flush()
	f.Findings.Print(w)
}

func (f Facts) printPorts(w io.Writer) {
	table := newTable(w)
	table.row("DEVICE", "PORT", "STATE", "PHYSICAL", "LINK", "RATE", "NETDEV", "ADDRESS", "MTU", "GID")
	for _, device := range f.Devices {
		for _, port := range device.Ports {
			address, gid := "-", "-"
			if port.GIDIndex >= 0 {
				address, gid = port.Address.String(), fmt.Sprint(port.GIDIndex)
			}
			table.row(device.Name, fmt.Sprint(port.Number), port.State, port.PhysicalState, port.LinkLayer, port.Rate.String(),
				cmp.Or(port.Netdev, "-"), address, strings.TrimPrefix(fmt.Sprint(port.MTU), "0"), gid)
		}
	}
	table.flush()
	fmt.Fprintln(w)
}

func (f Facts) printDevices(w io.Writer) {
	table := newTable(w)
	table.row("DEVICE", "PCI", "FUNCTION", "NUMA", "PCIE", "AT MOST", "IOMMU", "GIVEN BY")
	for _, device := range f.Devices {
		function := "physical"
		if device.PhysicalFunction != "" {
			function = "virtual of " + device.PhysicalFunction
		}
		numa := "-"
		if device.NUMA >= 0 {
			numa = fmt.Sprint(device.NUMA)
		}
		table.row(device.Name, cmp.Or(device.PCI, "-"), function, numa, device.PCIe.String(), device.PCIeMaximum.String(), cmp.Or(device.IOMMU, "-"), device.GivenBy)
	}
	table.flush()
	fmt.Fprintln(w)
}

func (f Facts) printDistances(w io.Writer) {
	if len(f.GPUs) == 0 {
		return
	}
	table := newTable(w)
	table.row(append([]string{"DISTANCE TO GPU"}, f.GPUs...)...)
	for _, device := range f.Devices {
		cells := []string{device.Name}
		for _, gpu := range f.GPUs {
			cells = append(cells, cmp.Or(string(device.GPUs[gpu]), "-"))
		}
		table.row(cells...)
	}
	table.flush()
	fmt.Fprintln(w)
}

func (f Facts) printGIDs(w io.Writer) {
	table := newTable(w)
	table.row("DEVICE", "PORT", "INDEX", "GID", "IPV4", "TYPE", "NETDEV")
	for _, device := range f.Devices {
		for _, port := range device.Ports {
			for _, gid := range port.GIDs {
				address := "-"
				if a := gid.IPv4(); a.IsValid() {
					address = a.String()
				}
				table.row(device.Name, fmt.Sprint(port.Number), fmt.Sprint(gid.Index), gid.GID.StringExpanded(), address, cmp.Or(gid.Type, "-"), cmp.Or(gid.Netdev, "-"))
			}
		}
	}
	table.flush()
	fmt.Fprintln(w)
}

// Print writes the plan as a table for people.
func (p Plan) Print(w io.Writer) {
	table := newTable(w)
	table.row("VARIABLE", "VALUE", "SOURCE", "REASON")
	for _, v := range p.Variables {
		table.row(v.Name, cmp.Or(v.Value, "(unset)"), string(v.Source), v.Reason)
	}
	table.flush()
	p.Findings.Print(w)
}

// columns writes a table.
type columns struct{ *tabwriter.Writer }

func newTable(w io.Writer) columns { return columns{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)} }

func (c columns) row(cells ...string) { fmt.Fprintln(c, strings.Join(cells, "\t")) }

func (c columns) flush() { _ = c.Flush() }
