// SPDX-License-Identifier: Apache-2.0

// Package services runs code-server, Jupyter and TensorBoard on node 0, restarts them when they end, and requires the
// environment's password or token.
package services

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

// Options describe the node to the services.
type Options struct {
	// Dir is the mounted Secret, agent.ServicesDir on a node.
	Dir string
	// Workspace is the users' folder, Logs is for the services' output. Run is for files that must not outlive the pod.
	Workspace, Logs, Run string
	// Public is the address for users' connections, Loopback the one for the node's own.
	Public, Loopback string
	// Environ returns the environment of jobs and shells.
	Environ func() map[string]string
	// Used is called while a browser, or another client with the password or token, uses a service; nil for no call.
	Used func()
}

// Manager runs the services that the mounted Secret lists, and follows its changes.
type Manager struct {
	options Options
	log     *slog.Logger
	pauses  pauses

	mu sync.Mutex
	// live has an entry for each requested service, even if it cannot run.
	live map[string]*service
}

// New returns a Manager, which Run starts.
func New(o Options, log *slog.Logger) *Manager {
	return &Manager{options: o, log: log, pauses: pauses{first: time.Second, most: time.Minute, steady: time.Minute},
		live: map[string]*service{}}
}

// Run runs the services until ctx is done, and returns when they have ended.
func (m *Manager) Run(ctx context.Context) error {
	defer m.adopt(context.WithoutCancel(ctx), nil)
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watching %s: %w", m.options.Dir, err)
	}
	defer watcher.Close()
	// Kubernetes changes a mounted Secret by switching a link in its folder.
	if err := watcher.Add(m.options.Dir); errors.Is(err, fs.ErrNotExist) {
		return nil // an environment without services
	} else if err != nil {
		return fmt.Errorf("watching %s: %w", m.options.Dir, err)
	}
	for {
		wanted, err := m.read()
		if err != nil {
			m.log.Warn(fmt.Sprintf("The services stay as they are: %v", err))
		} else {
			m.adopt(ctx, wanted)
		}
		select {
		case <-watcher.Events:
		case err := <-watcher.Errors:
			m.log.Debug("Reading the services again.", "error", err)
		case <-ctx.Done():
			return nil
		}
	}
}

// read returns the credentials of the requested services, by name.
func (m *Manager) read() (map[string]string, error) {
	list, err := os.ReadFile(filepath.Join(m.options.Dir, agent.ServicesKey))
	if err != nil {
		return nil, err
	}
	result := map[string]string{}
	for _, name := range strings.FieldsFunc(string(list), func(r rune) bool { return r == ',' }) {
		known, ok := agent.FindService(name)
		if !ok {
			m.log.Warn(fmt.Sprintf("There is no service %q.", name))
			continue
		}
		credential, err := os.ReadFile(filepath.Join(m.options.Dir, known.Key))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		result[name] = string(credential)
	}
	return result, nil
}

// adopt stops services that are no longer requested, or with another credential, and starts the others.
func (m *Manager) adopt(ctx context.Context, want map[string]string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var ending []*service
	for name, s := range m.live {
		if credential, ok := want[name]; !ok || credential != s.credential {
			s.stop()
			ending = append(ending, s)
			delete(m.live, name)
		}
	}
	for _, s := range ending {
		<-s.over
		m.log.Info(fmt.Sprintf("Service %s is stopped.", s.status.Name))
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if m.live[name] == nil {
			m.live[name] = m.start(ctx, name, want[name])
		}
	}
}

func (m *Manager) start(ctx context.Context, name, credential string) *service {
	known, _ := agent.FindService(name)
	p := m.options.program(known, credential)
	path := filepath.Join(m.options.Logs, name+".log")
	ctx, cancel := context.WithCancel(ctx)
	s := &service{
		program: p, credential: credential, pauses: m.pauses, log: m.log, stop: cancel, over: make(chan struct{}),
		output: &output{path: path, secret: credential},
		status: agent.ServiceStatus{Name: name, Port: known.Port, State: agent.ServiceStarting, Log: path},
	}
	switch {
	case credential == "":
		s.refuse(agent.ServiceRefused, fmt.Sprintf("it has no %s in the environment's Secret", known.Credential))
	case p.path == "":
		s.refuse(agent.ServiceAbsent, "the image has no "+p.executable)
	default:
		go s.run(ctx)
	}
	return s
}

// Status returns the status of all requested services, by name.
func (m *Manager) Status() []agent.ServiceStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []agent.ServiceStatus
	for _, name := range slices.Sorted(maps.Keys(m.live)) {
		all = append(all, m.live[name].currentStatus())
	}
	return all
}

func hostPort(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }
