// SPDX-License-Identifier: Apache-2.0

// Package process starts the cluster's components as processes that outlive
// the command that started them, and finds them again.
package process

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/topology"
)

// Spec has everything that is needed to start a component.
type Spec struct {
	// Name is unique in the cluster, as in "kubelet@node-1".
	Name string
	Argv []string
	// Env is added to the environment of the starting command.
	Env []string
	// Netns is the network namespace the component runs in.
	Netns topology.Netns
	// Binds gives the component folders of its own at paths that are fixed in its program: path on the host to folder.
	// Only the component sees them.
	Binds map[string]string
	// Memlock is the number of bytes that the component and its children may lock. 0 keeps the limit of the starting
	// command.
	Memlock int64
	// Version changes if the component must be restarted although its arguments are the same, because its program or one
	// of its configuration files has changed.
	Version string
}

// running is the record of a started component.
type running struct {
	Spec Spec
	PID  int
	// StartTime distinguishes the process from a later one with the same number. It is in clock ticks since boot, field
	// 22 of /proc/PID/stat.
	StartTime string
}

func recordPath(name string) string { return topology.State("components", name+".json") }

// LogPath returns the file of the component's output.
func LogPath(name string) string { return topology.State("logs", name+".log") }

// Process is a component that this command has started.
type Process struct {
	spec Spec
	done chan struct{}
	err  error
}

// Exited is closed when the process ends.
func (p *Process) Exited() <-chan struct{} { return p.done }

// Err describes the end of an exited process.
func (p *Process) Err() error {
	return fmt.Errorf("%s exited: %w", p.spec.Name, p.err)
}

// Start starts the component through this program's hidden command "enter", which moves itself into the component's
// namespaces and becomes it. A nil Process means that the component already runs with this specification.
func Start(spec Spec) (*Process, error) {
	for _, dir := range []string{topology.State("components"), topology.State("logs")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	entering, err := lockEntering(spec.Name)
	if err != nil {
		return nil, err
	}
	defer entering.Close()
	if Running(spec) {
		return nil, nil
	}
	// Replace a component that runs with another specification.
	if old, err := load(spec.Name); err == nil && old.alive() {
		if err := old.kill(); err != nil {
			return nil, fmt.Errorf("stopping the old %s: %w", spec.Name, err)
		}
	}
	// The process itself records its number when it starts. So it is known even if this command is killed now.
	if err := (running{Spec: spec}).save(); err != nil {
		return nil, err
	}
	logFile, err := os.OpenFile(LogPath(spec.Name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer logFile.Close()
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, "enter", spec.Name)
	cmd.Env = append(os.Environ(), spec.Env...)
	cmd.Stdout, cmd.Stderr = logFile, logFile
	cmd.Dir = "/"
	cmd.ExtraFiles = []*os.File{entering} // has the number enteringFD
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", spec.Name, err)
	}
	p := &Process{spec: spec, done: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		if p.err == nil {
			p.err = errors.New("exit status 0")
		}
		close(p.done)
	}()
	return p, nil
}

// enteringFD is the lock that a process holds until it has become the component.
const enteringFD = 3

// lockEntering waits until no process is about to become the component: one that an interrupted command has started may
// still be entering.
func lockEntering(name string) (*os.File, error) {
	lock, err := os.OpenFile(topology.State("components", name+".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		lock.Close()
		return nil, fmt.Errorf("locking %s: %w", lock.Name(), err)
	}
	return lock, nil
}

// Running reports whether the component runs with exactly this specification.
func Running(spec Spec) bool {
	r, err := load(spec.Name)
	if err != nil || !r.alive() {
		return false
	}
	want, _ := json.Marshal(spec)
	got, _ := json.Marshal(r.Spec)
	return string(want) == string(got)
}

// Status describes a component as the last up started it.
type Status struct {
	Name  string
	PID   int
	Alive bool
}

// List returns every component that was started, by name.
func List() ([]Status, error) {
	files, err := filepath.Glob(recordPath("*"))
	if err != nil {
		return nil, err
	}
	var list []Status
	for _, f := range files {
		name := strings.TrimSuffix(filepath.Base(f), ".json")
		r, err := load(name)
		if err != nil {
			return nil, err
		}
		list = append(list, Status{Name: name, PID: r.PID, Alive: r.alive()})
	}
	return list, nil
}

// NodeOf returns the node in a component's name, "" if the component belongs to no node.
func NodeOf(name string) string {
	_, node, _ := strings.Cut(name, "@")
	return node
}

// Stop ends a component and forgets it. Its log stays.
func Stop(name string) error {
	r, err := load(name)
	if err != nil {
		return err
	}
	if r.alive() {
		if err := r.kill(); err != nil {
			return fmt.Errorf("stopping %s: %w", name, err)
		}
	}
	return os.Remove(recordPath(name))
}

// Tail returns the last n lines of the component's log.
func Tail(name string, n int) string {
	content, err := os.ReadFile(LogPath(name))
	if err != nil {
		return ""
	}
	lines := strings.Split(strings.TrimRight(string(content), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

func load(name string) (running, error) {
	var r running
	content, err := os.ReadFile(recordPath(name))
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(content, &r); err != nil {
		return r, fmt.Errorf("reading the record of %s: %w", name, err)
	}
	return r, nil
}

func (r running) save() error {
	content, err := json.Marshal(r)
	if err != nil {
		return err
	}
	path := recordPath(r.Spec.Name)
	if err := os.WriteFile(path+".new", content, 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

func (r running) alive() bool {
	return r.PID > 0 && r.StartTime != "" && startTime(r.PID) == r.StartTime
}

// kill kills the process and returns when the process and its ports are gone.
func (r running) kill() error {
	fd, err := unix.PidfdOpen(r.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	deadline := time.Now().Add(10 * time.Second)
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(time.Until(deadline).Milliseconds()))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err == nil && n == 0 {
			return fmt.Errorf("process %d still exists 10s after it was killed", r.PID)
		}
		return err
	}
}

// startTime returns "" for a process that does not exist or is a zombie.
func startTime(pid int) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, fs.ErrNotExist) || err != nil {
		return ""
	}
	// The program's name is in parentheses and may contain any character.
	i := strings.LastIndex(string(stat), ") ")
	if i < 0 {
		return ""
	}
	fields := strings.Fields(string(stat)[i+2:])
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return ""
	}
	return fields[19]
}
