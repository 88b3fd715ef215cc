// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"golang.org/x/sys/unix"
)

// aJob returns a job whose keepers are the test's own binary.
func aJob(t *testing.T) *job {
	return &job{processes: &processes{record: t.TempDir()}, own: ownPrograms{agent: os.Args[0]}}
}

// A rank can tamper with a process so that its stacks are endless.
func TestOutputOfProgramsIsBounded(t *testing.T) {
	var value any
	if err := aJob(t).runJSON(t.Context(), &value, "cat", "/dev/zero"); err == nil || !strings.Contains(err.Error(), "running cat: ") {
		t.Errorf("an endless output: %v, want a refusal", err)
	}
}

// A status has the innermost frames of the main thread; the record has all of every thread.
func TestFramesOfAStatus(t *testing.T) {
	var threads []pythonThread
	var frames []string
	for i := range agent.MaxFrames + 1 {
		frames = append(frames, fmt.Sprintf(`{"name": "f%d", "filename": "train.py", "line": %d}`, i, i))
	}
	text := fmt.Sprintf(`[{"os_thread_id": 1, "frames": [%[1]s]}, {"os_thread_id": 2, "frames": [%[1]s]}]`, strings.Join(frames, ", "))
	if err := json.Unmarshal([]byte(text), &threads); err != nil {
		t.Fatal(err)
	}
	var record bytes.Buffer
	main := writeThreads(&record, 2, threads)
	if len(main) != agent.MaxFrames || main[0].Function != "f0" || strings.Count(record.String(), "(train.py:") != 2*len(frames) {
		t.Errorf("%d frames from %v on, and the record\n%s", len(main), main, &record)
	}
}

// The process that trains is a worker of the launcher that a rank runs, and not the launcher, nor what helps a worker.
func TestPythonOf(t *testing.T) {
	const (
		helper = `import multiprocessing; multiprocessing.get_context("fork").Process(target=input).start(); `
		worker = `import os; os.write(1, b"worker %d\n" % os.getpid()); input()`
		launch = `import os, subprocess, sys
all = [subprocess.Popen([sys.executable, "-c", sys.argv[1]], env={**os.environ, "RANK": str(n)}) for n in range(2)]
for p in all: p.wait()`
		alone = helper + worker
	)
	for _, tc := range []struct {
		name    string
		command []string
		env     string
		// workers is how many there are.
		workers int
	}{
		{"a rank of ours with a helper", []string{"python3", "-c", alone}, "RANK=0", 1},
		{"a shell without a rank", []string{"sh", "-c", `python3 -c "$0"; true`, alone}, "NODE_RANK=0", 1},
		{"a launcher in a shell", []string{"sh", "-c", `python3 -c "$0" "$1"; true`, launch, alone}, "NODE_RANK=0", 2},
		{"no Python", []string{"sh", "-c", `echo worker $$; read line; true`}, "NODE_RANK=0", 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			command := exec.Command(tc.command[0], tc.command[1:]...)
			command.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "RANK=") }), tc.env)
			in, hold := io.Pipe() // it reads until the test ends
			command.Stdin = in
			out, err := command.StdoutPipe()
			if err == nil {
				err = command.Start()
			}
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_, _, tree := pythonOf(command.Process.Pid)
				for _, pid := range tree {
					_ = unix.Kill(pid, unix.SIGKILL)
				}
				_ = hold.Close()
				_ = command.Wait()
			})
			lines := bufio.NewScanner(out)
			var workers []int
			for len(workers) < tc.workers && lines.Scan() {
				var pid int
				if _, err := fmt.Sscanf(lines.Text(), "worker %d", &pid); err != nil {
					t.Fatal(lines.Text())
				}
				workers = append(workers, pid)
			}
			slices.Sort(workers)
			python, others, tree := pythonOf(command.Process.Pid)
			if got := append([]int{python}, others...); !slices.Equal(got, workers) || tree[0] != command.Process.Pid {
				t.Errorf("workers %v in %v, want %v", got, tree, workers)
			}
		})
	}
}

// A helper may have a smaller ID than the worker that started it.
func TestTopmost(t *testing.T) {
	all := []process{{pid: 300, parent: 32754}, {pid: 32754, parent: 32683}, {pid: 32755, parent: 32683}, {pid: 301, parent: 300}}
	if got := topmost(all); !slices.Equal(got, []int{32754, 32755}) {
		t.Errorf("got %v, want the workers", got)
	}
}
