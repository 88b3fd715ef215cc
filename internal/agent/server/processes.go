// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/rank"
)

type processes struct {
	// record is the job's folder, which names it among the jobs of all agents whose processes are in sight.
	record string
	node   int
	// supervisor is the process above them, 0 if there is none.
	supervisor atomic.Int64

	mu sync.Mutex
	// kept are the keepers of the agent's own programs. over refuses others.
	kept map[int]bool
	over bool
}

// members returns the descendants of the supervisor and of the keepers, and the processes that carry the job's record in their
// environment: each finds what the other misses, processes that cleared their environment or whose supervisor was killed.
func (p *processes) members() []int {
	job, node := []byte("\x00"+rank.RunDirVariable+"="+p.record+"\x00"), []byte("\x00"+rank.NodeVariable+"="+strconv.Itoa(p.node)+"\x00")
	supervisor := int(p.supervisor.Load())
	all, keepers := processTable(), p.keepers()
	below := descendants(all, append(keepers, supervisor)...)
	var pids []int
	for _, process := range all {
		if process.dead || process.pid == supervisor || process.pid == os.Getpid() || slices.Contains(keepers, process.pid) {
			continue
		}
		environ := environOf(process.pid)
		if below[process.pid] || bytes.Contains(environ, job) && bytes.Contains(environ, node) {
			pids = append(pids, process.pid)
		}
	}
	return pids
}

// environOf returns the environment of a process, with a zero byte before and behind each variable.
func environOf(pid int) []byte {
	environ, _ := os.ReadFile(procPath(pid, "environ"))
	return append([]byte{0}, environ...)
}

// procPath returns the path of a file of a process.
func procPath(pid int, file string) string { return fmt.Sprintf("/proc/%d/%s", pid, file) }

// descendants of processes, none of process 0.
func descendants(all []process, of ...int) map[int]bool {
	below := map[int]bool{}
	for found := true; found; {
		found = false
		for _, process := range all {
			if !below[process.pid] && process.parent != 0 && (slices.Contains(of, process.parent) || below[process.parent]) {
				below[process.pid], found = true, true
			}
		}
	}
	return below
}

type process struct {
	pid, parent int
	// dead is one that its parent has not collected.
	dead bool
	// cpu is the processor time that it has used.
	cpu time.Duration
}

func processTable() (all []process) {
	entries, _ := os.ReadDir("/proc")
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil {
			if found, ok := readProcess(pid); ok {
				all = append(all, found)
			}
		}
	}
	return all
}

func readProcess(pid int) (found process, ok bool) {
	stat, err := os.ReadFile(procPath(pid, "stat"))
	if err != nil {
		return found, false
	}
	// pid (name) state parent ...; the name may hold anything. utime and stime are the fields 14 and 15 of proc(5).
	const utime, stime = 14 - 3, 15 - 3
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) <= stime {
		return found, false
	}
	number := func(field int) int {
		n, _ := strconv.Atoi(string(fields[field]))
		return n
	}
	// A tick is 10 ms for programs, whatever the kernel counts in.
	const tick = 10 * time.Millisecond
	return process{pid: pid, parent: number(1), dead: fields[0][0] == 'Z', cpu: time.Duration(number(utime)+number(stime)) * tick}, true
}

func (p *processes) signal(s syscall.Signal) (count int) {
	for _, pid := range p.members() {
		if syscall.Kill(pid, s) == nil {
			count++
		}
	}
	return count
}

// terminate sends SIGTERM, as soon as there is a process: the supervisor of a new job may not have started the launcher.
func (p *processes) terminate(ctx context.Context) {
	for p.signal(syscall.SIGTERM) == 0 && sleepContext(ctx, briefly) {
	}
}

// supervisorTime is how long a supervisor without processes may take to end, on a busy node too.
const supervisorTime = 5 * time.Second

// kill sends SIGKILL until no process is left: one may be forking. The supervisor then ends by itself, and reports how the
// launcher ended, unless a process of the job has stopped it, with SIGSTOP or as a debugger.
func (p *processes) kill(ctx context.Context) {
	for p.signal(syscall.SIGKILL) > 0 && sleepContext(ctx, briefly) {
	}
	supervisor := int(p.supervisor.Load())
	if supervisor == 0 || syscall.Kill(supervisor, syscall.SIGCONT) != nil {
		return
	}
	if sleepContext(ctx, supervisorTime) && p.supervisor.CompareAndSwap(int64(supervisor), 0) {
		_ = syscall.Kill(supervisor, syscall.SIGKILL)
	}
}

// briefly is the pause between two looks at processes.
const briefly = 20 * time.Millisecond

// sleepContext waits; it is false once ctx is done.
func sleepContext(ctx context.Context, duration time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(duration):
		return true
	}
}

// ReapOrphans collects orphans, which PID 1 or a subreaper inherits, until ctx is done. The process waits for its own children at
// once, so a child that is dead for some seconds is an orphan.
func ReapOrphans(ctx context.Context) {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)
	defer signal.Stop(ended)
	const patience = 3 * time.Second // for processes without a parent to end after SIGKILL
	for {
		select {
		case <-ctx.Done():
			return
		case <-ended:
		}
		for dead := deadChildren(); len(dead) > 0 && sleepContext(ctx, patience); dead = deadChildren() {
			for _, child := range dead {
				_, _ = unix.Wait4(child.pid, nil, unix.WNOHANG, nil)
			}
		}
	}
}

func deadChildren() []process {
	return slices.DeleteFunc(children(), func(child process) bool { return !child.dead })
}

// endChildren kills and collects the children of this process until none is left or ctx is done.
func endChildren(ctx context.Context) {
	for {
		left := children()
		for _, child := range left {
			_ = syscall.Kill(child.pid, syscall.SIGKILL)
			_, _ = unix.Wait4(child.pid, nil, unix.WNOHANG, nil)
		}
		if len(left) == 0 || !sleepContext(ctx, briefly) {
			return
		}
	}
}

// children returns the processes that this one has to wait for.
func children() []process {
	return slices.DeleteFunc(processTable(), func(p process) bool { return p.parent != os.Getpid() })
}

// exitFile is the descriptor to which Supervise writes how the launcher ended, or the rank that failed first: an agent.Exit in JSON.
const exitFile = 3

// Supervise runs a command, or runs it for each rank, and kills all descendants when they have ended. The arguments are the variables
// of each rank, in one argument, then -- and the command; a launcher, which starts ranks itself, runs once and without such variables.
// A process that loses its parent becomes a child of this one, so that none leaves the job by clearing its environment or by a session
// of its own. If the agent is killed, all processes of the job are.
func Supervise(args []string) error {
	unix.CloseOnExec(exitFile)
	// The agent sends signals to the processes of the job; this one outlives them.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	at := slices.Index(args, "--")
	if at < 0 || at == len(args)-1 {
		return errors.New("reading the command line: want a command after --")
	}
	each, command := args[:at], args[at+1:]
	if len(each) == 0 {
		each = []string{""}
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("adopting orphans: %w", err)
	}
	go ReapOrphans(context.Background())
	go func() {
		awaitClosed(exitFile)
		endChildren(context.Background())
		os.Exit(1)
	}()
	// The kernel ties the lives of the processes to this thread.
	runtime.LockOSThread()
	var started []int
	exits := make(chan agent.Exit, len(each))
	for _, variables := range each {
		process := exec.Command(command[0], command[1:]...)
		process.Env = append(os.Environ(), strings.Fields(variables)...)
		process.Stdout, process.Stderr = os.Stdout, os.Stderr
		process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		if err := process.Start(); err != nil {
			exits <- agent.Exit{Code: -1, Error: err.Error()}
			continue
		}
		started = append(started, process.Process.Pid)
		go func() { exits <- rank.ExitOf(process.Wait(), process.ProcessState) }()
	}
	ctx, ended := context.WithCancel(context.Background())
	var failure agent.Exit
	for range each {
		if exit := <-exits; failure == (agent.Exit{}) && exit != (agent.Exit{}) {
			failure = exit
			if !saves() {
				go stopRanks(ctx, started, stopTime)
			}
		}
	}
	ended()
	endChildren(context.Background())
	return json.NewEncoder(os.NewFile(exitFile, "exit")).Encode(failure)
}

// saves reports whether the job is being stopped and its ranks may save. One that ends with an error then has not failed, and the others
// keep their time.
func saves() bool {
	path := os.Getenv(agent.StopFileVariable)
	if path == "" {
		return false
	}
	_, err := os.Stat(path)
	return err == nil
}

// awaitClosed returns when nothing can read the pipe any more. That the agent reads it to the end of the job, and that nobody else has
// it, is what makes this the end of the agent. Without a pipe it does not return.
func awaitClosed(pipe int) {
	for {
		waiting := []unix.PollFd{{Fd: int32(pipe)}}
		if _, err := unix.Poll(waiting, -1); err == nil && waiting[0].Revents&unix.POLLERR != 0 {
			return
		} else if err != nil && !errors.Is(err, unix.EINTR) || waiting[0].Revents&unix.POLLNVAL != 0 {
			select {}
		}
	}
}

// stopTime is how long the other ranks of a node may run after one has failed. torchrun and DeepSpeed's launcher wait as long.
const stopTime = 30 * time.Second

// stopRanks ends all ranks below the shims, by SIGTERM and after the grace by SIGKILL, which the shims survive: they record how the
// ranks end.
func stopRanks(ctx context.Context, shims []int, grace time.Duration) {
	killing := time.Now().Add(grace)
	for waiting := slices.Clone(shims); len(waiting) > 0 && time.Now().Before(killing); {
		waiting = slices.DeleteFunc(waiting, func(shim int) bool {
			if errors.Is(syscall.Kill(shim, 0), syscall.ESRCH) {
				return true
			}
			// A shim takes signals once it has a rank, and passes them on.
			return len(descendants(processTable(), shim)) > 0 && syscall.Kill(shim, syscall.SIGTERM) == nil
		})
		if !sleepContext(ctx, briefly) {
			return
		}
	}
	// The ranks' own processes come later: a rank may end with them, and by then its shim must know that this was requested.
	all := processTable()
	for _, p := range all {
		if slices.ContainsFunc(shims, func(shim int) bool { return p.parent != shim && descendants(all, shim)[p.pid] }) {
			_ = syscall.Kill(p.pid, syscall.SIGTERM)
		}
	}
	if !sleepContext(ctx, time.Until(killing)) {
		return
	}
	for _, shim := range shims {
		for below := range descendants(processTable(), shim) {
			_ = syscall.Kill(below, syscall.SIGKILL)
		}
	}
	if sleepContext(ctx, supervisorTime) {
		endChildren(ctx)
	}
}
