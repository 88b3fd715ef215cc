// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/test/bench/report"
)

// BenchmarkLocal trains with two ranks on this machine by mlenv run --local and by torchrun --standalone in turns, with the python3
// in PATH, which needs torch.
func BenchmarkLocal(b *testing.B) {
	const script = "test/bench/testdata/train.py"
	if out, err := exec.CommandContext(b.Context(), "python3", "-c", "import torch").CombinedOutput(); err != nil {
		b.Fatalf("the benchmark needs a python3 in PATH that has torch: pip install torch numpy: %s", out)
	}
	before := report.Machine("the ranks and mlenv")
	b.Setenv("XDG_DATA_HOME", b.TempDir())
	mlenv := []string{"bin/mlenv", "run", "./test/bench/testdata", "train.py", "--local", "--launcher=torchrun"}
	projects := []*project{
		local("two nodes", append(mlenv, "--nodes=2", "--ranks-per-node=1", "--")...),
		local("one node", append(mlenv, "--nodes=1", "--ranks-per-node=2", "--")...),
		local("torchrun --standalone", "python3", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", script),
	}
	for _, p := range projects {
		warm := *p // the first run is not counted
		check(b, warm.run(b.Context(), "warm"))
	}
	for i := 0; b.Loop(); i++ {
		for turn := range projects {
			check(b, projects[(i+turn)%len(projects)].run(b.Context(), strconv.Itoa(i)))
		}
	}
	rows := [][]string{{"seconds, " + report.When()}, {"from the command to the first rank"}, {"from the command to the first training step"},
		{"from the last rank's end to the command's end"}, {"from the end of a rank that fails to the command's end"}}
	base := projects[0]
	for _, p := range projects {
		for i, cell := range []string{p.name, compared(p.first, base.first), compared(p.step, base.step), compared(p.known, base.known),
			compared(p.failed, base.failed)} {
			rows[i] = append(rows[i], cell)
		}
	}
	report.Page{Name: page, Target: "bench-local"}.Print(b, "local", rows, before)
}

// local is a project that trains with a command on this machine, which ends with the training.
func local(name string, command ...string) *project {
	return &project{name: name, train: func(ctx context.Context, _ string, fail bool) (t trained, err error) {
		args := command[1:len(command):len(command)]
		if fail {
			args = append(args, "--fail")
		}
		cmd := exec.CommandContext(ctx, command[0], args...)
		cmd.Env = append(os.Environ(), "OMP_NUM_THREADS=1")
		t.began = time.Now()
		out, err := cmd.CombinedOutput()
		t.known, t.output = time.Now(), string(out)
		if fail {
			return t, nil // times says if it is not rank 1 that failed
		}
		if err != nil {
			return t, fmt.Errorf("%w: %s", err, out)
		}
		return t, nil
	}, remove: func(context.Context, string) error { return nil }}
}
