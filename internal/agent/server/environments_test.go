// SPDX-License-Identifier: Apache-2.0

package server

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/record"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// TestEnvironmentsShareAClaim: an agent that starts on a shared workspace leaves the jobs, the tree and the hostfile of
// another environment alone.
func TestEnvironmentsShareAClaim(t *testing.T) {
	dir := t.TempDir()
	read := func(name string) Config {
		variables := append(nodeVariables("0", name+"-0", "2"), "MLENV_NAME="+name)
		c, err := ReadConfig("test", variables[1:])
		if err != nil {
			t.Fatal(err)
		}
		own := c.Paths.Own
		c.Paths.Workspace, c.Paths.Home = dir, t.TempDir()
		if own != "" {
			c.Paths.Own = filepath.Join(dir, strings.TrimPrefix(own, agent.Workspace))
		}
		if err := c.prepare(); err != nil {
			t.Fatal(err)
		}
		return c
	}
	first, second := read(agent.DefaultName), read(agent.DefaultName+"-kim")
	for c, want := range map[*Config]string{&first: ".deepspeed/hostfile", &second: ".mlenv/environments/ml-dev-env-kim/.deepspeed/hostfile"} {
		hosts, err := os.ReadFile(filepath.Join(dir, want))
		if err != nil || c.Paths.hostfile() != filepath.Join(dir, want) || !strings.HasPrefix(string(hosts), c.Name+"-0.") {
			t.Errorf("hostfile of %s at %s is %q, %v", c.Name, c.Paths.hostfile(), hosts, err)
		}
	}
	if mine, theirs := first.additions()["TRITON_CACHE_DIR"], second.additions()["TRITON_CACHE_DIR"]; mine == theirs {
		t.Errorf("both nodes compile to %s", mine)
	}

	job := filepath.Join(first.Paths.runsDir(), "job")
	if err := os.MkdirAll(job, 0o755); err != nil {
		t.Fatal(err)
	}
	running := agent.JobStatus{ID: "job", State: agent.Running, Spec: agent.JobSpec{Launcher: agent.Command, Script: "train.sh", Nodes: 1,
		RanksPerNode: 1}}
	for _, test := range []struct {
		environment string // of the job
		config      Config
		want        agent.JobState
	}{{first.Name, second, agent.Running}, {first.Name, first, agent.Restarted}} {
		running.Environment = test.environment
		if err := record.WriteJSON(record.Dir(job).NodeStatus(0), running); err != nil {
			t.Fatal(err)
		}
		openJobs(test.config, slog.New(slog.DiscardHandler), nil)
		if status, err := record.Dir(job).ReadNode(0); err != nil || status.State != test.want {
			t.Errorf("a job of %q after the start of %s: %s, %v; want %s", test.environment, test.config.Name, status.State, err, test.want)
		}
	}

	hash := tree.Digest(strings.Repeat("a", 64))
	if err := os.Symlink(filepath.Join(".mlenv/trees", string(hash)), first.Paths.current()); err != nil {
		t.Fatal(err)
	}
	js := &jobs{config: second, log: slog.New(slog.DiscardHandler)}
	if !js.pinned(hash) || js.pinned(tree.Digest(strings.Repeat("b", 64))) {
		t.Error("want the other environment's tree pinned, and no other")
	}
}

// TestUnreadableRecordPins: a job whose record cannot be read may still run in the tree, so the tree stays pinned.
func TestUnreadableRecordPins(t *testing.T) {
	workspace := t.TempDir()
	name := strings.Repeat("a", 200)
	for len(workspace)+1+len(name) < 4040 {
		workspace = filepath.Join(workspace, name)
	}
	js := &jobs{config: Config{Paths: Paths{Workspace: workspace}}, log: slog.New(slog.DiscardHandler)}
	if js.pinned(tree.Digest(strings.Repeat("a", 64))) {
		t.Error("a tree is pinned although there is no job")
	}
	// The folder's path has the maximum length, so the path of the record is too long.
	runs := js.config.Paths.runsDir()
	job := filepath.Join(runs, strings.Repeat("b", 4095-len(runs)-1))
	if err := os.MkdirAll(job, 0o755); err != nil {
		t.Fatal(err)
	}
	folder, err := os.OpenRoot(job)
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Close()
	if err := folder.WriteFile("node-1.json", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if !js.pinned(tree.Digest(strings.Repeat("a", 64))) || !js.busy() {
		t.Error("a tree or the virtual environments may go although the record of a job cannot be read")
	}
}
