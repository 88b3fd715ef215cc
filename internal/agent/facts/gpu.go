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
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

// smiFields are asked of nvidia-smi. Older drivers do not know all of them.
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

// unknownField is what nvidia-smi says to a field that its driver does not have.
var unknownField = regexp.MustCompile(`Field "([^"]+)" is not a valid field to query`)

// GPUs lists the GPUs that processes of this container can use, as nvidia-smi
// sees them. Without nvidia-smi there are none and no error. What an older driver
// does not tell is left out.
func GPUs(ctx context.Context) ([]agent.GPU, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	fields := slices.Clone(smiFields)
	for {
		out, err := exec.CommandContext(ctx, "nvidia-smi", "--query-gpu="+strings.Join(fields, ","), "--format=csv,noheader,nounits").Output()
		if err == nil {
			return parseGPUs(string(out), fields)
		}
		var exit *exec.ExitError
		switch refused := unknownField.FindSubmatch(out); {
		case errors.Is(err, exec.ErrNotFound):
			return nil, nil
		case errors.As(err, &exit) && exit.ExitCode() == 6: // there is no device
			return nil, nil
		case refused == nil || !slices.Contains(fields, string(refused[1])):
			return nil, fmt.Errorf("running nvidia-smi: %w: %s", err, strings.TrimSpace(string(out)))
		default:
			fields = slices.DeleteFunc(fields, func(field string) bool { return field == string(refused[1]) })
		}
	}
}

// parseGPUs reads the answer of nvidia-smi to fields.
func parseGPUs(text string, fields []string) ([]agent.GPU, error) {
	lines := csv.NewReader(strings.NewReader(text))
	lines.TrimLeadingSpace = true
	lines.FieldsPerRecord = len(fields)
	records, err := lines.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("reading nvidia-smi's answer: %w", err)
	}
	var gpus []agent.GPU
	for _, record := range records {
		of := func(field string) string {
			if i := slices.Index(fields, field); i >= 0 {
				return record[i]
			}
			return "[N/A]"
		}
		gpu := agent.GPU{
			Index: number(of("index")), UUID: of("uuid"), Model: of("name"), Driver: of("driver_version"),
			Memory: agent.Bytes(number(of("memory.total"))) << 20, MemoryUsed: agent.Bytes(number(of("memory.used"))) << 20,
			Utilization: number(of("utilization.gpu")), Temperature: number(of("temperature.gpu")),
		}
		active, _ := strconv.ParseUint(strings.TrimPrefix(of("clocks_event_reasons.active"), "0x"), 16, 64)
		for _, s := range slowdowns {
			if active&s.bit != 0 {
				gpu.Throttled = append(gpu.Throttled, s.name)
			}
		}
		var faults []string
		if action := of("gpu_recovery_action"); action != "None" && !strings.HasPrefix(action, "[") {
			faults = append(faults, "the driver asks for recovery: "+action)
		}
		if n := number(of("ecc.errors.uncorrected.volatile.total")); n > 0 {
			faults = append(faults, humanize.Count(n, "uncorrected memory error"))
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
