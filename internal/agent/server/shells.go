package server

import (
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

// shells are those that people attend from outside, by exec.
type shells struct {
	patience time.Duration
	// hangUp ends what runs of a shell.
	hangUp func(id string)

	mu    sync.Mutex
	kept  map[string]*time.Timer
	ended bool
}

func newShells() *shells {
	return &shells{patience: agent.ShellPatience, hangUp: hangUpShell, kept: map[string]*time.Timer{}}
}

// keep lets the shell live for patience from now.
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

// close forgets all: the container's end is theirs too.
func (s *shells) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	for _, timer := range s.kept {
		timer.Stop()
	}
}

// hangUpShell does to the sessions of a shell what the loss of a terminal does: SIGHUP to
// all in them, which what was started with nohup outlives; and SIGKILL to a leader that is
// still there after a while.
func hangUpShell(id string) {
	leaders := shellLeaders(id)
	for _, pid := range processes() {
		if session, err := unix.Getsid(pid); err == nil && leaders[session] {
			_ = syscall.Kill(pid, syscall.SIGHUP)
			_ = syscall.Kill(pid, syscall.SIGCONT) // one that is stopped must wake up for it
		}
	}
	const grace = 5 * time.Second
	if len(leaders) == 0 {
		return
	}
	time.AfterFunc(grace, func() {
		for pid := range shellLeaders(id) {
			if leaders[pid] {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	})
}

// shellLeaders are the processes that exec started with the shell's id: those that carry it
// and lead a session, as every process does that a container runtime starts.
func shellLeaders(id string) map[int]bool {
	wanted := []byte("\x00" + agent.ShellVariable + "=" + id + "\x00")
	leaders := map[int]bool{}
	for _, pid := range processes() {
		session, err := unix.Getsid(pid)
		if err != nil || session != pid {
			continue
		}
		environ, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "environ"))
		if err == nil && bytes.Contains(append([]byte{0}, environ...), wanted) {
			leaders[pid] = true
		}
	}
	return leaders
}

func (s *Server) keepShell(w http.ResponseWriter, r *http.Request) error {
	s.shells.keep(r.PathValue("id"))
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) endShell(w http.ResponseWriter, r *http.Request) error {
	s.shells.end(r.PathValue("id"))
	w.WriteHeader(http.StatusNoContent)
	return nil
}
