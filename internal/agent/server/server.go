// SPDX-License-Identifier: Apache-2.0

// Package server is the agent: the process that is PID 1 of every node of an
// environment, runs jobs there and answers the steps.
package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/connlimit"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/services"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/sshd"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/treestore"
)

// Server answers the protocol of package agent.
type Server struct {
	config Config
	log    *slog.Logger
	trees  *treestore.Store
	jobs   *jobs
	shells *shells
	ssh    *sshd.Server
	// services are node 0's, nil elsewhere.
	services *services.Manager
	// gpus are which GPUs the node has, nil until they were read.
	gpus atomic.Pointer[gpuView]
	// gpuUse is how busy they are.
	gpuUse gpuUse
	// use is when the node was used last.
	use *use
	// networkSet is closed by startServices, once the node's network is set, or if nothing has to be set.
	networkSet    chan struct{}
	startServices func()
	// passing has a value for each agent that reads a tree here.
	passing   chan struct{}
	transfers transfers
	// turn holds one value while a client has the turn at the network between the nodes.
	turn chan struct{}
	// collecting is held while collect works.
	collecting sync.Mutex
	// background is work that no request waits for.
	background sync.WaitGroup
}

// New prepares the node: limits, folders, the hostfile, and the record of jobs
// that an earlier container left.
func New(config Config, log *slog.Logger) (*Server, error) {
	RaiseLimits(log)
	if err := config.prepare(); err != nil {
		return nil, err
	}
	trees, err := treestore.Open(config.Paths.treesDir(), config.Paths.current())
	if err != nil {
		return nil, err
	}
	s := &Server{
		config: config, log: log, trees: trees, jobs: openJobs(config, log, trees), shells: newShells(),
		networkSet: make(chan struct{}), passing: make(chan struct{}, mostPassed), turn: make(chan struct{}, 1),
		use: newUse(config.Now),
	}
	s.ssh = sshd.New(sshd.Options{
		Loopback: config.Loopback, Program: config.Program, HangUp: hangUp, Log: log,
		Shell: func() (string, map[string]string) { return config.ShellFolder(), config.environment() },
	})
	if err := trees.Forget(config.sharerName()); err != nil {
		log.Warn("Working directories of an earlier container are not known.", "error", err)
	}
	s.startServices = sync.OnceFunc(func() { close(s.networkSet) })
	if mode, _ := agent.Variable(config.Environ, "MLENV_MODE"); agent.Mode(mode) != agent.RDMA || config.network() != nil {
		s.startServices()
	}
	if config.Node == 0 {
		options := config.serviceOptions()
		options.Used = func() { s.use.begin(agent.BrowserUse) }
		s.services = services.New(options, log)
	}
	return s, nil
}

// RaiseLimits lets processes lock and open as much as the container may.
func RaiseLimits(log *slog.Logger) {
	// Only CAP_SYS_RESOURCE lifts the hard limit. Without it, the limit stays.
	_ = syscall.Setrlimit(unix.RLIMIT_MEMLOCK, &syscall.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY})
	for name, resource := range map[string]int{"memlock": unix.RLIMIT_MEMLOCK, "nofile": syscall.RLIMIT_NOFILE} {
		var limit syscall.Rlimit
		if err := syscall.Getrlimit(resource, &limit); err != nil || limit.Cur == limit.Max {
			continue
		}
		limit.Cur = limit.Max
		if err := syscall.Setrlimit(resource, &limit); err != nil {
			log.Warn("Raising a limit failed.", "limit", name, "error", err)
		}
	}
}

// Serve listens on the pod's address, on loopback and on the socket until ctx is
// done, then ends all jobs.
func (s *Server) Serve(ctx context.Context) error {
	var listeners []net.Listener
	port := strconv.Itoa(agent.Port)
	for _, address := range []string{net.JoinHostPort(s.config.PodIP, port), net.JoinHostPort("127.0.0.1", port)} {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			return fmt.Errorf("listening on %s: %w", address, err)
		}
		listeners = append(listeners, listener)
	}
	return s.ServeOn(ctx, listeners...)
}

// front returns the server for clients of the pod network.
func (s *Server) front(handler http.Handler, config *tls.Config) *http.Server {
	return &http.Server{
		Handler: handler, TLSConfig: config, ReadHeaderTimeout: 30 * time.Second, IdleTimeout: 5 * time.Minute, ConnState: connlimit.AfterTLS,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
	}
}

// ServeOn is Serve on open listeners and on the socket.
func (s *Server) ServeOn(ctx context.Context, listeners ...net.Listener) error {
	// For every connection: the mounted Secret may change.
	current := func(*tls.ClientHelloInfo) (*tls.Config, error) {
		credentials, err := agent.ReadCredentials(s.config.Paths.tlsDir())
		if err != nil {
			return nil, fmt.Errorf("reading the node's certificate: %w", err)
		}
		return credentials.ServerTLS(), nil
	}
	config, err := current(nil)
	if err != nil {
		return err
	}
	config.GetConfigForClient = current
	socket := s.config.Paths.socket()
	if err := os.MkdirAll(filepath.Dir(socket), 0o775); err != nil {
		return err
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	name, folder, err := agent.OpenSocket(socket)
	if err != nil {
		return err
	}
	defer folder.Close()
	inner, err := net.Listen("unix", name)
	if err != nil {
		return fmt.Errorf("listening on %s: %w", socket, err)
	}
	server := s.front(s.Handler(), config)
	// The socket is for the readiness probe.
	health := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _ = s.health(w, r) })
	probe := &http.Server{Handler: health, ReadHeaderTimeout: 30 * time.Second}
	failed := make(chan error, len(listeners)+1)
	for _, listener := range listeners {
		go func() { failed <- server.Serve(tls.NewListener(connlimit.New(listener, connlimit.Unproven), config)) }()
		s.log.Info("The agent listens.", "environment", s.config.Name, "node", s.config.Node, "nodes", s.config.Nodes, "address", listener.Addr())
	}
	go func() { failed <- probe.Serve(inner) }()
	s.background.Go(s.collect)
	if s.services != nil {
		s.background.Go(func() {
			// Programs in them inherit the environment that the services started with.
			select {
			case <-s.networkSet:
			case <-ctx.Done():
				return
			}
			if err := s.services.Run(ctx); err != nil {
				s.log.Error("No services run.", "error", err)
			}
		})
	}
	s.background.Go(func() { s.watchUse(ctx) })
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	// Before the shells end: Kubernetes kills the container when its grace is over.
	s.jobs.stopAll("the container is ending", s.config.containerGrace())
	s.shells.close()
	s.ssh.Close()
	s.jobs.waitAll()
	err = errors.Join(server.Close(), probe.Close())
	s.background.Wait()
	s.jobs.cleaning.Wait()
	return err
}
