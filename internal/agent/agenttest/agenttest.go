// Package agenttest runs agents in a test: the real server and rank shim, with
// files in temporary folders instead of claims, and real TLS.
package agenttest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/program"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/server"
	"github.com/ml-dev-env/ml-dev-env/internal/environment"
	"github.com/ml-dev-env/ml-dev-env/internal/environment/certs"
)

// Main is for a package's TestMain: it makes the test's own binary the agent's
// program, for the rank shim.
func Main(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "rank" {
		os.Exit(program.Main(os.Args, os.Environ(), os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// Node is one agent.
type Node struct {
	t      *testing.T
	Config server.Config
	Client *agent.Client
	Dial   agent.Dialer
	certs  environment.Certificates
	end    func()

	mu      sync.Mutex
	address string // "" while nobody listens
	conns   []net.Conn
}

// Start starts the agents of an environment of count nodes, each with a
// workspace of its own.
func Start(t *testing.T, count int) []*Node {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	made, err := certs.New("ns", "env", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	credentials, err := agent.ParseCredentials(made.CA, made.ClientCert, made.ClientKey)
	if err != nil {
		t.Fatal(err)
	}
	var nodes []*Node
	for i := range count {
		dir := t.TempDir()
		n := &Node{t: t, certs: made, Config: server.Config{
			Version: "test", Name: "env", Suffix: "env-headless.ns.svc", Node: i, Nodes: count, GPUs: 2,
			Pod: fmt.Sprintf("env-%d", i), KubernetesNode: fmt.Sprintf("node-%d", i), PodIP: "127.0.0.2", Environ: os.Environ(), Program: self,
			Paths: server.Paths{Workspace: filepath.Join(dir, "workspace"), Datasets: dir, Home: filepath.Join(dir, "home"), Sys: "/sys/fs/cgroup"},
		}}
		n.Dial = n.dial
		n.Client = agent.NewClient(i, n.Config.Host(i), credentials, n.Dial)
		n.Restart()
		t.Cleanup(func() {
			n.Client.Close()
			n.End()
		})
		nodes = append(nodes, n)
	}
	return nodes
}

// End ends the agent as the end of its container does.
func (n *Node) End() { n.end() }

// Crash ends the agent as the kernel ends a container, which nobody is told of,
// and starts it again: the record of job says that it runs.
func (n *Node) Crash(job string) {
	n.t.Helper()
	path := filepath.Join(n.Config.Paths.Workspace, ".mlenv", "runs", job, fmt.Sprintf("node-%d.json", n.Config.Node))
	running, err := os.ReadFile(path)
	if err != nil {
		n.t.Fatal(err)
	}
	n.mu.Lock()
	n.address = ""
	for _, conn := range n.conns {
		conn.Close()
	}
	n.mu.Unlock()
	n.End()
	if err := os.WriteFile(path, running, 0o644); err != nil {
		n.t.Fatal(err)
	}
	n.Restart()
}

func (n *Node) dial(ctx context.Context, _ int) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.address == "" {
		return nil, errors.New("nobody listens")
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", n.address)
	if err == nil {
		n.conns = append(n.conns, conn)
	}
	return conn, err
}

// Restart starts the agent again on the same files, as a new container.
func (n *Node) Restart() {
	n.t.Helper()
	s, err := server.New(n.Config, slog.New(slog.DiscardHandler))
	if err != nil {
		n.t.Fatal(err)
	}
	tlsDir := filepath.Join(n.Config.Paths.Home, "tls")
	if err := os.MkdirAll(tlsDir, 0o755); err != nil {
		n.t.Fatal(err)
	}
	for name, content := range map[string][]byte{"ca.crt": n.certs.CA, "tls.crt": n.certs.ServerCert, "tls.key": n.certs.ServerKey} {
		if err := os.WriteFile(filepath.Join(tlsDir, name), content, 0o600); err != nil {
			n.t.Fatal(err)
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		n.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.ServeOn(ctx, listener) }()
	n.mu.Lock()
	n.address = listener.Addr().String()
	n.mu.Unlock()
	n.end = func() {
		cancel()
		if err := <-served; err != nil {
			n.t.Errorf("the agent ended with %v", err)
		}
		n.end = func() {}
	}
}
