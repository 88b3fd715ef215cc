// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package frameworks trains unchanged programs with the oldest and the newest versions of their frameworks, on this machine.
package frameworks

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

// The programs are those of chaos: they print their steps and in the end a digest of the weights, and save every 25 steps.
const programs, every = "./test/e2e/testdata/repo", 25

// The blows fall after this step, far from the next save. A step takes pace.
const struckAfter, pace = 60, 50 * time.Millisecond

// frameworks have a program each, and the package by which their version is known. stopped are arguments for the run that is stopped.
var frameworks = []struct{ source, program, distribution, stopped string }{
	{"transformers", "chaos_trainer.py", "transformers", fmt.Sprint("--evaluate-after=", struckAfter)},
	{"Lightning", "chaos_lightning.py", "lightning", ""},
	{"DeepSpeed", "chaos_deepspeed.py", "deepspeed", ""},
	{"torch.optim", "chaos_accelerate.py", "accelerate", ""},
}

// pythons are that of the images with GPUs, and the machine's own. The oldest versions have no wheels for newer ones.
var pythons = []string{"python3.12", "python3"}

func TestFrameworks(t *testing.T) {
	t.Chdir("../..")
	page, err := os.ReadFile("docs/train/saving.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, set := range []string{"oldest", "newest"} {
		t.Run(set, func(t *testing.T) {
			bin := install(t, set)
			t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
			t.Setenv("OMP_NUM_THREADS", "1")
			t.Setenv("DS_ACCELERATOR", "cpu")
			t.Setenv("TORCH_EXTENSIONS_DIR", filepath.Join(bin, "extensions")) // DeepSpeed compiles one
			for _, f := range frameworks {
				t.Run(f.source, func(t *testing.T) {
					version := versions(t, f.distribution)
					if set == "oldest" && !strings.Contains(strings.ToLower(string(page)), version) {
						t.Errorf("docs/train/saving.md does not name %s", version)
					}
					t.Setenv("XDG_DATA_HOME", t.TempDir())
					t.Logf("%s, %s: %s", version, versions(t, "torch"), unchanged(t, f.program, f.source, strings.Fields(f.stopped)...))
				})
			}
		})
	}
}

// install makes a virtual environment with the packages of a set, and returns its folder of programs. It is removed in the end, because
// it takes several GB.
func install(t *testing.T, set string) (bin string) {
	t.Helper()
	venv, err := filepath.Abs(filepath.Join("bin/frameworks", set))
	if err != nil {
		t.Fatal(err)
	}
	remove := func() {
		if err := os.RemoveAll(venv); err != nil {
			t.Error(err)
		}
	}
	remove()
	t.Cleanup(remove)
	python := slices.IndexFunc(pythons, func(python string) bool { return exec.CommandContext(t.Context(), python, "--version").Run() == nil })
	if python < 0 {
		t.Fatalf("found none of %v in PATH", pythons)
	}
	t.Setenv("DS_BUILD_OPS", "0")
	bin = filepath.Join(venv, "bin")
	for _, args := range [][]string{{pythons[python], "-m", "venv", venv},
		{filepath.Join(bin, "pip"), "install", "--quiet", "--no-cache-dir", "--no-compile", "--disable-pip-version-check",
			"--requirement=test/frameworks/testdata/" + set + ".txt"}} {
		if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	return bin
}

// versions returns a distribution and its version, as the page names them.
func versions(t *testing.T, distribution string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "python3", "-c",
		"import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))", distribution).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", distribution, err, out)
	}
	return distribution + " " + strings.TrimSpace(string(out))
}

// unchanged trains undisturbed, stopped and resumed, and with a rank that is killed twice, and tells what it has seen.
func unchanged(t *testing.T, program, source string, whenStopped ...string) string {
	t.Helper()
	train := func(name string, pace time.Duration, args ...string) *training {
		return start(t, name, append([]string{programs, program, "--nodes=2", "--ranks-per-node=1", "--max-restarts=2", "--",
			fmt.Sprintf("--pace=%g", pace.Seconds())}, args...)...)
	}

	whole := train("undisturbed", 0)
	r := whole.end("")
	var metrics struct {
		Step, Loss float64
		Source     string
	}
	if err := json.Unmarshal(r.Metrics, &metrics); err != nil || metrics.Step == 0 || metrics.Loss == 0 || metrics.Source != source {
		t.Errorf("the metrics are %s, want a step and a loss of %s: %v", r.Metrics, source, err)
	}
	want := whole.found(`the weights are (\w+)`)

	stopped := train("stopped", pace, whenStopped...)
	stopped.reach(1, struckAfter)
	if err := stopped.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	r = stopped.end(fail.Cancelled)
	last, saved := number(t, stopped.found(`attempt 1 step (\d+)`)), number(t, newest.FindString(r.Checkpoint))
	if saved != last && saved != last+1 { // the hook may save before the program prints
		t.Errorf("stopped after step %d, and the newest checkpoint is %q", last, r.Checkpoint)
	}
	if len(whenStopped) > 0 && saved != struckAfter {
		t.Errorf("stopped during the evaluation after step %d, and saved after step %d", struckAfter, saved)
	}
	resumed := start(t, "resumed", "--resume-from=stopped")
	resumed.end("")
	if first := number(t, resumed.found(`attempt 1 continues after step (\d+)`)); first != saved {
		t.Errorf("saved after step %d, and resumed after step %d", saved, first)
	}

	killed := train("killed", pace)
	var first int
	for attempt := 1; attempt <= 2; attempt++ { // the second time before it has saved
		killed.reach(attempt, struckAfter+5*attempt)
		killed.killRank(1)
	}
	killed.end("")
	for attempt := 1; attempt <= 2; attempt++ {
		first = number(t, killed.found(fmt.Sprintf(`attempt %d continues after step (\d+)`, attempt+1)))
		if struck := number(t, killed.found(fmt.Sprintf(`attempt %d step (\d+)`, attempt))); first != struck/every*every {
			t.Errorf("attempt %d was killed after step %d, and the next one continued after step %d", attempt, struck, first)
		}
	}
	for _, other := range []*training{resumed, killed} {
		if got := other.found(`the weights are (\w+)`); got != want {
			t.Errorf("the weights of %s are %s, want %s", other.name, got, want)
		}
	}
	return fmt.Sprintf("step %g, loss %.2g; stopped and resumed after step %d; killed, and continued after step %d; weights %.8s",
		metrics.Step, metrics.Loss, saved, first, want)
}

// newest matches the step in the name of a checkpoint.
var newest = regexp.MustCompile(`\d+(\.ckpt)?$`)

func number(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimSuffix(text, ".ckpt"))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// training is a mlenv run --local.
type training struct {
	*testing.T
	name   string
	cmd    *exec.Cmd
	ended  chan struct{}
	output bytes.Buffer // to be read at the end
}

func start(t *testing.T, name string, args ...string) *training {
	t.Helper()
	run := &training{T: t, name: name, ended: make(chan struct{})}
	run.cmd = exec.CommandContext(t.Context(), "bin/mlenv", append([]string{"run", "--local", "--run-name=" + name}, args...)...)
	run.cmd.Stdout, run.cmd.Stderr = &run.output, &run.output
	run.cmd.Cancel = func() error { return run.cmd.Process.Signal(syscall.SIGTERM) }
	if err := run.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = run.cmd.Wait() // the receipt tells how it has ended
		close(run.ended)
	}()
	t.Cleanup(func() {
		_ = run.cmd.Process.Signal(syscall.SIGTERM)
		<-run.ended
	})
	return run
}

// workspace is that of local runs.
func workspace() string { return filepath.Join(os.Getenv("XDG_DATA_HOME"), "mlenv") }

// log returns what rank 0 has printed until now, in all attempts. What mlenv prints comes later, and lacks what is printed after SIGTERM.
func (run *training) log() (all string) {
	for attempt := 1; attempt <= 3; attempt++ {
		content, _ := os.ReadFile(filepath.Join(workspace(), ".mlenv/runs", run.name, agent.AttemptFolder(attempt), "rank-0.log"))
		all += string(content)
	}
	return all
}

// reach waits until rank 0 has done this step.
func (run *training) reach(attempt, step int) {
	run.Helper()
	for !strings.Contains(run.log(), fmt.Sprintf("attempt %d step %d\n", attempt, step)) {
		select {
		case <-run.ended:
			run.Fatalf("%s ended before step %d:\n%s", run.name, step, run.output.String())
		case <-time.After(pace / 10):
		}
	}
}

// end waits for the end, with this reason, and returns the receipt.
func (run *training) end(reason fail.Reason) (r receipt.Receipt) {
	run.Helper()
	<-run.ended
	out, err := exec.CommandContext(run.Context(), "bin/mlenv", "receipt", run.name, "--output=json").Output()
	if err == nil {
		err = json.Unmarshal(out, &r)
	}
	if err != nil || r.Reason != reason {
		run.Fatalf("%s ended with reason %q, want %q: %v\n%s", run.name, r.Reason, reason, err, run.output.String())
	}
	return r
}

// found returns what the last match of a pattern in the log has in its parentheses.
func (run *training) found(pattern string) string {
	run.Helper()
	all := regexp.MustCompile(pattern).FindAllStringSubmatch(run.log(), -1)
	if all == nil {
		run.Fatalf("%s printed nothing like %q:\n%s", run.name, pattern, run.output.String())
	}
	return all[len(all)-1][1]
}

// killRank kills a rank by SIGKILL.
func (run *training) killRank(rank int) {
	run.Helper()
	want := []string{"MLENV_WORKSPACE=" + workspace(), "MLENV_RUN=" + run.name, fmt.Sprintf("RANK=%d", rank)}
	processes, _ := filepath.Glob("/proc/[0-9]*")
	for _, process := range processes {
		exe, _ := os.Readlink(process + "/exe") // the agent's shim has the same variables
		environ, _ := os.ReadFile(process + "/environ")
		has := strings.Split(string(environ), "\x00")
		if !strings.Contains(exe, "python") || slices.ContainsFunc(want, func(variable string) bool { return !slices.Contains(has, variable) }) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(process))
		if err == nil {
			err = syscall.Kill(pid, syscall.SIGKILL)
		}
		if err != nil {
			run.Fatal(err)
		}
		return
	}
	run.Fatalf("found no rank %d of %s", rank, run.name)
}
