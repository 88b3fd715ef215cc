// SPDX-License-Identifier: Apache-2.0

// Package agenttest runs agents in a test: the real server and rank shim, with
// files in temporary folders instead of claims, and real TLS.
package agenttest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/facts"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/program"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/server"
	"github.com/ml-dev-env/ml-dev-env/internal/env/certs"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
)

// Main is for a package's TestMain. It makes the test's own binary the agent's program, for launchers, the rank shim, virtual
// environments and sftp. The nodes do not see this shell's user, and no variables that it may have from another training.
func Main(m *testing.M) {
	if program.Is(os.Args[0]) || len(os.Args) > 1 && slices.Contains([]string{"launch", "rank", "venv", "sftp"}, os.Args[1]) {
		os.Exit(program.Main(os.Args, os.Environ(), os.Stdout, os.Stderr))
	}
	of := append([]string{"USER", "LOGNAME", agent.CUDADevices, facts.VisibleDevices}, agent.PlaceVariables...)
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		if slices.Contains(of, name) || strings.HasPrefix(name, "NCCL_") {
			if err := os.Unsetenv(name); err != nil {
				panic(err)
			}
		}
	}
	os.Exit(m.Run())
}

// Node is one agent.
type Node struct {
	t      testing.TB
	Config server.Config
	Client *agent.Client
	Dial   agent.Dialer
	certs  objects.Certificates
	wrap   func(http.Handler) http.Handler
	end    func()

	mu      sync.Mutex
	address string // "" while the agent does not listen
	conns   []net.Conn
}

// Options change how StartWith starts agents.
type Options struct {
	// Certificates are the environment's; if they are empty, StartWith creates new ones.
	Certificates objects.Certificates
	// NodesTrain is whether new ones let the agents train on each other.
	NodesTrain bool
	// Shared gives all nodes the same workspace and datasets, as shared claims do.
	Shared bool
	// Now is the clock by which the agents judge their last use, nil for time.Now.
	Now func() time.Time
}

// Start starts the agents of environment env in namespace ns: count nodes, each with a workspace of its own.
func Start(t testing.TB, count int) []*Node {
	t.Helper()
	return StartWith(t, count, Options{})
}

// StartWith is Start with options. Each agent listens at its own address, Config.PodIP, on the port of a pod's agent.
func StartWith(t testing.TB, count int, o Options) []*Node {
	t.Helper()
	made := o.Certificates
	if len(made.CA) == 0 {
		var err error
		if made, err = certs.New("ns", "env", time.Now(), o.NodesTrain); err != nil {
			t.Fatal(err)
		}
	}
	shared := t.TempDir()
	var nodes []*Node
	for i := range count {
		dir := t.TempDir()
		volumes := dir
		if o.Shared {
			volumes = shared
		}
		n := newNode(t, made, i, count, freeAddress(t), dir, volumes)
		n.Config.Now = o.Now
		n.Config.Dial = func(ctx context.Context, node int) (net.Conn, error) { return nodes[node].dial(ctx, node) }
		n.begin()
		nodes = append(nodes, n)
	}
	return nodes
}

// Pod is the pod in which StartIn starts an agent.
type Pod struct {
	// Node is the agent's number, Nodes the number of all nodes.
	Node, Nodes int
	// Host is the Kubernetes node, Address the pod's.
	Host, Address string
	// Volumes is the folder that stands in for the claims, Home the one that stands in for the container's own files.
	Volumes, Home string
	// Certificates are the environment's.
	Certificates objects.Certificates
}

// StartIn starts the agent of a pod, with wrap in front of its handler. Agents find each other by their names in DNS, as in a cluster.
func StartIn(t testing.TB, pod Pod, wrap func(http.Handler) http.Handler) *Node {
	t.Helper()
	n := newNode(t, pod.Certificates, pod.Node, pod.Nodes, pod.Address, pod.Home, pod.Volumes)
	n.Config.KubernetesNode, n.wrap = pod.Host, wrap
	n.begin()
	return n
}

func newNode(t testing.TB, made objects.Certificates, node, count int, address, dir, volumes string) *Node {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// At the top of the tree the kernel has no account of memory, and on a machine without containers a test would see the top.
	sys := filepath.Join(dir, "cgroup")
	if err := os.MkdirAll(sys, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"cgroup.controllers": "cpu memory\n", "memory.current": "268435456\n", "memory.max": "max\n",
	} {
		if err := os.WriteFile(filepath.Join(sys, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return &Node{t: t, certs: made, Config: server.Config{
		Version: "test", Name: "env", Suffix: "env-headless.ns.svc", Node: node, Nodes: count, GPUs: 2,
		Pod: fmt.Sprintf("env-%d", node), KubernetesNode: fmt.Sprintf("node-%d", node), PodIP: address, Public: address, Loopback: address,
		Environ: os.Environ(), Program: self,
		Paths: server.Paths{Workspace: filepath.Join(volumes, "workspace"), Datasets: volumes, Home: filepath.Join(dir, "home"),
			Sys: sys},
	}}
}

// begin starts the agent for the first time.
func (n *Node) begin() {
	n.t.Helper()
	credentials, err := agent.ParseCredentials(n.certs.CA, n.certs.ClientCert, n.certs.ClientKey)
	if err != nil {
		n.t.Fatal(err)
	}
	n.Dial = n.dial
	n.Client = agent.NewClient(n.Config.Node, n.Config.Host(n.Config.Node), credentials, n.Dial)
	n.Restart()
	n.t.Cleanup(func() {
		n.Client.Close()
		n.End()
	})
}

// freeAddress returns an address of the loopback network at which no process uses an agent's port. It stands in for a
// pod's address.
func freeAddress(t testing.TB) string {
	t.Helper()
	for attempt := 1; ; attempt++ {
		address := fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
		listener, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(agent.Port)))
		if errors.Is(err, syscall.EADDRINUSE) && attempt < 100 { // a program that listens everywhere uses all addresses
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		listener.Close()
		return address
	}
}

// Wrap restarts the agent with wrap in front of its handler, for answers that no agent in a test gives by itself.
func (n *Node) Wrap(wrap func(http.Handler) http.Handler) {
	n.t.Helper()
	n.End()
	n.wrap = wrap
	n.Restart()
}

// BreakWatch returns a function after which the connection of the next client that watches a job breaks.
func (n *Node) BreakWatch() (next func()) {
	n.t.Helper()
	var breaks atomic.Bool
	n.Wrap(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/watch") && breaks.CompareAndSwap(true, false) {
				panic(http.ErrAbortHandler)
			}
			next.ServeHTTP(w, r)
		})
	})
	return func() { breaks.Store(true) }
}

// Certificates returns the certificates of the environment.
func (n *Node) Certificates() objects.Certificates { return n.certs }

// End stops the agent in the way in which the end of its container does.
func (n *Node) End() { n.end() }

// Crash kills the agent without notice, as the kernel kills a container, and starts it again. In its record, job is still
// running.
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

// Restart starts the agent again on the same files, as a new container does.
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
	listener := n.listen()
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	closeFront := func() error { return nil }
	if n.wrap == nil {
		go func() { served <- s.ServeOn(ctx, listener) }()
	} else {
		closeFront = n.serveWrapped(listener, s.Handler())
		go func() { served <- s.ServeOn(ctx) }()
	}
	n.mu.Lock()
	n.address = listener.Addr().String()
	n.mu.Unlock()
	n.end = func() {
		cancel()
		if err := errors.Join(<-served, closeFront()); err != nil {
			n.t.Errorf("the agent ended with %v", err)
		}
		// A server that had hardly begun may not have closed the listener yet, and the next server needs the same address.
		_ = listener.Close()
		// The client notices the end when it next reads. A request before that would go to the agent that has ended.
		n.Client.Close()
		n.end = func() {}
	}
}

// listen tries again while the address is in use: until it has become another program, a process that another goroutine of the test
// starts has the listener of the earlier agent too.
func (n *Node) listen() net.Listener {
	n.t.Helper()
	const timeForAProcessToStart = 30 * time.Second
	for began := time.Now(); ; time.Sleep(time.Millisecond) {
		listener, err := net.Listen("tcp", net.JoinHostPort(n.Config.PodIP, strconv.Itoa(agent.Port)))
		if err == nil {
			return listener
		}
		if !errors.Is(err, syscall.EADDRINUSE) || time.Since(began) > timeForAProcessToStart {
			n.t.Fatal(err)
		}
	}
}

// serveWrapped serves the agent's answers as the agent does, through n.wrap.
func (n *Node) serveWrapped(listener net.Listener, handler http.Handler) (end func() error) {
	n.t.Helper()
	credentials, err := agent.ParseCredentials(n.certs.CA, n.certs.ServerCert, n.certs.ServerKey)
	if err != nil {
		n.t.Fatal(err)
	}
	front := &http.Server{Handler: n.wrap(handler), ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelWarn),
		TLSConfig: credentials.ServerTLS()}
	go func() { _ = front.ServeTLS(listener, "", "") }() // ends with front
	return front.Close
}
