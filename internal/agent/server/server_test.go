// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/certs"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
)

func TestMain(m *testing.M) { agenttest.Main(m) }

// node is an agent, the first of two nodes, and its test.
type node struct {
	t *testing.T
	*agenttest.Node
}

func newNode(t *testing.T) *node {
	t.Helper()
	return &node{t: t, Node: agenttest.Start(t, 2)[0]}
}

func (n *node) script(name, content string) {
	n.t.Helper()
	if err := os.WriteFile(filepath.Join(n.Config.Paths.Workspace, name), []byte(content), 0o755); err != nil {
		n.t.Fatal(err)
	}
}

// timeThatIsNotUsed is the grace of a process that ignores SIGTERM.
const timeThatIsNotUsed = 100 * time.Millisecond

// timeForAJobToEnd is for jobs that would not end at all.
const timeForAJobToEnd = 3 * time.Minute

func (n *node) run(id string, spec agent.JobSpec) agent.JobStatus {
	n.t.Helper()
	if _, err := n.Client.StartJob(n.t.Context(), id, spec); err != nil {
		n.t.Fatal(err)
	}
	return n.wait(id)
}

func (n *node) wait(id string) (last agent.JobStatus) {
	n.t.Helper()
	if err := n.Client.WatchJob(n.t.Context(), id, func(s agent.JobStatus) error { last = s; return nil }); err != nil {
		n.t.Fatal(err)
	}
	return last
}

func (n *node) log(id, name string, offset int64) string {
	n.t.Helper()
	body, err := n.Client.Log(n.t.Context(), id, name, offset, true)
	if err != nil {
		n.t.Fatal(err)
	}
	defer body.Close()
	content, err := io.ReadAll(body)
	if err != nil {
		n.t.Fatal(err)
	}
	return string(content)
}

func command(script string, args ...string) agent.JobSpec {
	return agent.JobSpec{Run: "run", Launcher: agent.Command, Script: script, Args: args, Nodes: 1, RanksPerNode: 1}
}

func TestJob(t *testing.T) {
	n := newNode(t)
	n.script("hello.sh", `echo "$1 from $NODE_RANK of $NUM_NODES at $MASTER_ADDR:$MASTER_PORT world $WORLD_SIZE secret ${#SECRET}"; echo `+
		`err >&2; exit 3`)
	spec := command("hello.sh", "hello")
	spec.SecretEnv = map[string]string{"SECRET": "hunter2"}
	status := n.run("job-1", spec)
	if status.State != agent.Exited || len(status.Ranks) != 1 || status.Ranks[0].Exit.Code != 3 || status.Ranks[0].Stopped {
		t.Errorf("status %+v, want exited with 3", status)
	}
	want := "hello from 0 of 1 at env-0.env-headless.ns.svc:29500 world 1 secret 7\nerr\n"
	if got := n.log("job-1", "rank-0", 0); got != want {
		t.Errorf("log %q, want %q", got, want)
	}
	if got := n.log("job-1", "rank-0", int64(len(want)-4)); got != "err\n" {
		t.Errorf("log from an offset %q, want the rest", got)
	}
	if got := strings.Join(status.Ranks[0].Tail, "\n") + "\n"; got != want {
		t.Errorf("tail %q, want %q", got, want)
	}
	err := filepath.WalkDir(n.Config.Paths.Workspace, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		if content, err := os.ReadFile(path); err == nil && strings.Contains(string(content), "hunter2") {
			t.Errorf("the secret is in %s", path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A training without a run needs a name too: scripts keep its checkpoints under it.
func TestRunVariable(t *testing.T) {
	n := newNode(t)
	n.script("run.sh", "echo $MLENV_RUN")
	for name, want := range map[string]string{"nightly": "nightly\n", "": "job-\n"} {
		spec := command("run.sh")
		spec.Run = name
		n.run("job-"+name, spec)
		if got := n.log("job-"+name, "rank-0", 0); got != want {
			t.Errorf("of run %q: MLENV_RUN is %q, want %q", name, got, want)
		}
	}
}

func TestJobIsStartedOnce(t *testing.T) {
	n := newNode(t)
	n.script("once.sh", "echo x >> count")
	first := n.run("once", command("once.sh"))
	again := n.run("once", command("once.sh"))
	if !first.Started.Equal(again.Started) {
		t.Errorf("started at %v and %v, want once", first.Started, again.Started)
	}
	if content, err := os.ReadFile(filepath.Join(n.Config.Paths.Workspace, "count")); err != nil || string(content) != "x\n" {
		t.Errorf("the script ran %q times (%v), want once", content, err)
	}
	_, err := n.Client.StartJob(t.Context(), "once", command("once.sh", "other"))
	if got := fail.ReasonOf(err); got != fail.InvalidInput {
		t.Errorf("another job of that id: %v, want InvalidInput", err)
	}
}

func TestRefusedJobs(t *testing.T) {
	n := newNode(t)
	n.script("there.sh", "")
	tooMany := command("there.sh")
	tooMany.Nodes = 3
	noTree := command("there.sh")
	noTree.Tree = "0123456789012345678901234567890123456789012345678901234567890123"
	tests := []struct {
		name string
		id   string
		spec agent.JobSpec
		want fail.Reason
		text string
	}{
		{"no such script", "a", command("nowhere/train.sh"), fail.ScriptNotFound, "there.sh"},
		{"no such program", "a", command("no-such-program"), fail.ScriptNotFound, "PATH"},
		{"too many nodes", "a", tooMany, fail.InvalidInput, "the environment has 2"},
		{"an id that is no name", "a b", command("there.sh"), fail.InvalidInput, "id"},
		{"a tree that is not there", "a", noTree, fail.SyncFailed, "not on this node"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := n.Client.StartJob(t.Context(), test.id, test.spec)
			if got := fail.ReasonOf(err); err == nil || got != test.want || !strings.Contains(err.Error(), test.text) {
				t.Errorf("got %s: %v; want %s with %q", got, err, test.want, test.text)
			}
		})
	}
	n.run("done", command("there.sh"))
	runs := filepath.Join(n.Config.Paths.Workspace, ".mlenv", "runs")
	if err := os.CopyFS(filepath.Join(runs, "sub", "done"), os.DirFS(filepath.Join(runs, "done"))); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"a", "sub/done"} {
		if _, err := n.Client.Job(t.Context(), id); !agent.IsNotFound(err) {
			t.Errorf("a refused job %s is known: %v", id, err)
		}
	}
}

func TestStop(t *testing.T) {
	n := newNode(t)
	// The script, and its child in a session of its own, ignore SIGTERM.
	n.script("deaf.sh",
		`trap "" TERM; setsid sh -c 'trap "" TERM; echo ready; while :; do sleep 0.1; done' & wait; while :; do sleep 0.1; done`)
	if _, err := n.Client.StartJob(t.Context(), "deaf", command("deaf.sh")); err != nil {
		t.Fatal(err)
	}
	body, err := n.Client.Log(t.Context(), "deaf", "rank-0", 0, true)
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	if _, err := io.ReadFull(body, make([]byte, len("ready\n"))); err != nil {
		t.Fatal(err)
	}
	if err := n.Client.StopJob(t.Context(), "deaf", agent.Stop{Reason: "enough", Grace: timeThatIsNotUsed}); err != nil {
		t.Fatal(err)
	}
	status := n.wait("deaf")
	if status.State != agent.Stopped || status.StopReason != "enough" || !status.Ranks[0].Stopped {
		t.Errorf("status %+v, want stopped: enough", status)
	}
	if facts, err := n.Client.Facts(t.Context()); err != nil || len(facts.Running) > 0 {
		t.Errorf("running %v (%v), want none", facts.Running, err)
	}
}

// A second stop does not shorten the grace of the first.
func TestSecondStop(t *testing.T) {
	n := newNode(t)
	n.script("saves.sh", `trap "sleep 0.5; echo saved; exit 0" TERM; echo ready; while :; do sleep 0.01; done`)
	if _, err := n.Client.StartJob(t.Context(), "saves", command("saves.sh")); err != nil {
		t.Fatal(err)
	}
	body, err := n.Client.Log(t.Context(), "saves", "rank-0", 0, true)
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	if _, err := io.ReadFull(body, make([]byte, len("ready\n"))); err != nil {
		t.Fatal(err)
	}
	for _, grace := range []time.Duration{time.Minute, time.Millisecond} {
		if err := n.Client.StopJob(t.Context(), "saves", agent.Stop{Grace: grace}); err != nil {
			t.Fatal(err)
		}
	}
	// The shell may report that its sleep was terminated.
	if rest, err := io.ReadAll(body); err != nil || !bytes.HasSuffix(rest, []byte("saved\n")) {
		t.Errorf("got %q, %v; want saved", rest, err)
	}
}

// A rank that has failed and is slow to end is killed with the others when its launcher is gone. Only its own output
// explains why the others failed.
func TestKilledRankKeepsItsLastWords(t *testing.T) {
	n := newNode(t)
	n.script("slow.sh", `printf 'Traceback (most recent call last):\n  File "a.py", line 7, in f\n    f()\nValueError: bad batch\n'
until grep -q ValueError "$MLENV_RUN_DIR/rank-0.log" && [ -e "$MLENV_RUN_DIR/rank-0.json" ]; do sleep 0.01; done; kill -KILL $PPID; `+
		`exec sleep 1000`)
	status := n.run("slow", command("slow.sh"))
	rank := status.Ranks[0]
	if rank.Exit.Signal != "SIGKILL" || rank.Python == nil || rank.Python.Type != "ValueError" || rank.Python.Seen.IsZero() ||
		len(rank.Tail) != 4 {
		t.Errorf("rank %+v with error %+v, want it killed, with its ValueError and four last lines", rank, rank.Python)
	}
}

func TestQuiet(t *testing.T) {
	n := newNode(t)
	n.script("still.sh", `while [ ! -e go ]; do sleep 0.05; done`)
	if _, err := n.Client.StartJob(t.Context(), "still", command("still.sh")); err != nil {
		t.Fatal(err)
	}
	status, err := n.Client.Job(t.Context(), "still")
	// A job has not been quiet for longer than it has run, whatever the times of its files are.
	const roundingOfFileTimes = time.Second
	if age := time.Since(status.Started) + roundingOfFileTimes; err != nil || status.Quiet <= 0 || status.Quiet > age {
		t.Errorf("quiet for %s (%v), want more than nothing and less than %s", status.Quiet, err, age)
	}
	n.script("go", "")
	n.wait("still")
	if status, err := n.Client.Job(t.Context(), "still"); err != nil || status.Quiet != 0 {
		t.Errorf("quiet for %s (%v) once it has ended, want nothing", status.Quiet, err)
	}
}

func TestDeadline(t *testing.T) {
	n := newNode(t)
	n.script("long.sh", "exec sleep 1000")
	spec := command("long.sh")
	const timeToRun = 300 * time.Millisecond
	spec.Deadline = time.Now().Add(timeToRun)
	if status := n.run("long", spec); status.State != agent.Stopped || status.StopReason != "deadline" {
		t.Errorf("status %+v, want stopped: deadline", status)
	}
}

func TestContainerRestart(t *testing.T) {
	n := newNode(t)
	n.script("long.sh", "echo started >> starts; exec sleep 1000")
	n.script("short.sh", "echo done")
	ended := n.run("ended", command("short.sh"))
	if _, err := n.Client.StartJob(t.Context(), "running", command("long.sh")); err != nil {
		t.Fatal(err)
	}
	n.Crash("running")
	starts, _ := os.ReadFile(filepath.Join(n.Config.Paths.Workspace, "starts"))
	if _, err := n.Client.StartJob(t.Context(), "running", command("long.sh")); err != nil {
		t.Fatal(err)
	}
	if status := n.wait("running"); status.State != agent.Restarted {
		t.Errorf("state %s, want %s", status.State, agent.Restarted)
	}
	if again, _ := os.ReadFile(filepath.Join(n.Config.Paths.Workspace, "starts")); !bytes.Equal(starts, again) {
		t.Errorf("the job was started again: %q, before %q", again, starts)
	}
	if status := n.wait("ended"); status.State != agent.Exited || !status.Ended.Equal(ended.Ended) || status.Ranks[0].Exit != (agent.Exit{}) {
		t.Errorf("an ended job after the restart: %+v, want as before %+v", status, ended)
	}
}

func TestLogIsWholeAcrossConnections(t *testing.T) {
	n := newNode(t)
	const lines = 100_000
	n.script("many.sh", fmt.Sprintf("seq 1 %d", lines))
	if _, err := n.Client.StartJob(t.Context(), "many", command("many.sh")); err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	for done := false; !done; {
		body, err := n.Client.Log(t.Context(), "many", "rank-0", int64(got.Len()), true)
		if err != nil {
			t.Fatal(err)
		}
		// The connection breaks in the middle, again and again.
		copied, err := io.CopyN(&got, body, 70_001)
		body.Close()
		done = errors.Is(err, io.EOF) && copied < 70_001
		if err != nil && !done {
			t.Fatal(err)
		}
	}
	var want bytes.Buffer
	for i := 1; i <= lines; i++ {
		fmt.Fprintln(&want, i)
	}
	if !bytes.Equal(got.Bytes(), want.Bytes()) {
		t.Errorf("%d bytes of log, want %d, the same", got.Len(), want.Len())
	}
}

func TestStrangersAreRefused(t *testing.T) {
	n := newNode(t)
	other, err := certs.New("ns", "env", time.Now(), false)
	if err != nil {
		t.Fatal(err)
	}
	ours, err := os.ReadFile(filepath.Join(n.Config.Paths.Home, "tls", "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := agent.ParseCredentials(ours, other.ClientCert, other.ClientKey)
	if err != nil {
		t.Fatal(err)
	}
	for name, credentials := range map[string]agent.Credentials{"of another CA": stranger,
		"without a certificate": {Certificate: tls.Certificate{}, CA: stranger.CA}} {
		client := agent.NewClient(0, "env-0.env-headless.ns.svc", credentials, n.Dial)
		if health, err := client.Health(t.Context()); fail.ReasonOf(err) != fail.AgentUnreachable {
			t.Errorf("a client %s got %+v, %v; want a refusal", name, health, err)
		}
	}
}

func TestCommandLines(t *testing.T) {
	n := newNode(t)
	health, err := n.Client.Health(t.Context())
	if err != nil || health.Protocol != agent.Protocol || health.Version != "test" {
		t.Errorf("health %+v, %v", health, err)
	}
	hosts, err := os.ReadFile(filepath.Join(n.Config.Paths.Workspace, ".deepspeed", "hostfile"))
	want := "env-0.env-headless.ns.svc slots=2\nenv-1.env-headless.ns.svc slots=2\n"
	if err != nil || string(hosts) != want {
		t.Errorf("hostfile %q (%v), want %q", hosts, err, want)
	}
}

// An attempt never runs in parallel to the one before it.
func TestAttempts(t *testing.T) {
	n := newNode(t)
	n.script("attempt.sh", `echo "attempt $MLENV_ATTEMPT"; [ $MLENV_ATTEMPT = 2 ] || exec sleep 1000`)
	first := command("attempt.sh")
	if _, err := n.Client.StartJob(t.Context(), "job", first); err != nil {
		t.Fatal(err)
	}
	second := first
	second.Attempts = []agent.Attempt{{Attempt: 1, Reason: "NodeLost"}}
	if _, err := n.Client.StartJob(t.Context(), "job", second); fail.ReasonOf(err) != fail.EnvironmentBusy {
		t.Errorf("while attempt 1 runs: got %v, want EnvironmentBusy", err)
	}
	if err := n.Client.StopJob(t.Context(), "job", agent.Stop{Reason: "enough"}); err != nil {
		t.Fatal(err)
	}
	n.wait("job")
	if status := n.run("job", second); status.State != agent.Exited || status.Spec.Attempt() != 2 {
		t.Errorf("attempt %d is %s, want 2 exited", status.Spec.Attempt(), status.State)
	}
	if got := n.log("job", "rank-0", 0); got != "attempt 2\n" {
		t.Errorf("log %q, want that of attempt 2", got)
	}
	third := second
	third.Attempts = append(third.Attempts, agent.Attempt{Attempt: 2, Reason: "NodeLost"})
	n.script("attempt.sh", `echo "from ${MLENV_LAST_CHECKPOINT-nothing}"`)
	for _, tc := range []struct {
		id   string
		name *string
		want string
	}{{"known", new("step-7"), n.Config.Paths.Workspace + "/checkpoints/run/step-7"}, {"none", new(""), ""}, {"unknown", nil, "nothing"}} {
		third.Checkpoint = tc.name
		n.run(tc.id, third)
		if got := n.log(tc.id, "rank-0", 0); got != "from "+tc.want+"\n" {
			t.Errorf("checkpoint %s: %q, want %q", tc.id, got, tc.want)
		}
	}
	third.Checkpoint = new("../other")
	if _, err := n.Client.StartJob(t.Context(), "wrong", third); fail.ReasonOf(err) != fail.InvalidInput ||
		!strings.Contains(err.Error(), `checkpoint: "../other"`) {
		t.Errorf("got %v, want InvalidInput", err)
	}
	// A step that knows only the first attempt gets the newest.
	if status := n.run("job", first); status.Spec.Attempt() != 2 || status.Spec.Attempts[0].Reason != "NodeLost" {
		t.Errorf("asked for attempt 1: %+v, want attempt 2", status)
	}
}

// One client at a time holds the turn at the network. The turn ends when the client releases it or its connection ends.
func TestTurn(t *testing.T) {
	n := newNode(t)
	made := n.Certificates()
	credentials, err := agent.ParseCredentials(made.CA, made.ClientCert, made.ClientKey)
	if err != nil {
		t.Fatal(err)
	}
	for name, end := range map[string]func(conn net.Conn, release func()){
		"it is released":         func(_ net.Conn, release func()) { release() },
		"its connection is gone": func(conn net.Conn, _ func()) { conn.Close() },
		"the agent starts again": func(net.Conn, func()) { n.End(); n.Restart() },
	} {
		var conn net.Conn
		first := agent.NewClient(0, n.Config.Host(0), credentials, func(ctx context.Context, node int) (_ net.Conn, err error) {
			conn, err = n.Dial(ctx, node)
			return conn, err
		})
		const timeToGetTheTurn, timeToSeeThatItIsTaken = time.Minute, 10 * time.Millisecond
		release, err := first.WaitForTurn(t.Context(), timeToGetTheTurn)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := n.Client.WaitForTurn(t.Context(), timeToSeeThatItIsTaken); !errors.Is(err, context.Canceled) {
			t.Fatalf("%s: a second client got %v, want no turn", name, err)
		}
		end(conn, release)
		// A client of its own: the other one may still have the connection of its second question, to an agent that has ended.
		third := agent.NewClient(0, n.Config.Host(0), credentials, n.Dial)
		if release, err = third.WaitForTurn(t.Context(), timeToGetTheTurn); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		release()
		third.Close()
	}
}
