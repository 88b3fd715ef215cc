package facts

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

// smiFields are asked of nvidia-smi, in this order.
var smiFields = []string{"index", "uuid", "name", "driver_version", "memory.total", "memory.used", "utilization.gpu", "temperature.gpu",
	"clocks_event_reasons.active", "gpu_recovery_action", "ecc.errors.uncorrected.volatile.total"}

// slowdowns are the bits of clocks_event_reasons.active that mean that a GPU is
// held back by heat, power or its board (nvml.h, nvmlClocksEventReason*). Idling,
// clocks that somebody set and the software power cap are ordinary.
var slowdowns = []struct {
	bit  uint64
	name string
}{
	{0x08, "hardware slowdown"},
	{0x20, "software thermal slowdown"},
	{0x40, "hardware thermal slowdown"},
	{0x80, "hardware power brake"},
}

// GPUs lists the GPUs that processes of this container can use, as nvidia-smi
// sees them. Without nvidia-smi there are none and no error.
func GPUs(ctx context.Context) ([]agent.GPU, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "nvidia-smi", "--query-gpu="+strings.Join(smiFields, ","), "--format=csv,noheader,nounits").Output()
	if errors.Is(err, exec.ErrNotFound) {
		return nil, nil
	}
	if len(out) == 0 || err != nil {
		// nvidia-smi exits with 6 where it finds no device.
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.ExitCode() == 6 {
			return nil, nil
		}
		return nil, fmt.Errorf("running nvidia-smi: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return ParseGPUs(string(out))
}

// ParseGPUs reads the answer of nvidia-smi to smiFields.
func ParseGPUs(text string) ([]agent.GPU, error) {
	lines := csv.NewReader(strings.NewReader(text))
	lines.TrimLeadingSpace = true
	lines.FieldsPerRecord = len(smiFields)
	records, err := lines.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("reading nvidia-smi's answer: %w", err)
	}
	var gpus []agent.GPU
	for _, record := range records {
		gpu := agent.GPU{
			Index: number(record[0]), UUID: record[1], Model: record[2], Driver: record[3],
			Memory: agent.Bytes(number(record[4])) << 20, MemoryUsed: agent.Bytes(number(record[5])) << 20,
			Utilization: number(record[6]), Temperature: number(record[7]),
		}
		active, _ := strconv.ParseUint(strings.TrimPrefix(record[8], "0x"), 16, 64)
		for _, s := range slowdowns {
			if active&s.bit != 0 {
				gpu.Throttled = append(gpu.Throttled, s.name)
			}
		}
		var faults []string
		if action := record[9]; action != "None" && !strings.HasPrefix(action, "[") {
			faults = append(faults, "the driver asks for recovery: "+action)
		}
		if n := number(record[10]); n > 0 {
			faults = append(faults, fmt.Sprintf("%d uncorrected memory errors", n))
		}
		gpu.Fault = strings.Join(faults, "; ")
		gpus = append(gpus, gpu)
	}
	return gpus, nil
}

// number is 0 for what nvidia-smi does not know, as in [N/A].
func number(s string) int {
	n, _ := strconv.Atoi(s)
	return n
}
