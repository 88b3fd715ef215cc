// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
)

// runFlags make a run small.
func runFlags() []string {
	return []string{"--launcher=command", "--gpus-per-node=1", "--check-fabric=false"}
}

// mlenvIn returns the command of mlenv, as users run it, in dir.
func (u trainer) mlenvIn(ctx context.Context, dir string, args ...string) *exec.Cmd {
	// After "--" they would be arguments of the script.
	args = slices.Insert(slices.Clone(args), 1, "--kubeconfig="+cmp.Or(u.login, kubeconfig), "--namespace="+u.namespace)
	cmd := exec.CommandContext(ctx, u.mlenvProgram, args...)
	cmd.Dir = dir
	return cmd
}

// says runs the command until it ends, and compares the exit code.
func (u trainer) says(dir string, code int, args ...string) (stdout, stderr string) {
	u.Helper()
	if u.workstation != nil {
		return u.saysThere(code, args...)
	}
	return u.saysWithin(timeForARunToEnd, dir, code, args...)
}

// saysWithin is says for a command that takes longer.
func (u trainer) saysWithin(limit time.Duration, dir string, code int, args ...string) (stdout, stderr string) {
	u.Helper()
	ctx, cancel := u.within(limit)
	defer cancel()
	cmd := u.mlenvIn(ctx, dir, args...)
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	err := cmd.Run()
	if got := codeOf(err); got != code {
		u.Fatalf("mlenv %v: exit code %d, %v, want %d\n%s%s", args, got, err, code, shortened(out.String()), problems.String())
	}
	return out.String(), problems.String()
}

func codeOf(err error) int {
	var exited *exec.ExitError
	if errors.As(err, &exited) {
		return exited.ExitCode()
	}
	if err != nil {
		return -1
	}
	return 0
}

// project creates a git folder with uncommitted changes.
func (u trainer) project(files map[string]string) string {
	u.Helper()
	dir := u.TempDir()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			u.Fatal(err)
		}
	}
	return dir
}

// runByMlenv trains from a folder, and fetches files to this machine after the environment is
// released.
func runByMlenv(u trainer) {
	u.kubectl("apply", "--filename=../../docs/examples/rights/user.yaml")
	u.kubectl("create", "serviceaccount", "engineer")
	u.kubectl("create", "rolebinding", "mlenv-users", "--role=mlenv-user", "--serviceaccount="+u.namespace+":engineer")
	engineer := u
	engineer.login = u.kubeconfigOf("engineer")

	dir := u.project(map[string]string{
		"train.sh": "test ! -e ignored || exit 3\necho \"args $*\"\nmkdir -p /workspace/out mine\necho weights > " +
			"/workspace/out/model-$NODE_RANK\necho own > mine/part-$NODE_RANK\n",
		"ignored":    "not sent",
		".gitignore": "ignored\n",
	})
	out, _ := engineer.says(dir, command.Done, append([]string{"run", ".", "train.sh", "--run-name=by-mlenv"},
		append(runFlags(), "--", "one", "two words")...)...)
	u.mustContain(out, "[0 -] args one two words")
	u.mustContain(out, "Run by-mlenv succeeded")
	const most = 25 // lines of ours, besides progress, which is indented
	if ours := slices.DeleteFunc(strings.Split(out, "\n"), func(line string) bool {
		return strings.HasPrefix(line, "[train] [") || strings.Contains(line, "]   ")
	}); len(ours) > most {
		u.Errorf("a run that goes well prints %d lines, want at most %d:\n%s", len(ours), most, strings.Join(ours, "\n"))
	}
	u.nothingLeft()

	out, _ = engineer.says(dir, command.Done, "runs")
	u.mustContain(out, "by-mlenv")
	out, _ = engineer.says(dir, command.Done, "status", "by-mlenv", "--output=json")
	u.mustContain(out, `"state": "Succeeded"`)
	out, _ = engineer.says(dir, command.Done, "receipt", "by-mlenv")
	u.mustContain(out, "all pods and GPUs were released")
	u.kubectl("delete", "pods", "--selector=tekton.dev/pipelineRun=by-mlenv", "--wait")
	out, _ = engineer.says(dir, command.Done, "logs", "by-mlenv", "--rank=1")
	u.mustContain(out, "args one two words")
	engineer.says(dir, command.Done, "fetch", "by-mlenv", "out", "logs", "--to=got")
	for node, name := range []string{"model-0", "model-1"} {
		content, err := os.ReadFile(filepath.Join(dir, "got", "out", name))
		if err != nil || string(content) != "weights\n" {
			u.Errorf("node %d: %s is %q, %v", node, name, content, err)
		}
	}
	engineer.says(dir, command.Done, "fetch", "by-mlenv", "--to=all")
	for _, part := range []string{"part-0", "part-1"} {
		if content, err := os.ReadFile(filepath.Join(dir, "all", "work", "mine", part)); err != nil || string(content) != "own\n" {
			u.Errorf("a file at a relative path: %q, %v", content, err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "all", "work", "train.sh")); err == nil {
		u.Error("the script, which the run did not change, was fetched")
	}
	_, problems := engineer.says(dir, command.Failed, "fetch", "by-mlenv", "nosuch")
	u.mustContain(problems, "not found; /workspace/.mlenv/work/", "has mine")
	_, problems = engineer.says(dir, command.WrongUsage, "run", "https://example.com/r", "--param=nodse=2")
	u.mustContain(problems, "want the training script")
	engineer.says(dir, command.WrongUsage, "status", "no-such-run")

	out, _ = engineer.says(dir, command.Done, "prune", "--files", "--yes", "by-mlenv")
	u.mustContain(out, "The logs of these runs, and what they wrote at relative paths, are deleted", "The receipt of run")
	engineer.says(dir, command.Done, "claims")
}

// requirementsFail trains from a folder whose requirements cannot be installed: the run fails for that reason, and is
// not cancelled. The message names the log, which still exists after the run.
func requirementsFail(u trainer) {
	dir := u.project(map[string]string{"train.sh": "true\n", "pip.txt": "./no-such-file.whl\n"})
	run := append([]string{"run", ".", "train.sh", "--run-name=unresolved", "--requirements=pip.txt"}, runFlags()...)
	out, problems := u.says(dir, command.Failed, run...)
	u.mustContain(problems, "Run unresolved failed", "RequirementsFailed", "installing pip.txt on node ")
	next := regexp.MustCompile(`mlenv (fetch unresolved /workspace/\S+/(rank-\d\.log)) `).FindStringSubmatch(out)
	if next == nil {
		u.Fatalf("mlenv printed no command for the log of pip:\n%s", shortened(out))
	}
	got := u.TempDir() // not in dir, because another file there would make it a different training
	u.says(dir, command.Done, append(strings.Fields(next[1]), "--to="+got)...)
	var log []byte
	err := filepath.WalkDir(got, func(path string, _ os.DirEntry, err error) error {
		if filepath.Base(path) == next[2] {
			log, err = os.ReadFile(path)
		}
		return err
	})
	if err != nil {
		u.Fatal(err)
	}
	u.mustContain(string(log), "pip.txt")

	// The same command reports the verdict of the ended run again.
	out, problems = u.says(dir, command.Failed, run...)
	u.mustContain(problems, "Run unresolved failed")
	if strings.Contains(out+problems, "mlenv up") {
		u.Errorf("the run was followed again:\n%s%s", out, problems)
	}
}

// runCancelledByCtrlC tests that SIGINT without a terminal cancels the run, waits for the
// teardown, and reports it.
func runCancelledByCtrlC(u trainer) {
	ctx, cancel := u.within(timeForARunToEnd)
	defer cancel()
	cmd := u.mlenvIn(ctx, u.TempDir(), append([]string{"run", u.repo, "e2e/hold.sh", "--run-name=ctrl-c"}, runFlags()...)...)
	out := &watched{wanted: "node 1 holds the environment", seen: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		u.Fatal(err)
	}
	select {
	case <-out.seen:
	case <-ctx.Done():
		u.Errorf("mlenv did not print %q", out.wanted)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		u.Error(err)
	}
	if got := codeOf(cmd.Wait()); got != command.Interrupted {
		u.Errorf("exit code %d, want %d", got, command.Interrupted)
	}
	u.mustContain(out.String(), "Run ctrl-c was cancelled")
	e := u.end("ctrl-c")
	e.equal("what teardown says", e.receipt.Teardown, "all pods and GPUs were released")
}

// watched is a writer that reports when a text has arrived.
type watched struct {
	wanted string
	seen   chan struct{}
	mu     sync.Mutex
	all    strings.Builder
	told   bool
}

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all.Write(p)
	if !w.told && strings.Contains(w.all.String(), w.wanted) {
		w.told = true
		close(w.seen)
	}
	return len(p), nil
}

func (w *watched) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all.String()
}
