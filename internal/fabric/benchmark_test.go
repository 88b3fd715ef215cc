// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

// On a slow network the benchmark measures what fits into its time, and is never silent for long. testdata/torch is a
// stand-in that computes the times.
func TestBenchmarkOnSlowNetworks(t *testing.T) {
	modules, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	const seconds = 40
	for _, test := range []struct {
		rate    string
		bytes   float64
		sockets bool
		largest agent.Bytes
	}{
		{"1 Gb/s", 0.125e9, true, 64 << 20},
		{"100 Mb/s", 0.0125e9, true, 16 << 20},
		{"10 Mb/s", 0.00125e9, true, 1 << 20},
		{"1 Gb/s in place of RDMA", 0.125e9, false, 128 << 20},
		{"1600 Gb/s", 200e9, false, 1 << 30},
	} {
		t.Run(test.rate, func(t *testing.T) {
			sizes, pair := MessageSizes(NCCL, test.sockets)
			arguments, err := Input{Nodes: 2, RanksPerNode: 1, Backend: NCCL, Seconds: seconds, Sizes: sizes, Pairs: Rounds(2), PairBytes: pair,
				Others: true, Inside: true}.Arguments()
			if err != nil {
				t.Fatal(err)
			}
			command := exec.Command("python3", arguments...)
			command.Env = append(os.Environ(), "PYTHONPATH="+modules, "PYTHONDONTWRITEBYTECODE=1", fmt.Sprintf("BYTES_PER_SECOND=%g", test.bytes))
			command.Stderr = os.Stderr
			out, err := command.Output()
			if err != nil {
				t.Fatalf("%v:\n%s", err, out)
			}
			var largest agent.Bytes
			var times struct{ Silence, Whole float64 }
			pairs, copies, done := 0, 0, false
			for text := range bytes.Lines(out) {
				line, ok := ParseLine(text)
				switch {
				case !ok && json.Unmarshal(text, &times) != nil:
					t.Errorf("unknown line %s", text)
				case line.Event == Done:
					done = true
				case line.Operation == HostCopy && line.Bandwidth().String() == "50.0 GB/s":
					copies++
				case line.Scope == InPair:
					pairs++
				case line.Operation == AllReduce:
					largest = max(largest, line.Bytes)
				}
			}
			if largest != test.largest || pairs != 1 || copies != 1 || !done {
				t.Errorf("the largest size is %d, want %d; %d pairs, %d measurements of copies, done %t", largest, test.largest, pairs, copies, done)
			}
			// A check waits at least 20 s for a sign of life.
			if times.Silence > 10 || times.Whole == 0 || times.Whole > seconds+15 {
				t.Errorf("silent for %.1f s of %.1f s, want signs of life and little more than %d s", times.Silence, times.Whole, seconds)
			}
		})
	}
}
