package podagent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// TestGuests builds the agent once for all its subtests.
func TestGuests(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("python3 not found")
	}
	program := filepath.Join(t.TempDir(), "mlenv-agent")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "../../../cmd/mlenv-agent")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the agent: %v\n%s", err, out)
	}
	for name, test := range map[string]func(*testing.T, string){
		"come and go": comeAndGo, "go by themselves": goByThemselves, "are removed by force": removedByForce,
		"start is cancelled": startCancelled, "what pods lack": whatPodsLack,
	} {
		t.Run(name, func(t *testing.T) { test(t, program) })
	}
}

// local returns a stand-in for the containers of pods. A command runs as a process of this machine. Like a process in a
// container it keeps running when ctx ends.
func local(t *testing.T, environ ...string) Cluster {
	t.Helper()
	// The agent only checks that torch exists.
	modules := t.TempDir()
	if err := os.WriteFile(filepath.Join(modules, "torch.py"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	environ = append(append(os.Environ(), "PYTHONPATH="+modules), environ...)
	return Cluster{
		Exec: func(ctx context.Context, _ Pod, command []string, stdin io.Reader, stdout, stderr io.Writer) error {
			process := exec.Command(command[0], command[1:]...)
			process.Env = environ
			process.Stdin, process.Stdout, process.Stderr = stdin, stdout, stderr
			ended := make(chan error, 1)
			go func() { ended <- process.Run() }()
			select {
			case err := <-ended:
				var exit *exec.ExitError
				if errors.As(err, &exit) {
					return &kube.ExitError{Code: exit.ExitCode()}
				}
				return err
			case <-ctx.Done():
				return ctx.Err()
			}
		},
		Forward: func(ctx context.Context, _ Pod, port int) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		},
	}
}

func guests(t *testing.T, cluster Cluster, program string) (*Agents, string) {
	t.Helper()
	folder := t.TempDir()
	g := &Agents{Cluster: cluster, Agent: program, Idle: time.Hour, Folders: []string{"/proc", folder}, Pods: []Pod{
		{Name: "a-0", Container: "main", Node: "wrk-1", IP: "127.0.0.1", GPUs: 2}, {Name: "a-1", Container: "main", Node: "wrk-2", IP: "127.0.0.1", GPUs: 2},
	}}
	t.Cleanup(func() {
		ended, end := context.WithCancel(context.Background())
		end()
		if err := g.Remove(ended); err != nil {
			t.Error(err)
		}
		empty(t, folder)
	})
	return g, folder
}

// empty fails unless folder is empty and no process names it in its command line.
func empty(t *testing.T, folder string) {
	t.Helper()
	left, err := os.ReadDir(folder)
	if err != nil || len(left) > 0 {
		t.Errorf("left in the folder: %v, %v", left, err)
	}
	for _, pid := range mentioning(t, folder) {
		t.Errorf("process %d still runs", pid)
	}
}

// mentioning returns the processes whose command line names folder.
func mentioning(t *testing.T, folder string) (pids []int) {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range lines {
		line, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(line), folder) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

func comeAndGo(t *testing.T, program string) {
	g, folder := guests(t, local(t), program)
	set, err := g.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(set) != 2 || len(mentioning(t, folder)) != 2 {
		t.Fatalf("got %d clients, and processes %v; want two", len(set), mentioning(t, folder))
	}
	facts, err := set[1].Facts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprintf("%d %s %s %d %s", facts.Node, facts.Pod, facts.KubernetesNode, facts.GPUsExpected, facts.Environment["MASTER_ADDR"])
	if want := "1 a-1 wrk-2 2 127.0.0.1"; got != want {
		t.Errorf("the agent reports %q, want %q", got, want)
	}
	// The agent ends everything that its jobs started, including processes in sessions of their own and orphans.
	running, err := set[1].StartJob(t.Context(), "sleeps", agent.JobSpec{
		Launcher: agent.Command, Script: "sh", Args: []string{"-c", `echo "$HOME"; (exec setsid env -u MLENV_JOB python3 -c 'import time; time.sleep(1000)' ` + folder + `/ours) & wait`}, Nodes: 2, RanksPerNode: 1,
	})
	if err != nil || running.State != agent.Running {
		t.Fatalf("got %+v, %v; want a running job", running, err)
	}
	var home strings.Builder
	reading, enough := context.WithCancel(t.Context())
	err = nodes.FollowLog(reading, set[1], "sleeps", agent.RankLog+"1", writer(func(p []byte) {
		home.Write(p)
		enough()
	}), func(err error) error { return err })
	if strings.TrimSpace(home.String()) != os.Getenv("HOME") {
		t.Errorf("a job has HOME %q, %v; want the container's own %q", home.String(), err, os.Getenv("HOME"))
	}
}

type writer func([]byte)

func (w writer) Write(p []byte) (int, error) {
	w(p)
	return len(p), nil
}

// A client that is killed sends no notice: its requests break off and no others come.
func goByThemselves(t *testing.T, program string) {
	g, folder := guests(t, local(t), program)
	g.Idle = 2 * time.Second
	if _, err := g.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	agents := mentioning(t, folder)
	g.stop() // no client sends requests any more
	for _, pid := range agents {
		gone(t, pid)
	}
	g.stop = nil // so that the test's cleanup does not remove the agents
	empty(t, folder)
}

// gone waits until a process has ended.
func gone(t *testing.T, pid int) {
	t.Helper()
	if err := exec.CommandContext(t.Context(), "tail", fmt.Sprintf("--pid=%d", pid), "--sleep-interval=0.05", "--follow", os.DevNull).Run(); err != nil {
		t.Fatal(err)
	}
}

// An agent that was killed cannot remove itself, and neither can one that does not end.
func removedByForce(t *testing.T, program string) {
	g, folder := guests(t, local(t), program)
	if _, err := g.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	agents := mentioning(t, folder)
	for pid, signal := range map[int]syscall.Signal{agents[0]: syscall.SIGKILL, agents[1]: syscall.SIGSTOP} {
		if err := syscall.Kill(pid, signal); err != nil {
			t.Fatal(err)
		}
	}
}

// Start leaves nothing if its context ends while it copies.
func startCancelled(t *testing.T, program string) {
	cluster := local(t)
	ctx, cancel := context.WithCancel(t.Context())
	run := cluster.Exec
	cluster.Exec = func(c context.Context, pod Pod, command []string, stdin io.Reader, stdout, stderr io.Writer) error {
		if pod.Name == "a-1" {
			stdin = io.MultiReader(io.LimitReader(stdin, 20000), stuck{cancel, t.Context()})
		}
		return run(c, pod, command, stdin, stdout, stderr)
	}
	g, _ := guests(t, cluster, program)
	if _, err := g.Start(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want it cancelled", err)
	}
}

// stuck is a connection that receives no more data.
type stuck struct {
	seen func()
	test context.Context
}

func (s stuck) Read([]byte) (int, error) {
	s.seen()
	<-s.test.Done()
	return 0, io.EOF
}

func whatPodsLack(t *testing.T, program string) {
	g, _ := guests(t, local(t), program)
	empty := t.TempDir()
	for _, test := range []struct {
		name   string
		change func(g *Agents)
		reason fail.Reason
		words  []string
	}{
		{"no python3", func(g *Agents) {
			g.Cluster.Exec = func(context.Context, Pod, []string, io.Reader, io.Writer, io.Writer) error {
				return errors.New(`OCI runtime exec failed: exec: "python3": executable file not found in $PATH`)
			}
		}, fail.InvalidInput, []string{"pod a-0: container main has no python3 in its PATH", "pod a-1: container main has no python3"}},
		{"no torch", func(g *Agents) { g.Cluster = local(t, "PYTHONPATH="+empty) }, fail.InvalidInput, []string{"pod a-0: python3 in container main has no torch", "pod a-1: "}},
		{"nowhere to write", func(g *Agents) { g.Folders = []string{"/proc", "/sys", "/nowhere"} }, fail.ContainerFailed,
			[]string{"pod a-0: container main has no folder that can be written and run from: /proc: ", "; /sys: ", "pod a-1: "}},
		{"a broken stream", func(g *Agents) {
			run, calls := g.Cluster.Exec, atomic.Int32{}
			g.Cluster.Exec = func(ctx context.Context, pod Pod, command []string, stdin io.Reader, stdout, stderr io.Writer) error {
				if call := int(calls.Add(1)); call <= len(g.Pods) || call > 2*len(g.Pods) { // it looks at the pods, or cleans up
					return run(ctx, pod, command, stdin, stdout, stderr)
				}
				return fmt.Errorf("running a command in pod %s: %w: MemoryError", pod.Name, io.EOF)
			}
		}, fail.ContainerFailed, []string{"pod a-0: running a command in pod a-0: EOF: MemoryError"}},
		{"an agent for another machine", func(g *Agents) { g.Agent = "/dev/null" }, fail.InvalidInput, []string{"/dev/null is no Linux program: want one, built for Linux on "}},
		{"no agent", func(g *Agents) { g.Agent = "" }, fail.InvalidInput, []string{"mlenv-agent: no such file", "want one, built for Linux on "}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.name == "no torch" && exec.Command("python3", "-c", "import torch").Run() == nil {
				t.Skip("python3 has torch here")
			}
			own := &Agents{Cluster: g.Cluster, Pods: g.Pods, Agent: g.Agent, Idle: g.Idle, Folders: g.Folders}
			test.change(own)
			_, err := own.Start(t.Context())
			if fail.ReasonOf(err) != test.reason {
				t.Errorf("got %s: %v; want %s", fail.ReasonOf(err), err, test.reason)
			}
			for _, words := range test.words {
				if err != nil && !strings.Contains(err.Error(), words) {
					t.Errorf("got %v; want %q in it", err, words)
				}
			}
			if err := own.Remove(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}
