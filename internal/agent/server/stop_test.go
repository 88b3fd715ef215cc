package server_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

// awaitFile waits until the workspace has the file, and returns its content.
func (n *node) awaitFile(name string) string {
	n.t.Helper()
	const timeForAScript = time.Minute
	for began := time.Now(); time.Since(began) < timeForAScript; time.Sleep(10 * time.Millisecond) {
		if content, err := os.ReadFile(filepath.Join(n.Config.Paths.Workspace, name)); err == nil {
			return string(content)
		}
	}
	n.t.Fatalf("there is no file %s", name)
	return ""
}

// stopped starts a job, and stops it when each of its ranks has created its file.
func (n *node) stopped(id string, spec agent.JobSpec, stop agent.Stop) {
	n.t.Helper()
	if _, err := n.Client.StartJob(n.t.Context(), id, spec); err != nil {
		n.t.Fatal(err)
	}
	for rank := range spec.RanksOfNode() {
		n.awaitFile("up-" + string(rune('0'+rank)))
	}
	if err := n.Client.StopJob(n.t.Context(), id, stop); err != nil {
		n.t.Fatal(err)
	}
}

// Rank 1 ends at once when it is stopped, with an error, as a rank that has nothing to save may. Rank 0 saves, and is left alone.
func TestRankThatEndsLeavesOthersTheirTime(t *testing.T) {
	n := newNode(t)
	n.script("saves.sh", `[ $LOCAL_RANK = 0 ] && trap 'echo term >> terms' TERM; touch up-$LOCAL_RANK
until [ -e saved ]; do sleep 0.02; done; [ $LOCAL_RANK = 0 ]`)
	spec := agent.JobSpec{Launcher: agent.Torchrun, Script: "saves.sh", Nodes: 1, RanksPerNode: 2}
	n.stopped("saves", spec, agent.Stop{Cause: "cancelled", Grace: time.Minute})
	n.awaitFile("terms")
	rankEnded := errors.New("rank 1 has ended")
	err := n.Client.WatchJob(t.Context(), "saves", func(s agent.JobStatus) error {
		for _, rank := range s.Ranks {
			if rank.Rank == 1 && !rank.Ended.IsZero() {
				return rankEnded
			}
		}
		return nil
	})
	// The supervisor would act at once on a rank that ends with an error.
	const timeForTheSupervisor = 500 * time.Millisecond
	time.Sleep(timeForTheSupervisor)
	n.script("saved", "")
	status := n.wait("saves")
	if !errors.Is(err, rankEnded) || status.Ranks[0].Exit != (agent.Exit{}) || status.Ranks[1].Exit.Signal != "SIGTERM" {
		t.Errorf("got %+v, %v; want rank 0 to exit with 0, and rank 1 by SIGTERM", status.Ranks, err)
	}
	if terms := n.awaitFile("terms"); terms != "term\n" {
		t.Errorf("rank 0 got %q, want one SIGTERM", terms)
	}
}

// A rank that handles SIGTERM saves with its worker processes, such as those of a data loader, which do not handle it. A shell around it
// that does not handle the signal waits for it.
func TestWorkersOfARankThatSaves(t *testing.T) {
	n := newNode(t)
	n.script("saves.py", `import os, pathlib, signal, subprocess, time
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
worker = subprocess.Popen(["sleep", "1000"])
pathlib.Path("up-0").touch()
while not stopped:
    time.sleep(0.02)
time.sleep(0.3)
pathlib.Path("saved.new").write_text(str(worker.poll()))
os.rename("saved.new", "saved")
`)
	n.script("around.sh", `python3 saves.py; exit $?`)
	n.stopped("saves", command("around.sh"), agent.Stop{Cause: "cancelled", Grace: time.Minute})
	status := n.wait("saves")
	if got := n.awaitFile("saved"); got != "None" || status.Ranks[0].Exit != (agent.Exit{}) {
		t.Errorf("the worker ended with %s and the rank with %+v; want the worker alive, and 0", got, status.Ranks[0].Exit)
	}
}
