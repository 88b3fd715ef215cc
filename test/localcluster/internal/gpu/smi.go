// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"encoding/csv"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// SMI runs the stand-in nvidia-smi: the default table, -L, --query-gpu and
// topo -m, in the forms of driver 580. It returns the exit code of the real one.
func SMI(args []string, gpus []GPU, now time.Time, stdout io.Writer) int {
	present := slices.DeleteFunc(slices.Clone(gpus), func(g GPU) bool { return g.Fault.Kind == Missing })
	var query, format, only string
	mode := "table"
	for i := 0; i < len(args); i++ {
		name, value, hasValue := strings.Cut(args[i], "=")
		next := func() string {
			if !hasValue && i+1 < len(args) {
				i++
				return args[i]
			}
			return value
		}
		switch name {
		case "-L", "--list-gpus":
			mode = "list"
		case "--query-gpu":
			mode, query = "query", next()
		case "--format":
			format = next()
		case "-i", "--id":
			only = next()
		case "topo":
			mode = "topo"
		case "-m", "--matrix":
		default:
			fmt.Fprintf(stdout, "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n\n")
			return 1
		}
	}
	if only != "" {
		ids := strings.Split(only, ",")
		present = slices.DeleteFunc(present, func(g GPU) bool {
			return !slices.Contains(ids, strconv.Itoa(g.Index)) && !slices.Contains(ids, g.UUID) && !slices.Contains(ids, g.BusID)
		})
	}
	if len(present) == 0 {
		fmt.Fprintln(stdout, "No devices were found")
		return 6
	}
	switch mode {
	case "list":
		for _, g := range present {
			fmt.Fprintf(stdout, "GPU %d: %s (UUID: %s)\n", g.Index, Product, g.UUID)
		}
	case "query":
		return querySMI(present, query, format, now, stdout)
	case "topo":
		topology(present, stdout)
	default:
		table(present, now, stdout)
	}
	return 0
}

// Visible returns the GPUs that NVIDIA_VISIBLE_DEVICES gives this container, numbered as the container sees them. A
// privileged container sees all GPUs of its node, because it has all device files.
func Visible(gpus []GPU, variable string, privileged bool) []GPU {
	if variable == "" || variable == "all" || privileged {
		return gpus
	}
	var visible []GPU
	for _, g := range gpus {
		if slices.Contains(strings.Split(variable, ","), g.UUID) {
			g.Index = len(visible)
			visible = append(visible, g)
		}
	}
	return visible
}

// reading has the values that a GPU measures, healthy or not.
type reading struct {
	temperature, powerW, smClock int
	thermal                      bool
	uncorrected                  int
	recovery                     string
}

func (g GPU) reading() reading {
	r := reading{temperature: 32, powerW: 72, smClock: 1980, recovery: "None"}
	switch g.Fault.Kind {
	case Throttled:
		r.temperature, r.smClock, r.thermal = 88, 345, true
	case ECC:
		r.uncorrected = 1
	case Xid:
		r.recovery = "Reset"
		// Xid 48, 63, 64, 94 and 95 are ECC errors.
		if slices.Contains([]int{48, 63, 64, 94, 95}, g.Fault.Xid) {
			r.uncorrected = 1
		}
	}
	return r
}

func active(on bool) string {
	if on {
		return "Active"
	}
	return "Not Active"
}

// reasons returns the bit mask of the clock event reasons: 1 idle, 0x40 hardware thermal slowdown.
func (r reading) reasons() string {
	if r.thermal {
		return "0x0000000000000048"
	}
	return "0x0000000000000001"
}

// field returns a value of --query-gpu and its unit. For a value that the stand-in does not have, it returns the text
// that the real tool prints for unsupported values.
func (g GPU) field(name string, now time.Time) (value, unit string, ok bool) {
	r := g.reading()
	switch name {
	case "timestamp":
		return now.Format("2006/01/02 15:04:05.000"), "", true
	case "driver_version":
		return DriverVersion, "", true
	case "count":
		return "1", "", true
	case "index":
		return strconv.Itoa(g.Index), "", true
	case "name", "gpu_name":
		return Product, "", true
	case "uuid", "gpu_uuid":
		return g.UUID, "", true
	case "pci.bus_id", "gpu_bus_id":
		return g.BusID, "", true
	case "serial", "gpu_serial":
		return fmt.Sprintf("16500230%05d", g.Index), "", true
	case "compute_cap":
		return "9.0", "", true
	case "pstate":
		return "P0", "", true
	case "memory.total":
		return strconv.Itoa(memoryMiB), "MiB", true
	case "memory.used":
		return "1", "MiB", true
	case "memory.free":
		return strconv.Itoa(memoryMiB - 1), "MiB", true
	case "utilization.gpu", "utilization.memory":
		return "0", "%", true
	case "temperature.gpu":
		return strconv.Itoa(r.temperature), "", true
	case "power.draw":
		return fmt.Sprintf("%d.00", r.powerW), "W", true
	case "power.limit":
		return "700.00", "W", true
	case "clocks.sm", "clocks.current.sm":
		return strconv.Itoa(r.smClock), "MHz", true
	case "clocks.max.sm":
		return "1980", "MHz", true
	case "clocks_event_reasons.active", "clocks_throttle_reasons.active":
		return r.reasons(), "", true
	case "clocks_event_reasons.gpu_idle", "clocks_throttle_reasons.gpu_idle":
		return active(!r.thermal), "", true
	case "clocks_event_reasons.hw_slowdown", "clocks_throttle_reasons.hw_slowdown",
		"clocks_event_reasons.hw_thermal_slowdown", "clocks_throttle_reasons.hw_thermal_slowdown":
		return active(r.thermal), "", true
	case "clocks_event_reasons.sw_thermal_slowdown", "clocks_throttle_reasons.sw_thermal_slowdown",
		"clocks_event_reasons.hw_power_brake_slowdown", "clocks_throttle_reasons.hw_power_brake_slowdown",
		"clocks_event_reasons.sw_power_cap", "clocks_throttle_reasons.sw_power_cap":
		return active(false), "", true
	case "ecc.errors.uncorrected.volatile.total", "ecc.errors.uncorrected.aggregate.total":
		return strconv.Itoa(r.uncorrected), "", true
	case "ecc.errors.corrected.volatile.total", "ecc.errors.corrected.aggregate.total":
		return "0", "", true
	case "gpu_recovery_action":
		return r.recovery, "", true
	case "mig.mode.current", "mig.mode.pending":
		return "Disabled", "", true
	case "persistence_mode":
		return "Enabled", "", true
	case "pcie.link.gen.current", "pcie.link.gen.max":
		return "5", "", true
	case "pcie.link.width.current", "pcie.link.width.max":
		return "16", "", true
	case "fan.speed":
		return "[N/A]", "", true
	}
	return "", "", false
}

// headerOf returns a field's name in the header of the CSV output.
func headerOf(field string, now time.Time) string {
	_, unit, _ := GPU{}.field(field, now)
	if unit == "" {
		return field
	}
	return field + " [" + unit + "]"
}

func querySMI(gpus []GPU, query, format string, now time.Time, stdout io.Writer) int {
	options := strings.Split(format, ",")
	if !slices.Contains(options, "csv") {
		fmt.Fprintln(stdout, `"--format=" switch is missing or not recognized. It should be "csv".`)
		return 1
	}
	fields := strings.Split(query, ",")
	for i := range fields {
		fields[i] = strings.TrimSpace(fields[i])
		if _, _, ok := gpus[0].field(fields[i], now); !ok {
			fmt.Fprintf(stdout, "Field \"%s\" is not a valid field to query.\n\n", fields[i])
			return 2
		}
	}
	print := func(row []string) { fmt.Fprintln(stdout, strings.Join(row, ", ")) }
	if !slices.Contains(options, "noheader") {
		row := make([]string, len(fields))
		for i, f := range fields {
			row[i] = headerOf(f, now)
		}
		print(row)
	}
	for _, g := range gpus {
		row := make([]string, len(fields))
		for i, f := range fields {
			value, unit, _ := g.field(f, now)
			if unit != "" && !slices.Contains(options, "nounits") {
				value += " " + unit
			}
			row[i] = value
		}
		print(row)
	}
	return 0
}

// topology prints `topo -m` of GPUs without NICs. NVLink joins the GPUs, except those with fault NoNVLink.
func topology(gpus []GPU, stdout io.Writer) {
	w := csv.NewWriter(stdout)
	w.Comma = '\t'
	header := []string{""}
	for _, g := range gpus {
		header = append(header, fmt.Sprintf("GPU%d", g.Index))
	}
	_ = w.Write(append(header, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"))
	for _, g := range gpus {
		row := []string{fmt.Sprintf("GPU%d", g.Index)}
		for _, other := range gpus {
			switch {
			case other.Index == g.Index:
				row = append(row, " X ")
			case g.Fault.Kind == NoNVLink || other.Fault.Kind == NoNVLink:
				row = append(row, "SYS")
			default:
				row = append(row, "NV18")
			}
		}
		_ = w.Write(append(row, "0-31", strconv.Itoa(g.Index/4), "N/A"))
	}
	w.Flush()
}

func table(gpus []GPU, now time.Time, stdout io.Writer) {
	line := "+-----------------------------------------+------------------------+----------------------+"
	full := "+-----------------------------------------------------------------------------------------+"
	fmt.Fprintf(stdout, "%-31s\n", now.Format("Mon Jan _2 15:04:05 2006"))
	fmt.Fprintln(stdout, full)
	fmt.Fprintf(stdout, "| NVIDIA-SMI %-22s Driver Version: %-14s CUDA Version: %-8s |\n", DriverVersion, DriverVersion, CUDAVersion)
	fmt.Fprintln(stdout, line)
	fmt.Fprintln(stdout, "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |")
	fmt.Fprintln(stdout, "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |")
	fmt.Fprintln(stdout, "|                                         |                        |               MIG M. |")
	fmt.Fprintln(stdout, "|=========================================+========================+======================|")
	for _, g := range gpus {
		r := g.reading()
		fmt.Fprintf(stdout, "| %3d  %-26s     On  |   %16s Off | %20d |\n", g.Index, Product, g.BusID, r.uncorrected)
		fmt.Fprintf(stdout, "| N/A  %3dC    P0           %4dW /  700W |       1MiB /  %5dMiB |      0%%      Default |\n", r.temperature,
			r.powerW, memoryMiB)
		fmt.Fprintln(stdout, "|                                         |                        |             Disabled |")
		fmt.Fprintln(stdout, line)
	}
	fmt.Fprintln(stdout)
	fmt.Fprintln(stdout, full)
	fmt.Fprintln(stdout, "| Processes:                                                                              |")
	fmt.Fprintln(stdout, "|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |")
	fmt.Fprintln(stdout, "|        ID   ID                                                               Usage      |")
	fmt.Fprintln(stdout, "|=========================================================================================|")
	fmt.Fprintln(stdout, "|  No running processes found                                                             |")
	fmt.Fprintln(stdout, full)
}

// RunSMI is the stand-in's main function. It reads the state that the device plugin has mounted into this container.
func RunSMI(args []string) int {
	gpus, err := ReadState(StateDir)
	if err != nil {
		fmt.Println("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is " +
			"installed and running.")
		fmt.Println()
		return 9
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return SMI(args, Visible(gpus, os.Getenv("NVIDIA_VISIBLE_DEVICES"), privileged(string(status))), time.Now(), os.Stdout)
}

// privileged reports whether the container may load kernel modules. Runtimes allow this only to privileged containers.
func privileged(status string) bool {
	const sysModule = 16
	_, after, _ := strings.Cut(status, "CapBnd:")
	set, _, _ := strings.Cut(strings.TrimSpace(after), "\n")
	bits, err := strconv.ParseUint(set, 16, 64)
	return err == nil && bits>>sysModule&1 == 1
}
