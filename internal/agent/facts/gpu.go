// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

// smiFields are asked of nvidia-smi. Older drivers do not know all of them.
var smiFields = []string{"index", "uuid", "name", "driver_version", "memory.total", "memory.used", "utilization.gpu", "temperature.gpu",
	"clocks_event_reasons.active", "gpu_recovery_action", "ecc.errors.uncorrected.volatile.total", "pci.bus_id", "mig.mode.current",
	"compute_cap"}

// slowdowns are the bits of clocks_event_reasons.active that mean that a GPU is
// slowed down by heat, power or its board (nvml.h, nvmlClocksEventReason*). Idling, configured clocks and the software power cap
// are ordinary.
var slowdowns = []struct {
	bit  uint64
	name string
}{
	{0x08, "hardware slowdown"},
	{0x20, "software thermal slowdown"},
	{0x40, "hardware thermal slowdown"},
	{0x80, "hardware power brake"},
}

// unknownField is nvidia-smi's error for a field that its driver does not have.
var unknownField = regexp.MustCompile(`Field "([^"]+)" is not a valid field to query`)

// GPUs lists the GPUs that this container was given, by nvidia-smi and environ, and whether the container sees more. given is how
// many it was given, 0 if that is unknown. Without nvidia-smi there are none and no error. Fields that an older driver does not
// have stay empty. It is an error if the container sees more than it was given and nothing shows which are its own.
func GPUs(ctx context.Context, environ []string, given int) (gpus []agent.GPU, more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	shown, err := shown(ctx)
	if err != nil {
		return nil, false, err
	}
	gpus, err = selectGiven(shown, listed(environ, mountedDevices), given)
	return gpus, len(gpus) < len(shown), err
}

// stuck counts the nvidia-smi processes that have not ended.
var stuck atomic.Int32

// runSMI returns the output of nvidia-smi. A driver that hangs keeps nvidia-smi in a state in which not even SIGKILL ends it: runSMI does
// not wait for that, and starts no other one meanwhile, because each keeps a process.
func runSMI(ctx context.Context, arguments ...string) ([]byte, error) {
	if stuck.Load() > 0 {
		return nil, errors.New("an earlier one does not end, although it was killed: the driver hangs, or the GPU is lost")
	}
	type answer struct {
		out []byte
		err error
	}
	answered := make(chan answer, 1)
	go func() {
		out, err := exec.CommandContext(ctx, agent.SMI, arguments...).Output()
		answered <- answer{out, err}
	}()
	select {
	case a := <-answered:
		return a.out, a.err
	case <-ctx.Done():
	}
	const killTime = time.Second // for nvidia-smi to end after SIGKILL; in a driver's call it may not
	select {
	case a := <-answered:
		return a.out, a.err
	case <-time.After(killTime):
		stuck.Add(1)
		go func() { <-answered; stuck.Add(-1) }()
		return nil, errors.New("it does not end, although it was killed: the driver hangs, or the GPU is lost")
	}
}

func shown(ctx context.Context) ([]agent.GPU, error) {
	fields := slices.Clone(smiFields)
	for {
		out, err := runSMI(ctx, "--query-gpu="+strings.Join(fields, ","), "--format=csv,noheader,nounits")
		if err == nil {
			gpus, split, err := parseGPUs(string(out), fields)
			if err != nil {
				return nil, err
			}
			return withMIG(ctx, gpus, split)
		}
		var exit *exec.ExitError
		switch refused := unknownField.FindSubmatch(out); {
		case errors.Is(err, exec.ErrNotFound):
			return nil, nil
		case errors.As(err, &exit) && exit.ExitCode() == 6: // no device
			return nil, nil
		case refused == nil || !slices.Contains(fields, string(refused[1])):
			return nil, fmt.Errorf("running nvidia-smi: %w: %s", err, strings.TrimSpace(string(out)))
		default:
			fields = slices.DeleteFunc(fields, func(field string) bool { return field == string(refused[1]) })
		}
	}
}

// parseGPUs reads the answer of nvidia-smi to fields. split are the indexes of GPUs with MIG.
func parseGPUs(text string, fields []string) (gpus []agent.GPU, split map[int]bool, err error) {
	lines := csv.NewReader(strings.NewReader(text))
	lines.TrimLeadingSpace = true
	lines.FieldsPerRecord = len(fields)
	records, err := lines.ReadAll()
	if err != nil {
		return nil, nil, fmt.Errorf("reading nvidia-smi's answer: %w", err)
	}
	split = map[int]bool{}
	for _, record := range records {
		value := func(field string) string {
			if i := slices.Index(fields, field); i >= 0 && record[i] != "N/A" { // some fields have no brackets
				return record[i]
			}
			return "[N/A]"
		}
		gpu := agent.GPU{
			Index: number(value("index")), UUID: value("uuid"), PCI: sysfsAddress(value("pci.bus_id")),
			Model: value("name"), Driver: value("driver_version"),
			Memory: agent.Bytes(number(value("memory.total"))) << 20, MemoryUsed: agent.Bytes(number(value("memory.used"))) << 20,
			Utilization: number(value("utilization.gpu")), Temperature: number(value("temperature.gpu")),
		}
		gpu.Unmeasured = strings.HasPrefix(value("utilization.gpu"), "[")
		active, _ := strconv.ParseUint(strings.TrimPrefix(value("clocks_event_reasons.active"), "0x"), 16, 64)
		for _, s := range slowdowns {
			if active&s.bit != 0 {
				gpu.Throttled = append(gpu.Throttled, s.name)
			}
		}
		// A count of memory errors alone is not a fault: the GPU takes such memory out of use, and the driver reports when that is not enough.
		if action := value("gpu_recovery_action"); action != "None" && !strings.HasPrefix(action, "[") {
			gpu.Fault = "the driver asks for recovery: " + action
			if n := number(value("ecc.errors.uncorrected.volatile.total")); n > 0 {
				gpu.Fault += "; " + humanize.Count(n, "uncorrected memory error")
			}
		}
		if compute := value("compute_cap"); !strings.HasPrefix(compute, "[") {
			gpu.Compute = compute
		}
		if value("mig.mode.current") == "Enabled" {
			split[gpu.Index] = true
		}
		gpus = append(gpus, gpu)
	}
	return gpus, split, nil
}

// sysfsAddress returns the PCI address as sysfs has it: 0000:19:00.0 for nvidia-smi's 00000000:19:00.0.
func sysfsAddress(bus string) string {
	if strings.HasPrefix(bus, "[") {
		return ""
	}
	return strings.ToLower(strings.TrimPrefix(bus, "0000"))
}

// number returns 0 for an unknown value such as [N/A].
func number(s string) int {
	n, _ := strconv.Atoi(s)
	return n
}
