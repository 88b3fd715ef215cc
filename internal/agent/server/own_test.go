// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/venv"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// leaves is the script of a program that leaves a process: without the job's variables, in a session of its own.
const leaves = `#!/bin/sh
env -i PATH="$PATH" setsid sh -c 'trap "" TERM HUP; echo $$ >left.new; mv left.new left; exec sleep 1000' &
until [ -s left ]; do sleep 0.01; done
`

// nothingLeft checks that the process whose number the file has does not run.
func (n *node) nothingLeft(file string) {
	n.t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		n.t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		n.t.Errorf("process %d still runs: %v", pid, err)
	}
}

// A rank cannot choose the programs that the agent itself runs for the job, by the PATH of the job.
func TestRanksChooseNoProgramOfTheAgent(t *testing.T) {
	n := newNode(t)
	n.PySpy()
	evil, marker := t.TempDir(), filepath.Join(t.TempDir(), "marker")
	for _, name := range []string{agent.PySpy, "python3"} {
		if err := os.WriteFile(filepath.Join(evil, name), []byte("#!/bin/sh\necho "+name+" >>'"+marker+"'\nexit 1\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	real, err := agent.FindProgram("python3", os.Getenv("PATH"))
	if err != nil {
		t.Fatal(err)
	}
	// The rank looks like one whose flight recorder has written a dump.
	n.script("dump.sh", "echo >\"${TORCH_NCCL_DEBUG_INFO_TEMP_FILE}0\"; echo up; exec sleep 1000")
	spec := command("dump.sh")
	spec.Env = map[string]string{"PATH": evil + ":" + filepath.Dir(real) + ":" + os.Getenv("PATH")}
	if _, err := n.Client.StartJob(t.Context(), "job", spec); err != nil {
		t.Fatal(err)
	}
	n.printed("job")
	if all, err := n.Client.Stacks(t.Context(), "job"); err != nil || len(all) != 1 || all[0].Problem != "" {
		t.Errorf("got %+v, %v; want the stacks of the agent's own py-spy", all, err)
	}
	n.stop()
	if ran, err := os.ReadFile(marker); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the agent ran %q of the job's PATH, %v", ran, err)
	}
}

// What the agent itself starts for a job leaves no process, neither by its end nor by the end of the job.
func TestNothingOutlivesTheAgentsPrograms(t *testing.T) {
	for _, tc := range []struct{ name, spy string }{
		{"one that ends", leaves + "echo '[]'"},
		{"one that does not end", leaves + "exec sleep 1000"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNode(t)
			folder := t.TempDir()
			if err := n.Tool(agent.PySpy, "#!/bin/sh\ncd '"+folder+"'\n"+strings.TrimPrefix(tc.spy, "#!/bin/sh\n")); err != nil {
				t.Fatal(err)
			}
			n.started("job", command("live.sh"))
			asked := make(chan error, 1)
			go func() {
				_, err := n.Client.Stacks(t.Context(), "job")
				asked <- err
			}()
			ctx, cancel := context.WithTimeout(t.Context(), timeForAJobToEnd)
			defer cancel()
			for ctx.Err() == nil {
				if _, err := os.Stat(filepath.Join(folder, "left")); err == nil {
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
			n.stop()
			n.nothingLeft(filepath.Join(folder, "left"))
			if err := <-asked; err != nil {
				t.Error(err)
			}
		})
	}
}

// The Python that looks for the module of a job runs nothing of the tree or of PYTHONPATH.
func TestTheSearchForAModuleRunsNothing(t *testing.T) {
	n := newNode(t)
	folder := t.TempDir()
	for _, name := range []string{"sitecustomize.py", "warnings.py", "importlib.py"} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte("open('"+folder+"/ran', 'w')\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	spec := agent.JobSpec{Launcher: agent.Torchrun, Script: "-m no_such_module", Nodes: 1, RanksPerNode: 1,
		Env: map[string]string{"PYTHONPATH": folder}}
	if _, err := n.Client.StartJob(t.Context(), "job", spec); fail.ReasonOf(err) != fail.ScriptNotFound {
		t.Errorf("got %v, want ScriptNotFound", err)
	}
	if _, err := os.Stat(filepath.Join(folder, "ran")); err == nil {
		t.Error("a file of PYTHONPATH was run")
	}
}

// A rank writes what the agent takes for a dump of torch: a pickle that would run code as the agent, and a FIFO.
func TestDumpsRunNothing(t *testing.T) {
	n := newNode(t)
	marker := filepath.Join(t.TempDir(), "marker")
	n.script("dump.py", `
import os, pickle
name = os.environ["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"]
class Evil:
    def __reduce__(self):
        return os.system, ("touch '`+marker+`'",)
with open(name + "0", "wb") as file:
    pickle.dump({"pg_config": {}, "entries": [], "x": Evil()}, file)
`)
	if _, err := n.Client.StartJob(t.Context(), "job", command("dump.py")); err != nil {
		t.Fatal(err)
	}
	if status := n.wait("job"); status.State != agent.Exited {
		t.Errorf("state %s", status.State)
	}
	if _, err := os.Stat(marker); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the dump ran code: %v", err)
	}
}

// A job uses the virtual environment that was made for its node's Python, and does not run without it.
func TestJobFindsItsVenv(t *testing.T) {
	n := newNode(t)
	hash := n.sync("content")
	base := filepath.Join(n.Config.Paths.Workspace, ".mlenv", "venvs", strings.Repeat("1", 64))
	if _, err := n.Client.SwitchTree(t.Context(), hash, agent.Switch{Venv: base}); err != nil {
		t.Fatal(err)
	}
	n.script("show.sh", `[ -e "$VIRTUAL_ENV/.complete" ] && python3 -c "import sys; sys.exit(sys.prefix != '$VIRTUAL_ENV')"`)
	spec := command("show.sh")
	spec.Tree, spec.Script = hash, filepath.Join(n.Config.Paths.Workspace, "show.sh")
	if _, err := n.Client.StartJob(t.Context(), "without", spec); fail.ReasonOf(err) != fail.SyncFailed ||
		!strings.Contains(fail.NextOf(err), "sync") {
		t.Errorf("without requirements: %v, want SyncFailed", err)
	}
	requirements := filepath.Join(t.TempDir(), "requirements.txt")
	if err := os.WriteFile(requirements, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var output strings.Builder
	if err := venv.Make(base, requirements, &output, &output); err != nil {
		t.Fatalf("%v\n%s", err, output.String())
	}
	if status := n.run("with", spec); status.State != agent.Exited || status.Launcher != (agent.Exit{}) {
		t.Errorf("%s, %+v: the ranks do not use their virtual environment", status.State, status.Launcher)
	}
}
