// SPDX-License-Identifier: Apache-2.0

//go:build linux

package local

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/program"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/record"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// killed is the argument that makes this test an mlenv that is killed while its job runs.
const killed = "run-until-killed"

func TestMain(m *testing.M) {
	switch {
	case program.Is(os.Args[0]):
		os.Exit(program.Main(os.Args, os.Environ(), os.Stdout, os.Stderr))
	case len(os.Args) > 2 && os.Args[1] == killed:
		runUntilKilled(os.Args[2])
	}
	os.Exit(m.Run())
}

func start(ctx context.Context, folder, name string, environ ...string) (*Environment, error) {
	return Start(ctx, Options{Folder: folder, Name: name, Nodes: 2, Environ: append(os.Environ(), environ...)})
}

// masterPort is where the ranks of launch would meet.
const masterPort = 29411

// launch starts a shell command on both nodes.
func launch(ctx context.Context, e *Environment, command string) error {
	const timeForAJobToEnd = time.Minute
	return e.Nodes.Each(ctx, func(ctx context.Context, client *agent.Client) error {
		_, err := client.StartJob(ctx, "job", agent.JobSpec{
			Run: "run", Launcher: agent.Command, Script: "/bin/sh", Args: []string{"-c", command}, Nodes: 2, RanksPerNode: 1,
			MasterPort: masterPort,
			Deadline:   time.Now().Add(timeForAJobToEnd),
		})
		return err
	})
}

// Both nodes run their part of a job in the shared folder. Its ranks get the variables by which they meet and the user's own variables,
// but none that another training has set.
func TestStart(t *testing.T) {
	folder := t.TempDir()
	e, err := start(t.Context(), folder, "run-1", "RANK=7", "MASTER_ADDR=elsewhere", "OWN=mine")
	if err != nil {
		t.Fatal(err)
	}
	const show = `echo "$NODE_RANK $NUM_NODES $MASTER_PORT $GLOO_SOCKET_IFNAME $OWN $HOME $RANK $MLENV_WORKSPACE $(getent hosts ` +
		`$MASTER_ADDR >/dev/null; echo $MASTER_ADDR)"`
	if err := launch(t.Context(), e, show+` >"$MLENV_WORKSPACE/node-$NODE_RANK"`); err != nil {
		t.Fatal(fail.Details(err))
	}
	if info, err := os.Stat(folder); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the folder is open to others: %v, %v", info, err)
	}
	for node, client := range e.Nodes {
		var last agent.JobStatus
		if err := client.WatchJob(t.Context(), "job", func(status agent.JobStatus) error { last = status; return nil }); err != nil {
			t.Fatal(err)
		}
		if len(last.Ranks) != 1 || last.Ranks[0].Exit != (agent.Exit{}) {
			t.Errorf("node %d ended with %+v, want exit code 0", node, last)
		}
		got, err := os.ReadFile(filepath.Join(folder, "node-"+strconv.Itoa(node)))
		want := fmt.Sprintf("%d 2 %d lo mine %s  %s 127.", node, masterPort, os.Getenv("HOME"), folder)
		if err != nil || !strings.HasPrefix(string(got), want) {
			t.Errorf("node %d: the rank printed %q (%v), want %q...", node, got, err, want)
		}
	}
	others, err := e.Connect()
	if err == nil {
		_, err = nodes.AskAll(t.Context(), others, (*agent.Client).Facts)
	}
	if err != nil || len(others) != 2 || !e.Running() || e.Process() != os.Getpid() {
		t.Errorf("others connect to %d nodes, %v; running: %v, by process %d", len(others), err, e.Running(), e.Process())
	}
	others.Close()
	if err := errors.Join(e.Shutdown(), e.Unlock()); err != nil {
		t.Error(err)
	}
	if _, err := e.Connect(); e.Running() || e.Process() != 0 || fail.ReasonOf(err) != fail.EnvironmentMissing {
		t.Errorf("after its end it runs: %v, by process %d; connecting: %v, want EnvironmentMissing", e.Running(), e.Process(), err)
	}
	if _, err := os.Stat(e.Program); !os.IsNotExist(err) {
		t.Errorf("the folder of the sockets is left: %v", err)
	}
}

func endOf(t *testing.T, e *Environment) {
	t.Helper()
	if err := e.Shutdown(); err != nil {
		t.Error(err)
	}
}

// Two environments use one folder at the same time: neither marks the jobs of the other as ended.
func TestTwoAtOnce(t *testing.T) {
	folder := t.TempDir()
	first, err := start(t.Context(), folder, "run-1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { endOf(t, first) })
	if err := launch(t.Context(), first, "sleep 60"); err != nil {
		t.Fatal(err)
	}
	second, err := start(t.Context(), folder, "run-2")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { endOf(t, second) })
	for node := range second.Nodes {
		recorded, err := record.Dir(filepath.Join(folder, ".mlenv", "runs", "job")).ReadNode(node)
		if err != nil || recorded.State != agent.Running {
			t.Errorf("the record of node %d says %q (%v), want running", node, recorded.State, err)
		}
	}
}

// A second environment of one name would find the jobs of the first.
func TestNameIsTaken(t *testing.T) {
	folder := t.TempDir()
	first, err := start(t.Context(), folder, "run-1")
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Shutdown(); err != nil {
		t.Fatal(err)
	}
	if _, err := start(t.Context(), folder, "run-1"); fail.ReasonOf(err) != fail.InvalidInput {
		t.Errorf("got %v, want InvalidInput", err)
	}
}

func runUntilKilled(folder string) {
	e, err := start(context.Background(), folder, "run-1")
	if err == nil {
		// The process in a session of its own, without variables, would survive everything that looks for the job by name.
		err = launch(context.Background(), e, `env -i setsid sh -c 'echo $$; exec sleep 600' & echo $$; exec sleep 600`)
	}
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
	for rank, client := range e.Nodes {
		go func() {
			ctx := context.Background()
			_ = nodes.FollowLog(ctx, client, "job", agent.RankLog+strconv.Itoa(rank), os.Stdout, nodes.RetryUntilDone(ctx))
		}()
	}
	for {
		// An environment that nothing refers to any more would close its lock.
		runtime.GC()
		runtime.KeepAlive(e)
	}
}

// Nothing survives a SIGKILL of mlenv.
func TestKilled(t *testing.T) {
	folder := t.TempDir()
	t.Setenv("TMPDIR", t.TempDir())
	command := exec.CommandContext(t.Context(), os.Args[0], killed, folder)
	out, err := command.StdoutPipe()
	if err == nil {
		err = command.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for lines := bufio.NewScanner(out); len(pids) < 4 && lines.Scan(); {
		pid, err := strconv.Atoi(lines.Text())
		if err != nil {
			t.Fatal(lines.Text())
		}
		pids = append(pids, pid)
	}
	if len(pids) < 4 {
		t.Fatalf("only %d processes started", len(pids))
	}
	of := Run{Folder: folder, Name: "run-1"}
	if of.Process() != command.Process.Pid {
		t.Errorf("process %d runs it, want %d", of.Process(), command.Process.Pid)
	}
	lock, err := os.ReadFile(of.path(lockName))
	if err == nil { // as a rank can, or another machine
		err = os.WriteFile(of.path(lockName), []byte(strconv.Itoa(os.Getpid())), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	if pid, how := of.Process(), of.Stop(); pid != 0 || strings.Contains(how, "kill") {
		t.Errorf("process %d, which has not opened the lock, runs it; to stop it: %s", pid, how)
	}
	at, err := of.reach()
	if err := errors.Join(err, os.WriteFile(of.path(lockName), lock, 0o644)); err != nil {
		t.Fatal(err)
	}
	if err := of.CleanUp(); fail.ReasonOf(err) != fail.EnvironmentBusy {
		t.Errorf("deleting its temporary files while it is in progress: %v, want EnvironmentBusy", err)
	}
	if err := of.Remove(); fail.ReasonOf(err) != fail.EnvironmentBusy {
		t.Errorf("deleting it while it is in progress: %v, want EnvironmentBusy", err)
	}
	if err := command.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids {
		awaitEnd(t, pid)
	}
	_ = command.Wait()
	for _, address := range at.Addresses {
		if conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", address); err == nil {
			_ = conn.Close()
			t.Errorf("%s is listened on without mlenv", address)
		}
	}
	if of.Running() {
		t.Error("it runs without its process")
	}
	if err := of.CleanUp(); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) > 0 {
		t.Errorf("temporary files are left: %v, %v", left, err)
	}
	if err := of.Remove(); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(filepath.Dir(of.Dir())); err != nil || len(left) > 1 { // the record of the job has another name
		t.Errorf("left are %v, %v", left, err)
	}
}

// A rank can write any path into the file that names the scratch folder.
func TestRemoveTakesNothingElse(t *testing.T) {
	of := Run{Folder: t.TempDir(), Name: "run-1"}
	t.Setenv("TMPDIR", t.TempDir())
	for _, bait := range []string{filepath.Join(t.TempDir(), scratchPrefix+"1"), os.TempDir(), os.TempDir() + "/other",
		os.TempDir() + "/mlenv-folder-1", os.TempDir() + "/mlenv-1/../other"} {
		if err := errors.Join(os.MkdirAll(of.Dir(), 0o755), os.MkdirAll(bait, 0o755),
			os.WriteFile(of.path(lockName), []byte("1\n"+bait+"\n"), 0o644), of.Remove()); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(bait); err != nil {
			t.Error(err)
		}
	}
}

// Only the machine and the TMPDIR of a killed run know its temporary files. A reader elsewhere changes nothing, and says where they are.
func TestCleanUpElsewhere(t *testing.T) {
	of := Run{Folder: t.TempDir(), Name: "run-1"}
	t.Setenv("TMPDIR", t.TempDir())
	dir, ours := record.Dir(of.Dir()), filepath.Join(os.TempDir(), scratchPrefix+"1")
	status := agent.JobStatus{ID: "run-1", State: agent.Running,
		Spec: agent.JobSpec{Nodes: 1, RanksPerNode: 1, Launcher: agent.Command, Script: "true"}}
	if err := errors.Join(os.MkdirAll(ours, 0o755), os.MkdirAll(of.Dir(), 0o755), record.WriteJSON(dir.NodeStatus(0), status)); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ folder, host, want string }{
		{filepath.Join(t.TempDir(), scratchPrefix+"1"), hostname(), "below TMPDIR"}, {ours, "another", "on another"}, {ours, hostname(), ""},
	} {
		if err := os.WriteFile(of.path(lockName), []byte("1\n"+tc.folder+"\n"+tc.host+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		err := of.CleanUp()
		after, unread := dir.ReadNode(0)
		_, gone := os.Stat(ours)
		cleaned := tc.want == ""
		if cleaned != (err == nil) || !cleaned && !strings.Contains(err.Error(), tc.want) || cleaned != (gone != nil) ||
			unread != nil || cleaned != (after.State == agent.Restarted) {
			t.Errorf("%+v: %v, the record is %s (%v), the folder: %v", tc, err, after.State, unread, gone)
		}
	}
}

// A name that is a path finds nothing.
func TestFind(t *testing.T) {
	t.Setenv("XDG_DATA_HOME", t.TempDir())
	folder, err := Folder()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"try-1", ".gone-1"} {
		if err := os.MkdirAll(Run{Folder: folder, Name: name}.Dir(), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(Run{Folder: folder, Name: name}.path(lockName), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(Run{Folder: folder, Name: "of-a-job"}.Dir(), 0o755); err != nil {
		t.Fatal(err)
	}
	all, err := ListRuns()
	if err != nil || len(all) != 1 || all[0].Name != "try-1" {
		t.Errorf("all runs: %v, %v; want try-1", all, err)
	}
	for _, name := range []string{"", ".", "..", "../runs/try-1", "try-1/", "/", ".gone-1", "of-a-job", "none"} {
		if r, ok := Find(name); ok {
			t.Errorf("%q finds %v", name, r)
		}
	}
}

// awaitEnd returns when a process has ended.
func awaitEnd(t *testing.T, pid int) {
	t.Helper()
	const timeForAProcessToEnd = time.Minute
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	for deadline, ended := time.Now().Add(timeForAProcessToEnd), false; !ended; {
		left := time.Until(deadline)
		if left < 0 {
			t.Fatalf("process %d survives mlenv by %s", pid, timeForAProcessToEnd)
		}
		count, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left.Milliseconds())+1)
		if ended = count > 0; err != nil && !errors.Is(err, unix.EINTR) {
			t.Fatal(err)
		}
	}
}
