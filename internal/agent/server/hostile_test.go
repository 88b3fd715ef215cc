// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/connlimit"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// The agent starts, runs jobs and collects trees, whatever the claim contains.
func TestForeignFilesInRecords(t *testing.T) {
	n := newNode(t)
	n.script("done.sh", "echo done")
	runs := filepath.Join(n.Config.Paths.Workspace, ".mlenv", "runs")
	huge := `{"state":"running","spec":{"nodes":1,"ranksPerNode":1000000000000}}`
	ids := map[string]func(path string) error{
		"fifo":  func(path string) error { return syscall.Mkfifo(path, 0o664) },
		"link":  func(path string) error { return os.Symlink("/dev/zero", path) },
		"large": func(path string) error { return os.WriteFile(path, make([]byte, 17<<20), 0o664) },
		"text":  func(path string) error { return os.WriteFile(path, []byte("{"), 0o664) },
		"ranks": func(path string) error { return os.WriteFile(path, []byte(huge), 0o664) },
	}
	for id, put := range ids {
		dir := filepath.Join(runs, id)
		if err := errors.Join(os.MkdirAll(dir, 0o775), put(filepath.Join(dir, "node-0.json")),
			put(filepath.Join(dir, "node-1.json"))); err != nil {
			t.Fatal(err)
		}
	}
	n.End()
	n.Restart()
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		if _, err := n.Client.Job(t.Context(), id); !agent.IsNotFound(err) {
			t.Errorf("the status of %s: %v, want not found", id, err)
		}
		if status := n.run(id, command("done.sh")); status.State != agent.Exited || len(status.Ranks) != 1 || status.Ranks[0].Exit.Code != 0 {
			t.Errorf("job %s: %+v, want exited with 0", id, status)
		}
	}
	if err := os.Mkdir(filepath.Join(runs, "other"), 0o775); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(runs, "other", "node-0.json"), 0o664); err != nil {
		t.Fatal(err)
	}
	var hashes []tree.Digest
	for i := range 7 {
		hashes = append(hashes, n.sync(fmt.Sprint(i)))
	}
	n.End() // waits for the collection
	if _, err := os.Stat(filepath.Join(n.Config.Paths.Workspace, ".mlenv", "trees", string(hashes[0]))); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the oldest tree: %v, want it collected", err)
	}
}

// sync creates a tree of one file and switches to it.
func (n *node) sync(content string) tree.Digest {
	n.t.Helper()
	return n.Sync(map[string]string{"file": content})
}

// A rank can write its own status, but with that it can name neither another rank nor a port of the node.
func TestForgedRankStatus(t *testing.T) {
	n := newNode(t)
	n.script("forge.sh", `until [ -e "$MLENV_RUN_DIR/rank-0.json" ]; do sleep 0.01; done; mv -f forged "$MLENV_RUN_DIR/rank-0.json"; until `+
		`[ -e go ]; do sleep 0.01; done; kill -KILL $PPID`)
	n.script("forged", `{"rank":99,"localRank":98,"node":97,"pid":1,"debugPort":22,"exit":{"code":7},"ended":"2026-01-01T00:00:00Z"}`)
	if _, err := n.Client.StartJob(t.Context(), "forged", command("forge.sh")); err != nil {
		t.Fatal(err)
	}
	forged := func(s agent.JobStatus) bool { return len(s.Ranks) > 0 && s.Ranks[0].Exit.Code == 7 }
	found := errors.New("found")
	err := n.Client.WatchJob(t.Context(), "forged", func(s agent.JobStatus) error {
		if !forged(s) {
			return nil
		}
		if r := s.Ranks[0]; len(s.Ranks) != 1 || r.Rank != 0 || r.LocalRank != 0 || r.Node != 0 || r.DebugPort != 0 {
			t.Errorf("ranks %+v, want rank 0 of node 0 alone", s.Ranks)
		}
		return found
	})
	if !errors.Is(err, found) {
		t.Fatalf("watching the job: %v, want the forged status", err)
	}
	n.script("go", "")
	n.wait("forged")
	n.End()
	n.Restart()
	if status, err := n.Client.Job(t.Context(), "forged"); err != nil || len(status.Ranks) != 1 || status.Ranks[0].Rank != 0 {
		t.Errorf("after a restart %+v, %v; want rank 0 alone", status.Ranks, err)
	}
}

// An agent that ranks have taken over can answer anything. Its client takes the node's number from the request, and drops
// the ranks of other nodes.
func TestForgedAnswers(t *testing.T) {
	n := newNode(t)
	answer := ""
	n.Wrap(func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.URL.Path, "/redirect") {
				t.Errorf("the client follows to %s", r.URL)
			}
			if answer == "" {
				http.Redirect(w, r, "/redirected", http.StatusTemporaryRedirect)
			}
			fmt.Fprint(w, answer)
		})
	})
	job := agent.JobStatus{
		ID: "other", Node: 99, State: agent.Running, Spec: agent.JobSpec{Launcher: agent.Torchrun, Nodes: 2, RanksPerNode: 2},
		Ranks: []agent.RankStatus{{Rank: 99}, {Rank: 1, Node: 98, LocalRank: 97}, {Rank: 2}, {Rank: 1}, {Rank: -1}},
		Quiet: -1, RankSeconds: make([]float64, 5),
	}
	say := func(value any) {
		content, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		answer = string(content)
	}
	say(job)
	check := func(s agent.JobStatus) error {
		if s.ID != "job" || s.Node != 0 || s.Quiet != 0 || s.RankSeconds != nil || len(s.Ranks) != 1 || s.Ranks[0].Rank != 1 ||
			s.Ranks[0].LocalRank != 1 || s.Ranks[0].Node != 0 {
			t.Errorf("got %+v, want job, node 0 and rank 1 alone", s)
		}
		return nil
	}
	status, err := n.Client.Job(t.Context(), "job")
	started, startErr := n.Client.StartJob(t.Context(), "job", job.Spec)
	if err := errors.Join(err, startErr, check(status), check(started), n.Client.WatchJob(t.Context(), "job", check)); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*agent.JobStatus){
		"no nodes":      func(s *agent.JobStatus) { s.Spec.Nodes = 0 },
		"too many":      func(s *agent.JobStatus) { s.Spec.RanksPerNode = 1 << 40 },
		"another order": func(s *agent.JobStatus) { s.Spec.Order = []int{1, 0} },
		"no state":      func(s *agent.JobStatus) { s.State = "" },
	} {
		wrong := job
		change(&wrong)
		say(wrong)
		got, err := n.Client.Job(t.Context(), "job")
		if fail.ReasonOf(err) != fail.AgentUnreachable || len(got.Ranks) > 0 || got.Node != 0 {
			t.Errorf("%s: %+v, %v; want AgentUnreachable", name, got, err)
		}
		if err := n.Client.WatchJob(t.Context(), "job", check); fail.ReasonOf(err) != fail.AgentUnreachable {
			t.Errorf("%s, watched: %v; want AgentUnreachable", name, err)
		}
	}
	say(agent.Facts{Health: agent.Health{Protocol: agent.Protocol}, Node: 99, GPUs: make([]agent.GPU, 5000)})
	if facts, err := n.Client.Facts(t.Context()); err != nil || facts.Node != 0 || len(facts.GPUs) > agent.MaxRanksPerNode {
		t.Errorf("node %d with %d GPUs, %v; want node 0", facts.Node, len(facts.GPUs), err)
	}
	answer = ""
	if _, err := n.Client.Job(t.Context(), "job"); err == nil {
		t.Error("the client accepted a redirection as an answer")
	}
}

// A mismatch of protocols has the reason AgentVersion.
func TestProtocolVersion(t *testing.T) {
	n := newNode(t)
	for _, protocol := range []int{agent.Protocol - 1, agent.Protocol + 1} {
		n.Wrap(func(http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				fmt.Fprintf(w, `{"protocol":%d,"version":"v1.2.3"}`, protocol)
			})
		})
		want := fmt.Sprintf("talking to the agent of node 0: it speaks protocol %d (mlenv v1.2.3), want %d", protocol, agent.Protocol)
		_, err := n.Client.Health(t.Context())
		if fail.ReasonOf(err) != fail.AgentVersion || err.Error() != want || !strings.HasSuffix(fail.NextOf(err), "or use mlenv v1.2.3") {
			t.Errorf("the health of protocol %d: %v, next %q; want AgentVersion: %s", protocol, err, fail.NextOf(err), want)
		}
		if _, err := n.Client.Facts(t.Context()); fail.ReasonOf(err) != fail.AgentVersion {
			t.Errorf("the facts of protocol %d: %v, want AgentVersion", protocol, err)
		}
	}
}

// A client talks only to agents of its own environment.
func TestAgentsCertificateIsVerified(t *testing.T) {
	n, other := newNode(t), newNode(t)
	credentials := func(node *node) agent.Credentials {
		made := node.Certificates()
		c, err := agent.ParseCredentials(made.CA, made.ClientCert, made.ClientKey)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	mixed := credentials(n)
	mixed.CA = credentials(other).CA
	for name, client := range map[string]*agent.Client{
		"an agent of another CA":   agent.NewClient(0, n.Config.Host(0), mixed, n.Dial),
		"an agent of another name": agent.NewClient(0, "env-0.other-headless.ns.svc", credentials(n), n.Dial),
	} {
		if health, err := client.Health(t.Context()); fail.ReasonOf(err) != fail.AgentUnreachable ||
			!strings.Contains(err.Error(), "certificate") {
			t.Errorf("%s: %+v, %v; want its certificate refused", name, health, err)
		}
		client.Close()
	}
}

// An id finds a job only if the whole job is the same.
func TestAnotherJobOfTheSameID(t *testing.T) {
	n := newNode(t)
	n.script("a.sh", "")
	n.script("b.sh", "")
	spec := command("a.sh", "x")
	n.run("job", spec)
	for name, change := range map[string]func(*agent.JobSpec){
		"script":   func(s *agent.JobSpec) { s.Script = "b.sh" },
		"args":     func(s *agent.JobSpec) { s.Args = []string{"y"} },
		"tree":     func(s *agent.JobSpec) { s.Tree = tree.Digest(strings.Repeat("a", 64)) },
		"launcher": func(s *agent.JobSpec) { s.Launcher = agent.Torchrun },
		"nodes":    func(s *agent.JobSpec) { s.Nodes = 2 },
		"ranks":    func(s *agent.JobSpec) { s.RanksPerNode = 2 },
	} {
		other := spec
		change(&other)
		if _, err := n.Client.StartJob(t.Context(), "job", other); fail.ReasonOf(err) != fail.InvalidInput {
			t.Errorf("another %s: %v, want InvalidInput", name, err)
		}
	}
	if again, err := n.Client.StartJob(t.Context(), "job", spec); err != nil || again.New {
		t.Errorf("the same job: new %t, %v; want it found", again.New, err)
	}
}

// A process ends with its job even if it clears its environment (as a process that changes its title does) and leaves its
// session.
func TestDescendantsEndWithTheirJob(t *testing.T) {
	n := newNode(t)
	n.script("leave.sh", `env -i PATH="$PATH" setsid sh -c 'trap "" TERM; echo $$ >pid; while :; do sleep 0.1; done' & until [ -s pid ]; do `+
		`sleep 0.01; done; cat pid; [ "$1" = end ] || exec sleep 1000`)
	left := func() int {
		content, err := os.ReadFile(filepath.Join(n.Config.Paths.Workspace, "pid"))
		if err != nil {
			t.Fatal(err)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(content)))
		if err != nil {
			t.Fatal(err)
		}
		return pid
	}
	ended := n.run("ended", command("leave.sh", "end"))
	if err := syscall.Kill(left(), 0); !errors.Is(err, syscall.ESRCH) || ended.State != agent.Exited {
		t.Errorf("the job is over (%s), and one of its processes still runs: %v", ended.State, err)
	}
	if err := os.Remove(filepath.Join(n.Config.Paths.Workspace, "pid")); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Client.StartJob(t.Context(), "stopped", command("leave.sh")); err != nil {
		t.Fatal(err)
	}
	body, err := n.Client.Log(t.Context(), "stopped", "rank-0", 0, true)
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	if _, err := body.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if err := n.Client.StopJob(t.Context(), "stopped", agent.Stop{Reason: "enough", Grace: timeThatIsNotUsed}); err != nil {
		t.Fatal(err)
	}
	if status := n.wait("stopped"); status.State != agent.Stopped {
		t.Errorf("state %s, want stopped", status.State)
	}
	if err := syscall.Kill(left(), 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the job was stopped, and one of its processes still runs: %v", err)
	}
}

// A job ends even if a rank stops the supervisor above it.
func TestStoppedSupervisor(t *testing.T) {
	n := newNode(t)
	const supervisor = `trap "" TERM; supervisor=$(cut -d' ' -f4 "/proc/$PPID/stat"); kill -STOP "$supervisor"; echo stopped; `
	for name, tc := range map[string]struct {
		script   string
		launcher agent.Exit
	}{
		"ended.sh": {supervisor + "exit 3", agent.Exit{Code: 3}},
		"lives.sh": {supervisor + `while :; do sleep 0.1; done`, agent.Exit{Code: -1, Signal: "SIGKILL"}},
	} {
		n.script(name, tc.script)
		if _, err := n.Client.StartJob(t.Context(), name, command(name)); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), timeForAJobToEnd)
		defer cancel()
		body, err := n.Client.Log(ctx, name, "rank-0", 0, true)
		if err != nil {
			t.Fatal(err)
		}
		defer body.Close()
		if _, err := body.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		for tc.launcher.Signal == "" { // a launcher that ends by itself needs a moment
			status, err := n.Client.Job(ctx, name)
			if err != nil {
				t.Fatal(err)
			}
			if len(status.Ranks) > 0 && !status.Ranks[0].Ended.IsZero() {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		const timeForTheScriptToEnd = 3 * time.Second
		if err := n.Client.StopJob(ctx, name, agent.Stop{Reason: "enough", Grace: timeForTheScriptToEnd}); err != nil {
			t.Fatal(err)
		}
		var last agent.JobStatus
		err = n.Client.WatchJob(ctx, name, func(s agent.JobStatus) error { last = s; return nil })
		if err != nil || last.State != agent.Stopped || last.Launcher != tc.launcher {
			t.Errorf("%s: state %s, launcher %+v, %v; want it stopped, launcher %+v", name, last.State, last.Launcher, err, tc.launcher)
		}
	}
}

// If a rank kills the supervisor, no process of the job keeps running.
func TestKilledSupervisor(t *testing.T) {
	n := newNode(t)
	n.script("kill.sh", `supervisor=$(cut -d' ' -f4 "/proc/$PPID/stat")
setsid sh -c 'trap "" TERM; echo $$ >left; while :; do sleep 0.1; done' & until [ -s left ]; do sleep 0.01; done; kill -KILL `+
		`"$supervisor"; exec sleep 1000`)
	if status := n.run("killed", command("kill.sh")); status.State != agent.Exited {
		t.Errorf("state %s, want %s", status.State, agent.Exited)
	}
	pid, err := os.ReadFile(filepath.Join(n.Config.Paths.Workspace, "left"))
	if err != nil {
		t.Fatal(err)
	}
	// Outside a container another process reaps the zombie.
	stat, err := os.ReadFile(filepath.Join("/proc", strings.TrimSpace(string(pid)), "stat"))
	if err == nil && !strings.Contains(string(stat), ") Z ") {
		t.Errorf("the job is over, and one of its processes still runs: %s", stat)
	}
}

// A process that left the job and kills the supervisor can keep the pipe open through which the supervisor reports.
func TestHeldExit(t *testing.T) {
	n := newNode(t)
	n.script("hold.sh", `supervisor=$(cut -d' ' -f4 "/proc/$PPID/stat")
env -i PATH="$PATH" setsid sh -c "exec 9>/proc/$supervisor/fd/3; echo \$\$ >held; exec sleep 1000" & until [ -s held ]; do sleep `+
		`0.01; done; kill -KILL "$supervisor"`)
	t.Cleanup(func() {
		content, _ := os.ReadFile(filepath.Join(n.Config.Paths.Workspace, "held"))
		if pid, err := strconv.Atoi(strings.TrimSpace(string(content))); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	if _, err := n.Client.StartJob(t.Context(), "held", command("hold.sh")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), timeForAJobToEnd)
	defer cancel()
	var last agent.JobStatus
	err := n.Client.WatchJob(ctx, "held", func(s agent.JobStatus) error { last = s; return nil })
	if want := (agent.Exit{Code: -1, Signal: "SIGKILL"}); err != nil || last.State != agent.Exited || last.Launcher != want {
		t.Errorf("state %s, launcher %+v, %v; want it exited, launcher %+v", last.State, last.Launcher, err, want)
	}
}

// The status has how the launcher ended: by a signal, or because the program does not exist.
func TestLauncherExit(t *testing.T) {
	n := newNode(t)
	n.script("kill.sh", `kill -KILL $PPID; exec sleep 1000`)
	if got, want := n.run("killed", command("kill.sh")).Launcher, (agent.Exit{Code: -1, Signal: "SIGKILL"}); got != want {
		t.Errorf("a launcher that was killed: %+v, want %+v", got, want)
	}
	n.script("seven.sh", `exit 7`)
	if got, want := n.run("seven", command("seven.sh")).Launcher, (agent.Exit{Code: 7}); got != want {
		t.Errorf("a launcher that failed: %+v, want %+v", got, want)
	}
}

// Connections without a certificate do not block clients and do not accumulate.
func TestUnprovenConnections(t *testing.T) {
	n := newNode(t)
	if _, err := n.Client.Health(t.Context()); err != nil {
		t.Fatal(err)
	}
	var conns []net.Conn
	for range connlimit.Unproven + 1 {
		conn, err := n.Dial(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conns = append(conns, conn)
	}
	if _, err := conns[0].Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the oldest connection: %v, want it closed", err)
	}
	made := n.Certificates()
	credentials, err := agent.ParseCredentials(made.CA, made.ClientCert, made.ClientKey)
	if err != nil {
		t.Fatal(err)
	}
	another := agent.NewClient(0, n.Config.Host(0), credentials, n.Dial)
	defer another.Close()
	for name, client := range map[string]*agent.Client{"a client from before": n.Client, "a new client": another} {
		if _, err := client.Health(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
