// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"encoding/csv"
	"strings"
	"testing"
	"testing/fstest"
)

// FuzzParseGPUs: every record of nvidia-smi is one GPU.
func FuzzParseGPUs(f *testing.F) {
	f.Add("0, GPU-a, NVIDIA H200, 580.95.05, 143771, 0, 97, 60, 0x0000000000000060, None, 0, 00000000:19:00.0, Disabled, 9.0\n")
	f.Add("0, GPU-a, \"NVIDIA, H200\", 580.95.05, [N/A], 0, 97, 60, 0xzz, Reset, 3, [N/A], Enabled\n")
	f.Add("No devices were found\n")
	f.Fuzz(func(t *testing.T, text string) {
		gpus, split, err := parseGPUs(text, smiFields)
		lines := csv.NewReader(strings.NewReader(text))
		lines.TrimLeadingSpace = true
		records, wrong := lines.ReadAll()
		if err != nil {
			return
		}
		if wrong != nil || len(gpus) != len(records) || len(split) > len(gpus) {
			t.Fatalf("%d GPUs, %v; want one for each of %d records", len(gpus), wrong, len(records))
		}
		for i, gpu := range gpus {
			if gpu.UUID != records[i][1] || len(gpu.Throttled) > len(slowdowns) {
				t.Fatalf("GPU %d is %+v, want %q", i, gpu, records[i])
			}
		}
	})
}

// FuzzMemory: no file of a cgroup gives a negative amount.
func FuzzMemory(f *testing.F) {
	f.Add("max\n", "inactive_file 12\n", "oom_kill 3\n")
	f.Add("-5\n", "inactive_file -7", "oom_kill x")
	f.Add("9223372036854771712", "", "oom_kill 99999999999999999999")
	f.Fuzz(func(t *testing.T, limit, stat, events string) {
		for _, sys := range []fstest.MapFS{
			{"cgroup.controllers": {}, "memory.max": {Data: []byte(limit)}, "memory.stat": {Data: []byte(stat)},
				"memory.events": {Data: []byte(events)}},
			{"memory/memory.limit_in_bytes": {Data: []byte(limit)}, "memory/memory.oom_control": {Data: []byte(events)}},
		} {
			if m := ReadMemory(sys); m.Limit < 0 || m.Limit >= 1<<60 || m.Cache < 0 || m.Killed < 0 {
				t.Fatalf("got %+v", m)
			}
		}
	})
}
