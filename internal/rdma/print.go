// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
)

// Print writes the facts as tables.
func (f Facts) Print(w io.Writer) {
	if f.SysRoot != "" {
		fmt.Fprintf(w, "sysfs is read from %s\n\n", f.SysRoot)
	}
	if len(f.Devices) > 0 {
		f.printDevices(w)
	}
	if len(f.Others) > 0 {
		fmt.Fprintf(w, "seen, but not given to this pod: %s\n", strings.Join(f.Others, ", "))
	}
	state := table{
		{"locked memory", f.Memory.String()},
		{"CapEff", cmp.Or(f.Memory.CapEff, "unknown")},
		{"IOMMU", strings.TrimSuffix(fmt.Sprintf("%s (command line %s)", f.IOMMU.Mode, f.IOMMU.CommandLine), " (command line )")},
		{"GPUDirect", f.GPUDirect.String()},
		{"pod network", cmp.Or(f.PodInterface, "no default route")},
	}
	if len(f.Rails()) > 0 {
		state = append(state, []string{"expected", f.ExpectedBandwidth().String()})
	}
	state.print(w)
	for _, finding := range f.Findings {
		finding.Print(w)
	}
}

// printDevices writes the ports, the devices, their distances to the GPUs and their GIDs.
func (f Facts) printDevices(w io.Writer) {
	ports := table{{"DEVICE", "PORT", "STATE", "PHYSICAL", "LINK", "RATE", "NETDEV", "ADDRESS", "MTU", "GID"}}
	devices := table{{"DEVICE", "MODEL", "FIRMWARE", "PCI", "FUNCTION", "NUMA", "PCIE", "AT MOST", "IOMMU", "GIVEN BY"}}
	distances := table{append([]string{"DISTANCE TO GPU"}, f.GPUs...)}
	gids := table{{"DEVICE", "PORT", "INDEX", "GID", "IPV4", "TYPE", "NETDEV"}}
	for _, device := range f.Devices {
		function, numa := "physical", "-"
		if device.PhysicalFunction != "" {
			function = "virtual of " + device.PhysicalFunction
		}
		if device.Auxiliary != "" {
			function = device.Auxiliary
		}
		if device.NUMA >= 0 {
			numa = strconv.Itoa(device.NUMA)
		}
		devices = append(devices, []string{
			device.Name, cmp.Or(device.Model, "-"), cmp.Or(device.Firmware, "-"), cmp.Or(device.PCI, "-"), function, numa,
			device.PCIe.String(), device.PCIeMaximum.String(), cmp.Or(device.IOMMU, "-"), device.GivenBy,
		})
		near := []string{device.Name}
		for _, gpu := range f.GPUs {
			near = append(near, cmp.Or(string(device.GPUs[gpu]), "-"))
		}
		distances = append(distances, near)
		for _, port := range device.Ports {
			number, address, index := strconv.Itoa(port.Number), "-", "-"
			if port.GIDIndex >= 0 {
				address, index = port.Address.String(), strconv.Itoa(port.GIDIndex)
			}
			ports = append(ports, []string{device.Name, number, port.State, port.PhysicalState, port.LinkLayer, port.Rate.String(),
				cmp.Or(port.Netdev, "-"), address, strings.TrimPrefix(strconv.Itoa(port.MTU), "0"), index})
			for _, gid := range port.GIDs {
				address := "-"
				if a := gid.IPv4(); a.IsValid() {
					address = a.String()
				}
				gids = append(gids, []string{device.Name, number, strconv.Itoa(gid.Index), gid.GID.StringExpanded(), address, cmp.Or(gid.Type, "-"),
					cmp.Or(gid.Netdev, "-")})
			}
		}
	}
	if len(f.GPUs) == 0 {
		distances = nil
	}
	for _, t := range []table{ports, devices, distances, gids} {
		if t != nil {
			t.print(w)
			fmt.Fprintln(w)
		}
	}
}

// Print writes the plan as a table.
func (p Plan) Print(w io.Writer) {
	variables := table{{"VARIABLE", "VALUE", "SOURCE", "REASON"}}
	for _, v := range p.Variables {
		variables = append(variables, []string{v.Name, cmp.Or(v.Value, "(unset)"), string(v.Source), v.Reason})
	}
	variables.print(w)
	for _, finding := range p.Findings {
		finding.Print(w)
	}
}

type table [][]string

func (t table) print(w io.Writer) {
	columns := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range t {
		fmt.Fprintln(columns, strings.Join(row, "\t"))
	}
	_ = columns.Flush()
}
