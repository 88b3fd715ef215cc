// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"encoding/json"
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

// timeToSave is the grace of ranks that save in less.
const timeToSave = time.Hour

// stopped starts the job saves, and stops it when each of its ranks has created its file.
func (n *node) stopped(spec agent.JobSpec, stop agent.Stop) {
	n.t.Helper()
	if _, err := n.Client.StartJob(n.t.Context(), "saves", spec); err != nil {
		n.t.Fatal(err)
	}
	for rank := range spec.RanksOfNode() {
		n.awaitFile("up-" + string(rune('0'+rank)))
	}
	if err := n.Client.StopJob(n.t.Context(), "saves", stop); err != nil {
		n.t.Fatal(err)
	}
}

// Rank 1 ends at once when it is stopped, with an error, as a rank that has nothing to save may. Rank 0 saves, and is left alone.
func TestRankThatEndsLeavesOthersTheirTime(t *testing.T) {
	n := newNode(t)
	n.script("saves.sh", `[ $LOCAL_RANK = 0 ] && trap 'echo term >> terms' TERM; touch up-$LOCAL_RANK
until [ -e saved ]; do sleep 0.02; done; [ $LOCAL_RANK = 0 ]`)
	spec := agent.JobSpec{Launcher: agent.Torchrun, Script: "saves.sh", Nodes: 1, RanksPerNode: 2}
	n.stopped(spec, agent.Stop{Cause: agent.StopCancelled, Grace: time.Minute})
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
	n.stopped(command("around.sh"), agent.Stop{Cause: agent.StopCancelled, Grace: time.Minute})
	status := n.wait("saves")
	if got := n.awaitFile("saved"); got != "None" || status.Ranks[0].Exit != (agent.Exit{}) || status.NoHandler {
		t.Errorf("the worker ended with %s and the rank with %+v; want the worker alive, and 0", got, status.Ranks[0].Exit)
	}
}

// torchrun as the program of launcher command handles SIGTERM, to pass it on. Whether the program saves is a question to its ranks.
func TestRanksOfALauncherThatHandlesTerm(t *testing.T) {
	for name, trap := range map[string]string{"no handler": "", "a handler": "trap 'exit 0' TERM; "} {
		n := newNode(t)
		n.script("rank.sh", trap+"touch up-0; until [ -e over ]; do sleep 0.02; done")
		n.script("launcher.py", `import os, signal, subprocess
child = None
signal.signal(signal.SIGTERM, lambda *_: child.terminate())
child = subprocess.Popen(["sh", "rank.sh"], env=dict(os.environ, LOCAL_RANK="0"))
child.wait()
`)
		n.script("around.sh", `python3 launcher.py; exit $?`)
		n.stopped(command("around.sh"), agent.Stop{Cause: agent.StopCancelled, Grace: time.Minute})
		if status := n.wait("saves"); status.NoHandler != (name == "no handler") {
			t.Errorf("%s: NoHandler is %v", name, status.NoHandler)
		}
	}
}

// A launcher that has started no rank, such as one that waits for other nodes, has nothing to save.
func TestLauncherWithoutRanksEnds(t *testing.T) {
	n := newNode(t)
	bin := t.TempDir()
	fake := "#!/bin/sh\ntouch '" + filepath.Join(n.Config.Paths.Workspace, "up-0") + "'\nexec sleep 1000\n"
	if err := os.WriteFile(filepath.Join(bin, "python3"), []byte(fake), 0o755); err != nil {
		t.Fatal(err)
	}
	n.End()
	n.Config.Environ = []string{"PATH=" + bin + ":" + os.Getenv("PATH")}
	n.Restart()
	n.script("train.py", "")
	spec := agent.JobSpec{Run: "run", Launcher: agent.TorchrunLauncher, Script: "train.py", Nodes: 2, RanksPerNode: 1}
	n.stopped(spec, agent.Stop{Cause: agent.StopCancelled, Grace: timeToSave})
	if status := n.wait("saves"); status.Launcher.Signal != "SIGTERM" {
		t.Errorf("the launcher ended with %+v, want SIGTERM", status.Launcher)
	}
}

// The ranks learn why they are stopped and until when they can save, and a user may shorten that.
func TestNoticeOfAStop(t *testing.T) {
	n := newNode(t)
	n.script("saves.sh", `trap 'cat "$MLENV_STOP_FILE" > notice.new; mv notice.new notice' TERM
[ -e "$MLENV_STOP_FILE" ] && exit 1; touch up-0; while :; do sleep 0.02; done`)
	before := time.Now()
	n.stopped(command("saves.sh"), agent.Stop{Cause: agent.StopCancelled, Reason: "enough", Grace: timeToSave})
	var notice agent.StopNotice
	if err := json.Unmarshal([]byte(n.awaitFile("notice")), &notice); err != nil {
		t.Fatal(err)
	}
	left := time.Duration(notice.Until*float64(time.Second)) - time.Duration(before.UnixNano())
	const timeUntilTheStopArrives, precisionOfTheNotice = time.Minute, time.Second
	if notice.Cause != agent.StopCancelled || notice.Reason != "enough" || left < timeToSave-precisionOfTheNotice ||
		left > timeToSave+timeUntilTheStopArrives {
		t.Errorf("got %+v with %s left, want the reason and an hour", notice, left)
	}
	status, err := n.Client.Job(t.Context(), "saves")
	if err != nil || status.State != agent.Running || status.Kill.Sub(status.Stopping) != timeToSave {
		t.Errorf("got %+v, %v; want a running job that is killed an hour after it was stopped", status, err)
	}
	later := agent.Stop{Cause: agent.StopContainer, Reason: "later", Grace: 2 * time.Hour, Hasten: true}
	now := agent.Stop{Cause: agent.StopCancelled, Reason: "now", Grace: timeThatIsNotUsed, Hasten: true}
	for _, stop := range []agent.Stop{later, now} {
		if err := n.Client.StopJob(t.Context(), "saves", stop); err != nil {
			t.Fatal(err)
		}
	}
	if status := n.wait("saves"); status.StopReason != "enough" || status.Ranks[0].Exit.Signal != "SIGKILL" {
		t.Errorf("got %+v, want it killed, for the first reason", status)
	}
}

// A container that ends has its own time. Ranks that save already keep theirs, if it ends before.
func TestContainerEndsWhileRanksSave(t *testing.T) {
	n := newNode(t)
	const timeForTheRanksOfAContainer = 3 * time.Second
	n.Config.StopGrace = timeForTheRanksOfAContainer
	n.End()
	n.Restart()
	n.script("saves.sh", `trap 'echo term >> terms' TERM; touch up-0; while :; do sleep 0.02; done`)
	n.stopped(command("saves.sh"), agent.Stop{Cause: agent.StopCancelled, Reason: "enough", Grace: timeToSave})
	n.awaitFile("terms")
	began := time.Now()
	n.End()
	const timeUntilTheContainerEnds = time.Minute // with the time to kill and to record
	if took := time.Since(began); took > timeUntilTheContainerEnds || n.awaitFile("terms") != "term\n" {
		t.Errorf("the container ended after %s, and the rank got %q; want less than %s and one SIGTERM", took, n.awaitFile("terms"),
			timeUntilTheContainerEnds)
	}
	n.Restart()
	if status := n.wait("saves"); status.StopCause != agent.StopCancelled || status.Ranks[0].Exit.Signal != "SIGKILL" {
		t.Errorf("got %+v, want it killed, with the first cause", status)
	}
}
