// SPDX-License-Identifier: Apache-2.0

//go:build linux

package runs

import (
	"bufio"
	"cmp"
	"context"
	_ "embed" // the script that fails
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"

	mldevenv "github.com/ml-dev-env/ml-dev-env"
	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env/local"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/train"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
	"github.com/ml-dev-env/ml-dev-env/test/locked"
)

// TestMain hides the folder of local runs that this machine may have.
func TestMain(m *testing.M) {
	if err := os.Unsetenv("XDG_DATA_HOME"); err != nil {
		panic(err)
	}
	agenttest.Main(m)
}

// locally runs mlenv run --local in a folder with the script train.py.
func locally(ctx context.Context, t *testing.T, out io.Writer, script string, args ...string) error {
	t.Helper()
	dir := t.TempDir()
	if os.Getenv("XDG_DATA_HOME") == "" {
		withoutCluster(t)
	}
	t.Setenv("RANK", "9") // of another training of this shell
	if err := os.WriteFile(filepath.Join(dir, "train.py"), []byte(script), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := RunCommand(mldevenv.Bundle)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetOut(out)
	cmd.SetErr(t.Output())
	cmd.SetArgs(append([]string{dir, filepath.Join(dir, "train.py"), "--local"}, args...)) // the copy is run
	return cmd.ExecuteContext(ctx)
}

// withoutCluster gives the test a home of its own, without a kubeconfig.
func withoutCluster(t *testing.T) {
	t.Helper()
	for _, name := range []string{"XDG_DATA_HOME", "HOME"} {
		t.Setenv(name, t.TempDir())
	}
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none")) // with an empty one, client-go reads the file of the home at its start
}

//go:embed testdata/fails/train.py
var fails string

// says is the script without its failure: each rank prints who it is, and all meet.
var says = func() string {
	_, script, _ := strings.Cut(fails, "\n") // the licence
	script, _, _ = strings.Cut(script, "step = ")
	return script
}()

func TestLocalRun(t *testing.T) {
	var out locked.Buffer
	err := locally(t.Context(), t, &out, says+`open("out.txt", "a").write("x")`, "--nodes=2", "--ranks-per-node=2", "--launcher=torchrun",
		"--run-name=try-1",
		"--env=A=b", "--", "--lr", "1")
	if err != nil {
		t.Fatal(fail.Details(err), out.String())
	}
	for _, want := range []string{"Run try-1 on this machine: 2 nodes", "rank 3 of 4 on 1 ['--lr', '1']",
		"Training done: 4 ranks exited with 0."} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("want %q in:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "was connected to another one") {
		t.Errorf("the ranks met:\n%s", out.String())
	}
	written, err := os.ReadFile(filepath.Join(os.Getenv("XDG_DATA_HOME"), "mlenv", ".mlenv", "work", "try-1", "out.txt"))
	if err != nil || string(written) != "xxxx" {
		t.Errorf("the ranks wrote %q, %v; want one x each", written, err)
	}
}

// A rank that raises is named as on a cluster. What is printed is what the README shows: byte for byte, between the gaps.
func TestLocalFailure(t *testing.T) {
	page, err := os.ReadFile("../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(string(page), "<!-- docs: skip: TestLocalFailure runs it -->\n\n")
	block, _, _ = strings.Cut(block, "\n\n")
	want := strings.Split(strings.TrimPrefix(strings.ReplaceAll(block, "\n    ", "\n"), "    "), "\n")
	args := strings.Fields(want[0])
	next := regexp.MustCompile(`mlenv logs (\S+) --rank=3$`).FindStringSubmatch(block)
	if len(args) < 3 || args[0] != "$" || next == nil {
		t.Fatalf("the README has no run that fails, with its next command:\n%s", block)
	}
	withoutCluster(t)
	t.Chdir("testdata/fails")
	var out locked.Buffer
	root := &cobra.Command{Use: args[1], SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(RunCommand(mldevenv.Bundle))
	if code := command.MainCommands(root, append(args[2:], "--run-name="+next[1]), &out, &out); code != command.Failed {
		t.Errorf("exit code %d, want %d", code, command.Failed)
	}
	printed := strings.Split(out.String(), "\n")
	for _, line := range want[1:] {
		at := slices.Index(printed, line)
		if at < 0 && line != "..." {
			t.Fatalf("the README shows %q, which is not printed, or earlier:\n%s", line, out.String())
		}
		printed = printed[at+1:]
	}
}

// With max-restarts the job starts again.
func TestLocalRestart(t *testing.T) {
	var out locked.Buffer
	err := locally(t.Context(), t, &out, `import os, sys; sys.exit(int(os.environ["MLENV_ATTEMPT"]) == 1)`, "--nodes=1", "--max-restarts=1",
		"--launcher=command")
	if err != nil || !strings.Contains(out.String(), "Attempt 1 failed") {
		t.Errorf("got %v, want a second attempt that succeeds:\n%s", err, out.String())
	}
}

// Rules end a local run, or start it again, as on a cluster. The NaN of the second attempt is at the same step, which no restart helps.
func TestLocalRules(t *testing.T) {
	const script = `import os, time
if os.environ["NODE_RANK"] == "0":
    with open(os.environ["MLENV_METRICS_FILE"], "a") as file:
        print('{"step": 1, "loss": 2.5}', '{"step": 2, "loss": NaN}', sep="\n", file=file)
time.sleep(600)
`
	for name, tc := range map[string]struct {
		args     []string
		attempts int
		want     string
	}{
		"stop-if": {[]string{"--stop-if=no checkpoint for 2h", "--stop-if=loss is nan"}, 1, "(stop-if: loss is nan)"},
		"restart-if": {[]string{"--restart-if=loss is nan", "--max-restarts=3"}, 2,
			"(restart-if: loss is nan); not restarted: attempt 1 ended with the same error at step 2"},
	} {
		t.Run(name, func(t *testing.T) {
			var out locked.Buffer
			err := locally(t.Context(), t, &out, script, append([]string{"--nodes=2", "--launcher=command"}, tc.args...)...)
			want := "the loss at step 2 is NaN; before it was 2.5 at step 1 " + tc.want
			if fail.ReasonOf(err) != fail.StopCondition || !strings.Contains(err.Error(), want) {
				t.Errorf("got %s: %v, want StopCondition with %q\n%s", fail.ReasonOf(err), err, want, out.String())
			}
			if got := strings.Count(out.String(), "Launched "); got != tc.attempts {
				t.Errorf("%d attempts, want %d", got, tc.attempts)
			}
		})
	}
}

// Ctrl-C ends the ranks, and so does the loss of the terminal.
func TestLocalInterrupted(t *testing.T) {
	t.Run("Ctrl-C", func(t *testing.T) {
		ctx, interrupt := context.WithCancel(t.Context())
		testInterrupted(ctx, t, interrupt)
	})
	t.Run("terminal lost", func(t *testing.T) {
		// If the tests ran under nohup, the run would ignore the signal.
		signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
		testInterrupted(t.Context(), t, func() { _ = syscall.Kill(os.Getpid(), syscall.SIGHUP) })
	})
}

func testInterrupted(ctx context.Context, t *testing.T, interrupt func()) {
	t.Helper()
	reader, writer := io.Pipe()
	var seen []string
	read := make(chan struct{})
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(reader); lines.Scan(); {
			seen = append(seen, lines.Text())
			if strings.Contains(lines.Text(), "sleeping") {
				interrupt()
			}
		}
	}()
	err := locally(ctx, t, writer, `import time; print("sleeping", flush=True); time.sleep(600)`, "--nodes=2", "--ranks-per-node=1",
		"--run-name=interrupted")
	_ = writer.Close()
	<-read
	if left := processesOf(t, "interrupted"); left != nil {
		t.Errorf("processes %v of the run are left", left)
	}
	if fail.ReasonOf(err) != fail.Cancelled || !slices.ContainsFunc(seen, func(line string) bool {
		return strings.Contains(line, "Stopping the training")
	}) {
		t.Errorf("got %v, want Cancelled:\n%s", err, strings.Join(seen, "\n"))
	}
}

// TestLocalShell: a shell script that hides a failure is warned of, and one that prints into a file of its own is explained by that.
func TestLocalShell(t *testing.T) {
	for _, tc := range []struct{ script, want string }{
		{"no-such-program 2>&1 | cat", "the log of rank 0 on node 0 ends in a failure: run.sh: line 1: no-such-program: command not found"},
		{"mkdir output && echo 'bad batch' > output/training.log; exit 3",
			"rank 0 on node 0 exited with 3, want exit code 0; it printed nothing, and its last lines are those of output/training.log"},
	} {
		withoutCluster(t)
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "run.sh"), []byte(tc.script), 0o644); err != nil {
			t.Fatal(err)
		}
		var out locked.Buffer
		cmd := RunCommand(mldevenv.Bundle)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		cmd.SetArgs([]string{dir, "run.sh", "--local", "--launcher=command", "--nodes=1"})
		err := cmd.ExecuteContext(t.Context())
		if text := out.String() + fmt.Sprint(err); !strings.Contains(text, tc.want) {
			t.Errorf("want %q in:\n%s", tc.want, text)
		}
	}
}

// TestLocalOutputThatNothingReads: a run goes on and its output is kept while nothing reads it, and Ctrl-C ends it. Ctrl-C also ends
// mlenv logs.
func TestLocalOutputThatNothingReads(t *testing.T) {
	withoutCluster(t)
	dir := t.TempDir()
	const script = `import time
for _ in range(30000): print("x" * 99)
print("sleeping", flush=True); time.sleep(600)`
	if err := os.WriteFile(filepath.Join(dir, "train.py"), []byte(script), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, interrupt := context.WithCancel(t.Context())
	run := unread(ctx, t, RunCommand(mldevenv.Bundle), dir, filepath.Join(dir, "train.py"), "--local", "--nodes=1", "--ranks-per-node=1",
		"--run-name=unread")
	follow := LogsCommand()
	seen := &watched{wanted: "sleeping", seen: make(chan struct{})}
	follow.SetOut(seen)
	follow.SetArgs([]string{"unread", "--follow"})
	followed := make(chan error, 1)
	go func() { followed <- follow.ExecuteContext(ctx) }()
	<-seen.seen
	interrupt()
	if code := <-run; code != command.Interrupted {
		t.Errorf("run: exit code %d, want %d", code, command.Interrupted)
	}
	if exit := (*command.Exit)(nil); !errors.As(<-followed, &exit) || exit.Code != command.Interrupted {
		t.Errorf("logs --follow: got %+v, want exit code %d", exit, command.Interrupted)
	}
	ctx, interrupt = context.WithCancel(t.Context())
	logs := unread(ctx, t, LogsCommand(), "unread")
	interrupt()
	<-logs
}

// unread runs a command of which nothing reads more than the first byte, and returns when it has written that. Its exit code comes later.
func unread(ctx context.Context, t *testing.T, of *cobra.Command, args ...string) (code <-chan int) {
	t.Helper()
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { reader.Close(); writer.Close() })
	root := &cobra.Command{Use: "mlenv"}
	root.AddCommand(of)
	ended := make(chan int, 1)
	go func() {
		ended <- command.RunCommands(ctx, root, append([]string{of.Name()}, args...), writer, t.Output())
	}()
	if _, err := reader.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return ended
}

// processesOf returns the processes of a run's jobs.
func processesOf(t *testing.T, run string) (pids []string) {
	t.Helper()
	paths, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil || paths == nil {
		t.Fatalf("no processes: %v", err)
	}
	for _, path := range paths {
		// A process that has ended has none.
		if environ, err := os.ReadFile(path); err == nil && slices.Contains(strings.Split(string(environ), "\x00"), "MLENV_RUN="+run) {
			pids = append(pids, filepath.Base(filepath.Dir(path)))
		}
	}
	return pids
}

// The ranks of a run that is interrupted learn so from the module mlenv, and save for longer than ranks may run after another one failed.
func TestLocalInterruptedSaves(t *testing.T) {
	const script = `
import os, pathlib, time
import mlenv
assert not mlenv.stopping()
print("training", flush=True)
while not mlenv.stopping():
    time.sleep(0.05)
time.sleep(6)
saved = pathlib.Path(os.environ["MLENV_WORKSPACE"], "checkpoints", os.environ["MLENV_RUN"], "step-7")
saved.mkdir(parents=True, exist_ok=True)
(saved / "mp_rank_00_model_states.pt").write_text("x")
saved.with_name("latest").write_text("step-7")
saved.with_name("of-" + os.environ["RANK"]).write_text(f"{mlenv.stopping().reason} {mlenv.stopping().seconds_left > 5}")
`
	ctx, interrupt := context.WithCancel(t.Context())
	reader, writer := io.Pipe()
	var seen strings.Builder
	read := make(chan struct{})
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(reader); lines.Scan(); {
			fmt.Fprintln(&seen, lines.Text())
			if strings.Count(seen.String(), "] training") == 2 {
				interrupt()
			}
		}
	}()
	err := locally(ctx, t, writer, script, "--nodes=2", "--ranks-per-node=1", "--launcher=torchrun", "--stop-grace=1m")
	_ = writer.Close()
	<-read
	if fail.ReasonOf(err) != fail.Cancelled || !strings.Contains(err.Error(), "its ranks saved step-7 before they ended") {
		t.Errorf("got %v, want Cancelled with the checkpoint:\n%s", err, seen.String())
	}
	folder, err := local.Folder()
	if err != nil {
		t.Fatal(err)
	}
	told, err := filepath.Glob(filepath.Join(folder, "checkpoints", "*", "of-*"))
	if err != nil || len(told) != 2 {
		t.Fatalf("got %v, %v; want what each rank was told", told, err)
	}
	for _, path := range told {
		if text, err := os.ReadFile(path); err != nil || string(text) != "cancelled True" {
			t.Errorf("%s has %q, %v; want the reason, and time left", path, text, err)
		}
	}
}

// standInSMI takes the place of nvidia-smi: a machine with that many GPUs.
func standInSMI(t *testing.T, gpus int) {
	t.Helper()
	bin := t.TempDir()
	script := fmt.Sprintf("#!/bin/sh\n# A stand-in for NVIDIA's program.\nfor i in $(seq 0 %d); do\n"+
		"echo \"$i, GPU-$i, stand-in, 580.95.05, 81559, 4, 0, 30, 0x0, None, 0, 00000000:${i}9:00.0, Disabled, 9.0\"; done\n", gpus-1)
	if err := os.WriteFile(filepath.Join(bin, "nvidia-smi"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
}

// The nodes divide the GPUs that the shell may use. The ranks of a run without GPUs see none.
func TestLocalGPUs(t *testing.T) {
	const script = `import os; print("sees", os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)`
	for name, tc := range map[string]struct {
		gpus        int
		environ     string
		args        []string
		first, last string
	}{
		"all":                     {gpus: 4, first: "GPU-0,GPU-1", last: "GPU-2,GPU-3"},
		"all, in NVIDIA's images": {gpus: 2, environ: "NVIDIA_VISIBLE_DEVICES=all", first: "GPU-0", last: "GPU-1"},
		"some":                    {gpus: 4, environ: "CUDA_VISIBLE_DEVICES=1,GPU-3", first: "GPU-1", last: "GPU-3"},
		"none":                    {gpus: 4, environ: "CUDA_VISIBLE_DEVICES=", args: []string{"--launcher=deepspeed"}, first: "-1", last: "-1"},
		"none, with torchrun":     {gpus: 1, environ: "CUDA_VISIBLE_DEVICES=-1", args: []string{"--launcher=torchrun"}},
		"one node":                {gpus: 1, args: []string{"--nodes=1", "--launcher=torchrun"}, first: "None", last: "None"},
	} {
		t.Run(name, func(t *testing.T) {
			standInSMI(t, tc.gpus)
			for _, variable := range []string{"NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"} { // of this machine
				t.Setenv(variable, "")
				if err := os.Unsetenv(variable); err != nil {
					t.Fatal(err)
				}
			}
			if variable, value, ok := strings.Cut(tc.environ, "="); ok {
				t.Setenv(variable, value)
			}
			var out locked.Buffer
			if err := locally(t.Context(), t, &out, script, tc.args...); err != nil {
				t.Fatal(fail.Details(err), out.String())
			}
			for _, want := range []string{"[0 0] sees " + tc.first, "sees " + tc.last} {
				if !strings.Contains(out.String(), want+"\n") {
					t.Errorf("want %q in:\n%s", want, out.String())
				}
			}
		})
	}
}

// The advice works for any number of GPUs.
func TestLocalGPUsForNoNode(t *testing.T) {
	standInSMI(t, 1)
	t.Setenv("CUDA_VISIBLE_DEVICES", "0")
	err := locally(t.Context(), t, io.Discard, "")
	if fail.ReasonOf(err) != fail.InvalidInput || !strings.HasPrefix(fail.NextOf(err), "--nodes=1, or CUDA_VISIBLE_DEVICES= ") {
		t.Errorf("got %v (%s), want the advice", err, fail.NextOf(err))
	}
}

// What a local run cannot do is refused by name, all at once.
func TestLocalMistakes(t *testing.T) {
	err := locally(t.Context(), t, io.Discard, "import torch_that_nobody_has", "--cluster=barcelona", "--mode=rdma", "--detach",
		"--launcher=mpi", "--max-restarts=-1", "--nodes=65")
	var exit *command.Exit
	if !errors.As(err, &exit) || exit.Code != command.WrongUsage {
		t.Fatalf("got %v, want wrong usage", err)
	}
	for _, want := range []string{"--cluster: ", "--mode: ", "--detach: ", "--launcher ", "--max-restarts \"-1\"", "--nodes \"65\""} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("want %q in: %v", want, err)
		}
	}
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"GPUs":             {[]string{"--gpus-per-node=2"}, "--gpus-per-node: a local run has no use for it; want --ranks-per-node"},
		"too many nodes":   {[]string{"--nodes=400"}, "want 1 to 64 nodes"},
		"no such Python":   {[]string{"--python=/nonexistent/python3"}, "want the path of a python3"},
		"two scripts":      {[]string{"--script=no.py"}, "and --script: want one of them"},
		"a DeepSpeed file": {[]string{"--deepspeed-config=none.json"}, "none.json"},
		"a wrong timeout":  {[]string{"--timeout=soon"}, "timeout"},
		"a requirement":    {[]string{"--requirements=none.txt"}, "none.txt"},
		"a wrong rule":     {[]string{"--stop-if=loss is nan", "--stop-if=loss > 20"}, `--stop-if "loss > 20": want loss is nan, `},
		"an empty rule":    {[]string{"--restart-if="}, `--restart-if "": want loss is nan, `},
		"rules in conflict": {[]string{"--stop-if=loss is nan", "--restart-if=loss is nan"},
			`rule "loss is nan" is in stop-if and in restart-if`},
		"no restarts":       {[]string{"--restart-if=loss is nan"}, "restart-if has rules and max-restarts is 0"},
		"a strange value":   {[]string{"--require-rendezvous=maybe"}, "want warn or fail"},
		"no pause":          {[]string{"--param=progress-every=0s"}, `--progress-every "0s": want a duration`},
		"no such rank":      {[]string{"--param=debug-rank=-5"}, `--debug-rank "-5": want a rank from 0`},
		"an unknown option": {[]string{"--param=nonsense=1"}, "nonsense"},
	} {
		t.Run(name, func(t *testing.T) {
			err := locally(t.Context(), t, io.Discard, "print()", tc.args...)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

// Packages that a script imports, itself or by its own modules, and that Python does not have, are reported before anything starts.
func TestLocalPackages(t *testing.T) {
	err := locally(t.Context(), t, io.Discard, "import os\nfrom nobody_has_this import comm\n")
	if fail.ReasonOf(err) != fail.InvalidInput || !strings.Contains(err.Error(), "imports nobody_has_this (train.py:2), which") ||
		!strings.Contains(fail.NextOf(err), "-m pip install nobody_has_this") {
		t.Errorf("got %v (%s), want the package that is missing", err, fail.NextOf(err))
	}
}

// The path of a Python is relative to the current folder. A virtual environment gets the package by pip; a system's Python may refuse that.
func TestLacksPackagesOfAPython(t *testing.T) {
	t.Chdir(t.TempDir())
	venv := exec.CommandContext(t.Context(), "python3", "-m", "venv", "--without-pip", "venv")
	if out, err := venv.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	lacks := func(python string) error {
		return lacksPackages(t.Context(), python, t.TempDir(), train.Options{Script: "main.sh", Launcher: agent.TorchrunLauncher}, false)
	}
	err := lacks("venv/bin/python3")
	if want := "launcher torchrun-launcher needs torch, which venv/bin/python3 does not have"; err == nil || err.Error() != want ||
		fail.NextOf(err) != "venv/bin/python3 -m pip install torch" {
		t.Errorf("got %v (%s), want %q", err, fail.NextOf(err), want)
	}
	if found, _ := filepath.Glob("/usr/lib/python3*/EXTERNALLY-MANAGED"); found == nil {
		t.Skip("the system's Python installs packages")
	}
	const system = "/usr/bin/python3"
	const made = system + " -m venv venv && venv/bin/python3 -m pip install torch "
	if err := lacks(system); err != nil && !strings.HasPrefix(fail.NextOf(err), made) {
		t.Errorf("the advice for a system's Python without torch is %q", fail.NextOf(err))
	}
}

func TestLacksPackages(t *testing.T) {
	const trainer = "import os, json\nimport nobody_has.this\n"
	for name, tc := range map[string]struct {
		script string
		files  map[string]string
		env    []string
		// launcher is torchrun unless it is given.
		launcher agent.Launcher
		// want is in the error, and next in the advice; "" for no error.
		want, next string
	}{
		"by a module next to the script": {script: "code/main.py", files: map[string]string{"code/main.py": "from trainer import Trainer\n",
			"code/trainer.py": trainer}, want: "code/main.py imports nobody_has (code/trainer.py:2), which", next: "-m pip install nobody_has"},
		"by a module of a package": {script: "-m pkg.main", files: map[string]string{"pkg/main.py": "from . import trainer\n",
			"pkg/trainer.py": trainer}, want: "nobody_has (pkg/trainer.py:2)", next: "nobody_has"},
		"by a package's own file": {script: "-m pkg.main", files: map[string]string{"pkg/main.py": "", "pkg/__init__.py": "",
			"pkg/sub/__init__.py": trainer, "pkg/__main__.py": "", "main.py": ""}},
		"by a package that is imported": {script: "main.py", files: map[string]string{"main.py": "import pkg.sub.deep\n",
			"pkg/sub/__init__.py": trainer, "pkg/sub/deep.py": ""}, want: "nobody_has (pkg/sub/__init__.py:2)", next: "nobody_has"},
		"several, with requirements": {script: "a/main.py", files: map[string]string{"a/main.py": "import nobody_a\nimport nobody_b as b\n",
			"a/requirements.txt": "", "requirements.txt": ""},
			want: "nobody_a (a/main.py:1) and nobody_b (a/main.py:2), which", next: "--requirements=a/requirements.txt"},
		"in a try": {script: "main.py", files: map[string]string{
			"main.py": "try:\n  import nobody_has\nexcept ImportError:\n  pass\n"}},
		"in a function": {script: "main.py", files: map[string]string{"main.py": "def f():\n  import nobody_has\n"}},
		"for types only": {script: "main.py", files: map[string]string{
			"main.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n import nobody_has\n"}},
		"elsewhere in the folder": {script: "bench/run.py", files: map[string]string{
			"bench/run.py": "import communication.utils\n", "communication/utils.py": ""}},
		"a folder of that name without modules": {script: "main.py", files: map[string]string{"main.py": "import nobody_has\n",
			"nobody_has/config.yaml": ""}, want: "main.py imports nobody_has (main.py:1)"},
		"the agent's own module": {script: "main.py", files: map[string]string{"main.py": "import mlenv\n"}},
		"where sys.path leads": {script: "main.py", files: map[string]string{
			"main.py": "import sys\nsys.path.append('/opt/x')\nimport nobody_has\n"}},
		"modules of Python's names": {script: "main.py", files: map[string]string{"main.py": "import nobody_has\n",
			"ast.py": "raise SystemExit\n", "sysconfig.py": "open('ran', 'w')\n", "site.py": "open('ran', 'w')\n"},
			want: "main.py imports nobody_has (main.py:1)"},
		"where PYTHONPATH leads": {script: "a/main.py", files: map[string]string{"a/main.py": "import helpers\n", "lib/helpers.py": ""},
			env: []string{"PYTHONPATH=lib"}},
		"what PYTHONPATH leads to not": {script: "a/main.py", files: map[string]string{"a/main.py": "import helpers\nimport nobody_has\n",
			"lib/helpers.py": ""}, env: []string{"PYTHONPATH=lib"}, want: "a/main.py imports nobody_has (a/main.py:2)"},
		"no python3": {script: "main.py", env: []string{"PATH=/nonexistent"},
			want: "starting the ranks: there is no python3 in PATH (/nonexistent)", next: "--python="},
		"no python3 for a launcher": {script: "main.sh", env: []string{"PATH=/nonexistent"},
			want: "there is no python3", next: "--python="},
		"no python3 for a command": {script: "main.sh", env: []string{"PATH=/nonexistent"},
			launcher: agent.Command},
		"a shell script":      {script: "main.sh", files: map[string]string{"main.sh": "import nobody_has\n"}},
		"no Python":           {script: "main.py", files: map[string]string{"main.py": "import nobody_has\nprint 'x'\n"}},
		"no such script":      {script: "main.py"},
		"imports in a circle": {script: "a.py", files: map[string]string{"a.py": "import b\n", "b.py": "import a\nimport os.path\n"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for name, content := range tc.files {
				if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			err := lacksPackages(t.Context(), "", dir, train.Options{Script: tc.script, Env: tc.env,
				Launcher: cmp.Or(tc.launcher, agent.Torchrun)}, false)
			if _, ran := os.Stat(filepath.Join(dir, "ran")); ran == nil {
				t.Error("a file of the folder was run")
			}
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want) ||
				!strings.Contains(fail.NextOf(err), tc.next)) {
				t.Errorf("got %v (%s), want %q (%s)", err, fail.NextOf(err), tc.want, tc.next)
			}
		})
	}
}

// What the ignore files leave out is told before the training, and what a local run cannot check is refused.
func TestBeforeALocalRun(t *testing.T) {
	withoutCluster(t)
	dir := repositoryWith(t, map[string]string{"train.py": "import nobody_has\n", ".gitignore": "*.bin\n", "data/train.bin": "12345678"})
	start := func(args ...string) (string, error) {
		var told locked.Buffer
		cmd := RunCommand(mldevenv.Bundle)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetOut(t.Output())
		cmd.SetErr(&told)
		cmd.SetArgs(append([]string{dir, "train.py", "--local"}, args...))
		err := cmd.ExecuteContext(t.Context())
		return told.String(), err
	}
	told, err := start()
	if err == nil || !strings.Contains(err.Error(), "nobody_has") || told != "Left out by .gitignore and .mlenvignore: 1 file, 8 B.\n" {
		t.Errorf("got %v and %q, want the package that is missing and the file that is left out", err, told)
	}
	if _, err := start("--launcher=command", "--require-rendezvous=fail"); fail.ReasonOf(err) != fail.InvalidInput ||
		!strings.Contains(err.Error(), "--require-rendezvous=fail: the programs of launcher command are not checked") {
		t.Errorf("got %v, want that launcher command cannot be checked", err)
	}
}
