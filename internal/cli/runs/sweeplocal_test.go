// SPDX-License-Identifier: Apache-2.0

//go:build linux

package runs

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	mldevenv "github.com/ml-dev-env/ml-dev-env"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env/local"
)

// sweepIn runs a sweep in a folder, whose script is the same each time.
func sweepIn(ctx context.Context, t *testing.T, dir string, out io.Writer, args ...string) error {
	t.Helper()
	cmd := RunCommand(mldevenv.Bundle)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetOut(out)
	cmd.SetErr(t.Output())
	cmd.SetArgs(append([]string{dir, "train.py", "--local", "--nodes=1", "--launcher=command"}, args...))
	return cmd.ExecuteContext(ctx)
}

// A sweep on this machine trains one trial after another, and each once.
func TestLocalSweep(t *testing.T) {
	withoutCluster(t)
	dir := t.TempDir()
	const script = `import os, sys
lr, seed = (arg.split("=")[1] for arg in sys.argv[1:3])
open(os.environ["MLENV_METRICS_FILE"], "a").write('{"step": 40, "loss": %s}\n' % (1 / float(lr)))
sys.exit("no such seed" if (lr, seed) == ("2", "1") else 0)
`
	if err := os.WriteFile(filepath.Join(dir, "train.py"), []byte(script), 0o644); err != nil {
		t.Fatal(err)
	}
	flags := []string{"--sweep=lr=1,2", "--sweep=seed=1..2", "--run-name=s"}
	for i, tc := range []struct {
		args []string
		want []string
		not  string
	}{
		{nil, []string{"== trial 3 of 4, s-3: lr=2 seed=1", "Run s-1 succeeded", "Sweep s: 3 Succeeded, 1 Failed.", "next: mlenv logs s-3\n"},
			"has ended"},
		{nil, []string{"It has ended.\n== trial 4 of 4", "Sweep s: 3 Succeeded, 1 Failed."}, "Run s-1"},
		{[]string{"--output=json"}, []string{`"kind": "Sweep"`, `"sweep": "s"`, `"loss": 0.5`, `"seed": "2"`}, "=="},
	} {
		var out bytes.Buffer
		err := sweepIn(t.Context(), t, dir, &out, append(flags, tc.args...)...)
		if codeOf(err) != command.Failed {
			t.Fatalf("%d: got %v, want exit code 1\n%s", i, err, out.String())
		}
		for _, want := range tc.want {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%d: want %q in:\n%s", i, want, out.String())
			}
		}
		if strings.Contains(out.String(), tc.not) {
			t.Errorf("%d: want no %q in:\n%s", i, tc.not, out.String())
		}
		if _, table, ok := strings.Cut(out.String(), "NAME"); ok && strings.Index(table, "s-4") > strings.Index(table, "s-1") {
			t.Errorf("the trial with the lowest loss is not the first:\n%s", table)
		}
	}
	prints(t, []string{"s-1", "s-4"}, ListCommand(), "--local", "--sweep=s")
	if got, err := output(t, ListCommand(), "--local", "--sweep=none"); err != nil || got != "" {
		t.Errorf("runs of another sweep: %q, %v", got, err)
	}
	prints(t, []string{"sweep        s"}, StatusCommand(), "s-1")
	for _, tc := range []struct{ flags, want string }{
		{"--sweep=lr=1,3 --sweep=seed=1..2 --run-name=s", "local run s-4 exists with another param script-args"},
		{"--sweep=lr=1,2 --sweep=seed=1..2 --run-name=s --max-restarts=1", "local run s-1 exists with another param max-restarts"},
	} {
		if err := sweepIn(t.Context(), t, dir, io.Discard, strings.Fields(tc.flags)...); codeOf(err) != command.WrongUsage ||
			!strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %q", tc.flags, err, tc.want)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "train.py"), []byte(script+"#"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := sweepIn(t.Context(), t, dir, io.Discard, flags...); codeOf(err) != command.WrongUsage ||
		!strings.Contains(err.Error(), "s-1 exists with another content of its folder") {
		t.Errorf("with another file: got %v", err)
	}
}

// sleeper writes a script that prints a word and sleeps until the returned file exists.
func sleeper(t *testing.T, dir string) (marker string) {
	t.Helper()
	marker = filepath.Join(t.TempDir(), "go-on")
	script := "import os, time\nprint('sleeping', flush=True)\nwhile not os.path.exists('" + marker + "'):\n    time.sleep(0.02)\n"
	if err := os.WriteFile(filepath.Join(dir, "train.py"), []byte(script), 0o644); err != nil {
		t.Fatal(err)
	}
	return marker
}

// sweepPrinting runs a sweep, and calls seen when it prints a line with the text. It returns the sweep's output and error.
func sweepPrinting(ctx context.Context, t *testing.T, dir, text string, seen func(), flags ...string) (string, error) {
	t.Helper()
	reader, writer := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := sweepIn(ctx, t, dir, writer, flags...)
		_ = writer.Close()
		ended <- err
	}()
	var out strings.Builder
	for lines := bufio.NewScanner(reader); lines.Scan(); {
		out.WriteString(lines.Text() + "\n")
		if strings.Contains(lines.Text(), text) {
			seen()
		}
	}
	return out.String(), <-ended
}

// Ctrl-C cancels the trial in progress and starts no other one. The same command starts the others, and that one not again.
func TestLocalSweepInterrupted(t *testing.T) {
	withoutCluster(t)
	dir := t.TempDir()
	marker, flags := sleeper(t, dir), []string{"--sweep=seed=1..2", "--run-name=s"}
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	out, err := sweepPrinting(ctx, t, dir, "sleeping", interrupt, flags...)
	if codeOf(err) != command.Interrupted || !strings.Contains(out, "Sweep s: 1 Cancelled, 1 NotStarted.") {
		t.Fatalf("got %v, want exit code 130\n%s", err, out)
	}
	if _, exists := local.Find("s-2"); exists {
		t.Error("the second trial was started")
	}
	if err := os.WriteFile(marker, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	var again bytes.Buffer
	if err := sweepIn(t.Context(), t, dir, &again, flags...); codeOf(err) != command.Failed ||
		!strings.Contains(again.String(), "Sweep s: 1 Succeeded, 1 Cancelled.") {
		t.Errorf("again: %v\n%s", err, again.String())
	}
}

// A second mlenv follows the trial that the first one trains, and each trial is still trained once.
func TestLocalSweepFollowed(t *testing.T) {
	withoutCluster(t)
	dir := t.TempDir()
	marker, flags := sleeper(t, dir), []string{"--sweep=seed=1..2", "--run-name=s"}
	type result struct {
		out string
		err error
	}
	second := make(chan result, 1)
	startSecond := sync.OnceFunc(func() {
		go func() {
			out, err := sweepPrinting(t.Context(), t, dir, "trains it; following its output.", func() {
				if err := os.WriteFile(marker, nil, 0o644); err != nil {
					t.Error(err)
				}
			}, flags...)
			second <- result{out, err}
		}()
	})
	out, err := sweepPrinting(t.Context(), t, dir, "sleeping", startSecond, flags...)
	other := <-second
	for _, r := range []result{{out, err}, other} {
		if r.err != nil || !strings.Contains(r.out, "Sweep s: 2 Succeeded.") {
			t.Errorf("%v\n%s", r.err, r.out)
		}
	}
	if trained := strings.Count(out+other.out, "Run s-2 on this machine"); !strings.Contains(other.out, "sleeping") || trained > 2 {
		t.Errorf("the second one does not show what it follows:\n%s", other.out)
	}
}
