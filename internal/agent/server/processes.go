package server

import (
	"bytes"
	"context"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ml-dev-env/ml-dev-env/internal/agent/rank"
)

// part is one node's part of a job.
type part struct {
	id   string
	node int
}

// members are the processes of this node's part of a job: those that carry its
// id in their environment. A process group would miss those of launchers that
// make sessions.
func (p part) members() []int {
	job, node := []byte("\x00"+rank.JobVariable+"="+p.id+"\x00"), []byte("\x00"+rank.NodeVariable+"="+strconv.Itoa(p.node)+"\x00")
	var pids []int
	for _, pid := range processes() {
		environ, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "environ"))
		if err != nil || pid == os.Getpid() {
			continue
		}
		environ = append([]byte{0}, environ...)
		if bytes.Contains(environ, job) && bytes.Contains(environ, node) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func processes() []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

func (p part) signal(s syscall.Signal) (count int) {
	for _, pid := range p.members() {
		if syscall.Kill(pid, s) == nil {
			count++
		}
	}
	return count
}

// kill sends SIGKILL until no process is left: one may be forking.
func (p part) kill(ctx context.Context) {
	for p.signal(syscall.SIGKILL) > 0 && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Reap collects children that are not the agent's own until ctx is done: what a
// container's PID 1 inherits. The agent's own are waited for at once by whoever
// started them, so a child that is dead for some seconds is an orphan.
func Reap(ctx context.Context) {
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	defer signal.Stop(children)
	const patience = 3 * time.Second
	seen := map[int]bool{}
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-children:
			if again == nil {
				again = time.After(patience)
			}
		case <-again:
			again = nil
			dead := map[int]bool{}
			for _, pid := range zombies() {
				if seen[pid] {
					_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
					continue
				}
				dead[pid] = true
			}
			if seen = dead; len(dead) > 0 {
				again = time.After(patience)
			}
		}
	}
}

// EndChildren kills what is left of this process's children and collects them, and
// so all of what began below it where Adopt was called. It gives up at the end of ctx.
func EndChildren(ctx context.Context) {
	for ctx.Err() == nil {
		left := children()
		for _, child := range left {
			// Who is dead already is collected all the same.
			_ = syscall.Kill(child.pid, syscall.SIGKILL)
			_, _ = unix.Wait4(child.pid, nil, unix.WNOHANG, nil)
		}
		if len(left) == 0 {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Adopt makes what loses its parent below this process its children, as those of
// PID 1 are in a container of the agent's own.
func Adopt() error { return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// zombies are the dead children of this process.
func zombies() (dead []int) {
	for _, child := range children() {
		if child.dead {
			dead = append(dead, child.pid)
		}
	}
	return dead
}

// child is a process that this one has to wait for.
type child struct {
	pid  int
	dead bool
}

func children() (all []child) {
	self := []byte(strconv.Itoa(os.Getpid()))
	for _, pid := range processes() {
		stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
		if err != nil {
			continue
		}
		// pid (name) state parent ...; the name may hold anything.
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		if len(fields) > 1 && bytes.Equal(fields[1], self) {
			all = append(all, child{pid, string(fields[0]) == "Z"})
		}
	}
	return all
}
