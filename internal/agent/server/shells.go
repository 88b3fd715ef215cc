// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"fmt"
	"net/http"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

// shells are those that users started by exec.
type shells struct {
	patience time.Duration
	hangUp   func(id string)

	mu    sync.Mutex
	kept  map[string]*time.Timer
	ended bool
}

func newShells() *shells {
	return &shells{patience: agent.ShellPatience, hangUp: hangUpShell, kept: map[string]*time.Timer{}}
}

// keep hangs up the shell after patience, counted from now.
func (s *shells) keep(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if timer, ok := s.kept[id]; ok {
		timer.Reset(s.patience)
		return
	}
	if !s.ended {
		s.kept[id] = time.AfterFunc(s.patience, func() { s.end(id) })
	}
}

// end hangs the shell up, once.
func (s *shells) end(id string) {
	s.mu.Lock()
	timer, ok := s.kept[id]
	delete(s.kept, id)
	s.mu.Unlock()
	if ok {
		timer.Stop()
		s.hangUp(id)
	}
}

// open reports whether a shell is kept.
func (s *shells) open() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.kept) > 0
}

// close stops the timers: the shells end with the container.
func (s *shells) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	for _, timer := range s.kept {
		timer.Stop()
	}
}

// hangUpShell hangs up the shell of an id, if it still runs. What leads a session of its own continues: workers of torchrun under nohup,
// tmux and the shells in it.
func hangUpShell(id string) {
	for _, process := range processTable() {
		wanted := fmt.Appendf(nil, "\x00%s=%s:%d\x00", agent.ShellVariable, id, process.pid)
		if bytes.Contains(environOf(process.pid), wanted) {
			hangUp(process.pid)
		}
	}
}

// hangUp does to the session of a leader what the loss of a terminal does: it sends SIGHUP to all its processes, which a process under
// nohup survives. It kills a leader that survives for a while.
func hangUp(leader int) {
	inSession := func(pid int) bool {
		session, err := unix.Getsid(pid)
		return err == nil && session == leader
	}
	if !inSession(leader) {
		return
	}
	self, err := unix.PidfdOpen(leader, 0)
	for _, process := range processTable() {
		if inSession(process.pid) {
			_ = syscall.Kill(process.pid, syscall.SIGHUP)
			_ = syscall.Kill(process.pid, syscall.SIGCONT) // wakes up a stopped process
		}
	}
	if err != nil {
		return // it has just ended
	}
	time.AfterFunc(agent.ShellGrace, func() {
		_ = unix.PidfdSendSignal(self, unix.SIGKILL, nil, 0)
		_ = unix.Close(self)
	})
}

func (s *Server) keepShell(w http.ResponseWriter, r *http.Request) error {
	s.shells.keep(r.PathValue("id"))
	s.use.begin(agent.ShellUse)
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) endShell(w http.ResponseWriter, r *http.Request) error {
	s.shells.end(r.PathValue("id"))
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) allowSSH(w http.ResponseWriter, _ *http.Request, key agent.SSHKey) error {
	server, err := s.ssh.Allow(key.Key)
	if err != nil {
		return err
	}
	s.use.begin(agent.ShellUse)
	return answer(w, server)
}
