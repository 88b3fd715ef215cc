// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// makeIn returns make in a folder with the Makefile, without the variables of a make that runs this test. At the end of ctx it kills
// everything that make started.
func makeIn(ctx context.Context, t *testing.T, dir string, args ...string) *exec.Cmd {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := exec.LookPath("make"); err != nil {
		t.Skip("this machine has no make")
	}
	args = append(args, "--no-print-directory", "--file="+filepath.Join(root, "Makefile"), "--include-dir="+root)
	cmd := exec.CommandContext(ctx, "make", args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "MAKEFLAGS=", "MAKELEVEL=", "CLUSTER=", "SCRIPT=", "FILE=", "LOCAL_DIR=")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd
}

func makes(t *testing.T, dir string, args ...string) (string, error) {
	t.Helper()
	out, err := makeIn(t.Context(), t, dir, args...).CombinedOutput()
	return string(out), err
}

// TestTargetsOfScripts: the commands that the variables of the earlier scripts choose.
func TestTargetsOfScripts(t *testing.T) {
	for args, want := range map[string][]string{
		"build CLUSTER=cairo NAMESPACE=team": {"mlenv build --cluster-file=clusters/cairo.yaml --namespace=team"},
		"build":                              nil,
		"dev-session":                        {"mlenv sync --watch", "mlenv port-forward"},
		"dev-session DEBUG_PORT=9 LOCAL_DIR=code":  {"mlenv sync --watch code", "mlenv port-forward 9"},
		"dev-session SCRIPT=train.py":              {"mlenv dev train.py"},
		"dev-session FILE=train.py LOCAL_DIR=code": {"mlenv dev --dir=code train.py"},
		"gpu-info NODE=1":                          {"mlenv shell 1 -- nvidia-smi", "mlenv shell 1 -- nvidia-smi topo -m"},
	} {
		out, err := makes(t, filepath.Join("..", ".."), append(strings.Fields(args), "--dry-run", "MLENV=mlenv")...)
		if err != nil {
			t.Errorf("make %s: %v: %s", args, err, out)
			continue
		}
		var got []string
		for line := range strings.Lines(out) {
			if words := strings.Fields(line); len(words) > 0 && words[0] == "mlenv" {
				got = append(got, strings.Join(words, " "))
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("make %s (-want +got):\n%s", args, diff)
		}
	}
}

// TestDevSessionEnds: without a script, both commands run at once, and Ctrl-C ends both.
func TestDevSessionEnds(t *testing.T) {
	stub := filepath.Join(t.TempDir(), "mlenv") // in PATH, because make knows no path with spaces
	const program = "#!/bin/sh\necho started $1\nexec tail -f /dev/null\n"
	if err := os.WriteFile(stub, []byte(program), 0o755); err != nil { //nolint:gosec // it is run
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := makeIn(ctx, t, filepath.Join("..", ".."), "dev-session", "MLENV=mlenv")
	cmd.Env = append(cmd.Env, "PATH="+filepath.Dir(stub)+":"+os.Getenv("PATH"))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var started []string
	for lines := bufio.NewScanner(out); lines.Scan(); { // until the last of them has ended
		if command, ok := strings.CutPrefix(lines.Text(), "started "); ok {
			started = append(started, command)
		}
		if len(started) == 2 {
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) // as a terminal does
		}
	}
	_ = cmd.Wait() // make reports the interruption
	slices.Sort(started)
	if diff := cmp.Diff([]string{"port-forward", "sync"}, started); diff != "" || ctx.Err() != nil {
		t.Errorf("started (-want +got):\n%s%v", diff, ctx.Err())
	}
}
