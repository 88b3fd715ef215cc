// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package bench

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent/pylib"
	"github.com/ml-dev-env/ml-dev-env/test/bench/report"
)

// hookScript prints the seconds that the interpreter took to start and torch to import, and the microseconds of a step of an optimizer of
// one small tensor, which costs less than any step of a training.
const hookScript = `
import sys, time
started = time.time() - float(sys.argv[1])
begin = time.perf_counter()
import torch
imported = time.perf_counter() - begin
parameter = torch.nn.Parameter(torch.zeros(1000))
parameter.grad = torch.ones(1000)
optimizer = torch.optim.SGD([parameter], lr=0.1)
for _ in range(1000):
    optimizer.step()
begin = time.perf_counter()
for _ in range(20000):
    optimizer.step()
print(started, imported, (time.perf_counter() - begin) / 20000 * 1e6)
`

// BenchmarkHook runs the python3 in PATH, which needs torch, with and without the hook in turns.
func BenchmarkHook(b *testing.B) {
	before := report.Machine("one rank")
	folder := b.TempDir()
	check(b, pylib.Write(folder))
	environ := append(os.Environ(), "OMP_NUM_THREADS=1", "RANK=0", "PYTHONPATH="+folder, pylib.ErrorsVariable+"="+folder,
		"MLENV_METRICS_FILE="+filepath.Join(folder, "metrics"))
	modes := []string{pylib.None, pylib.Auto}
	var measured [2][3][]float64
	once := func(mode int) (seconds [3]float64) {
		cmd := exec.CommandContext(b.Context(), "sh", "-c", `exec python3 -c "$0" "$(date +%s.%N)"`, hookScript)
		cmd.Env = slices.Concat(environ, []string{pylib.HookVariable + "=" + modes[mode]})
		out, err := cmd.Output()
		if err == nil {
			_, err = fmt.Sscan(string(out), &seconds[0], &seconds[1], &seconds[2])
		}
		if err != nil {
			b.Fatalf("the benchmark needs a python3 in PATH that has torch: pip install torch numpy: %v: %s", err, out)
		}
		return seconds
	}
	once(0)
	for b.Loop() {
		for mode := range modes {
			for i, s := range once(mode) {
				measured[mode][i] = append(measured[mode][i], s)
			}
		}
	}
	rows := [][]string{{"seconds, " + report.When(), "without the hook", "with it"}}
	for i, what := range []string{"start of the interpreter", "import of torch", "a step of an optimizer of 1,000 numbers, in µs"} {
		rows = append(rows, []string{what, compared(measured[0][i], measured[0][i]), compared(measured[1][i], measured[0][i])})
	}
	report.Page{Name: page, Target: "bench-local"}.Print(b, "hook", rows, before)
}
