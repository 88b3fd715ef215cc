// SPDX-License-Identifier: Apache-2.0

// Package rank is the shim that the supervisor, or a launcher, runs in place of a training process. It starts the process, owns its
// output, and records when and how it ended, whatever happens to the launcher, the connection or the agent.
package rank

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/facts"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/pylib"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/record"
	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
)

// Variables that the agent sets for the shim, in addition to the launcher's RANK and LOCAL_RANK.
const (
	// JobVariable is the job's id.
	JobVariable = "MLENV_JOB_ID"
	// NodeVariable is the node's ordinal.
	NodeVariable = "MLENV_NODE"
	// LocalRankAtVariable is the index of the argument before which the shim inserts --local_rank=N, as DeepSpeed's launcher does.
	LocalRankAtVariable = "MLENV_PASS_LOCAL_RANK"
	// DebugVariable is the rank that waits for a debugger, and DebugAtVariable the index of its script, or of the -m before
	// its module.
	DebugVariable   = "MLENV_DEBUG_RANK"
	DebugAtVariable = "MLENV_DEBUG_AT"
	// CPUsVariable are the processors to which the shim binds the rank, as the kernel lists them.
	CPUsVariable = "MLENV_CPUS"
	// RunDirVariable is the record's folder. It marks all processes of a job.
	RunDirVariable = "MLENV_RUN_DIR"
)

// Main runs the process and returns the exit code to end with: the process's
// own, or 128 and the number of the signal that ended it, as shells do.
func Main(command []string, sys fs.FS) int {
	code, err := run(command, sys)
	if err != nil {
		fmt.Fprintln(os.Stderr, "mlenv-agent rank:", err)
	}
	return code
}

func run(command []string, sys fs.FS) (int, error) {
	if len(command) == 0 {
		return 2, errors.New("want the command of a rank after --")
	}
	s, err := newShim(sys)
	if err != nil {
		return 2, err
	}
	log, err := claimfile.Append(s.dir.RankLog(s.status.Rank))
	if err != nil {
		return 1, err
	}
	defer log.Close()
	s.output.log = log
	begin, end, err := s.dir.ReserveRank(s.status.Rank)
	if err != nil {
		return 1, err
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		return 1, err
	}
	s.program = command[0]
	process, err := s.start(s.complete(command), writer)
	if err != nil {
		fmt.Fprintf(log, "%v\n", err)
		return 127, errors.Join(err, end(s.status))
	}
	err = begin(s.status)
	err = errors.Join(err, s.wait(process, reader), end(s.status))
	if number := unix.SignalNum(s.status.Exit.Signal); number != 0 {
		return 128 + int(number), err
	}
	return s.status.Exit.Code, err
}

// shim is the process around a rank, which records how it ends.
type shim struct {
	dir    record.Dir
	sys    fs.FS
	status agent.RankStatus
	output output
	// program is what the rank runs.
	program string
	// killed is how many processes the kernel had killed in the container, for want of memory, before the rank started.
	killed int
	// stopped is set by a signal to the shim, which it passes on.
	stopped atomic.Bool
}

// newShim reads from the environment which rank the process is for.
func newShim(sys fs.FS) (*shim, error) {
	s := &shim{dir: record.Dir(os.Getenv(RunDirVariable)), sys: sys}
	if s.dir == "" {
		return nil, fmt.Errorf("%s is not set: the agent sets it", RunDirVariable)
	}
	node, err := strconv.Atoi(os.Getenv(NodeVariable))
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", NodeVariable, err)
	}
	// Launcher command sets no RANK: a node has one process.
	s.status = agent.RankStatus{Node: node, Rank: variable("RANK", variable("NODE_RANK", node)), LocalRank: variable("LOCAL_RANK", 0),
		Exit: agent.Exit{Code: -1}}
	return s, nil
}

// debugged reports whether the rank waits for a debugger.
func (s *shim) debugged() bool { return variable(DebugVariable, -1) == s.status.Rank }

// complete adds to the command of a rank what its launcher and its debugger want.
func (s *shim) complete(command []string) []string {
	if at := variable(LocalRankAtVariable, 0); at > 0 && at <= len(command) {
		command = slices.Insert(slices.Clone(command), at, fmt.Sprintf("--local_rank=%d", s.status.LocalRank))
	}
	if at := variable(DebugAtVariable, 0); s.debugged() && at > 0 && at <= len(command) {
		// debugpy accepts every connection: on loopback those are of users who may forward ports. The first switch prevents its
		// warning about frozen modules.
		command = slices.Insert(slices.Clone(command), at, "-Xfrozen_modules=off", "-m", "debugpy", "--listen",
			net.JoinHostPort("127.0.0.1", strconv.Itoa(agent.DebugPort)), "--wait-for-client")
	}
	scope, _ := os.ReadFile(scopeFile)
	return traceable(command, scope)
}

// start starts the rank, which writes both streams to the pipe, and passes signals on to it. The status says when it started, or why not.
func (s *shim) start(command []string, pipe *os.File) (*exec.Cmd, error) {
	defer pipe.Close()
	// A larger pipe makes fewer, larger writes; it is optional.
	_, _ = unix.FcntlInt(pipe.Fd(), unix.F_SETPIPE_SZ, 1<<20)
	s.killed = facts.ReadMemory(s.sys).Killed
	// A rank must not outlive its shim, and the kernel ties that to this thread.
	runtime.LockOSThread()
	if err := bindCPUs(os.Getenv(CPUsVariable)); err != nil {
		fmt.Fprintf(os.Stderr, "mlenv-agent rank: rank %d is not bound to processors: %v\n", s.status.Rank, err)
	}
	process := exec.Command(command[0], command[1:]...)
	process.Stdout, process.Stderr = pipe, pipe
	process.Env = append(os.Environ(), pylib.ErrorsVariable+"="+s.dir.Errors(s.status.Rank))
	if os.Getenv(pylib.AutoVariable) != "" {
		process.Env = append(process.Env, pylib.AutoVariable+"="+strconv.Itoa(os.Getpid()))
	}
	process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	// Before the process starts, because an agent that sees it may send signals to its shim.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	s.status.Started = time.Now().UTC()
	if err := process.Start(); err != nil {
		s.status.Ended = time.Now().UTC()
		s.status.Exit.Error = err.Error()
		return nil, err
	}
	s.status.PID = process.Process.Pid
	go func() {
		for signal := range signals {
			s.stopped.Store(true)
			_ = process.Process.Signal(signal)
		}
	}()
	return process, nil
}

// wait follows the rank's output until it ends, and completes the status.
func (s *shim) wait(process *exec.Cmd, output io.Reader) (err error) {
	listening, stopListening := context.WithCancel(context.Background())
	var debugger sync.WaitGroup
	if s.debugged() {
		waiting := s.status
		debugger.Go(func() {
			if waitListening(listening, agent.DebugPort) {
				waiting.DebugPort = agent.DebugPort
				_ = record.WriteJSON(s.dir.RankStatus(waiting.Rank), waiting) // the step reports less then
			}
		})
	}
	copied := make(chan error, 1)
	go func() { copied <- s.output.copyUntilClosed(output) }()
	waited := process.Wait()
	s.status.Exit, s.status.Ended = ExitOf(waited, process.ProcessState), time.Now().UTC()
	// SIGTERM comes from the agent, or from what ends the other ranks of the node: the supervisor or a launcher. A signal that comes from
	// now on has not ended the rank.
	s.status.Stopped = s.stopped.Load() || s.status.Exit.Signal == "SIGTERM"
	stopListening()
	debugger.Wait()
	select {
	case err = <-copied:
	case <-time.After(openTime):
	}
	s.explain()
	return err
}

// openTime is how long the output of a rank that has ended may continue: a child of the rank may keep it open. A step waits longer for
// the ranks' own errors.
const openTime = 2 * time.Second

// explain adds to the status whether the kernel ended the rank for want of memory, and its last words.
func (s *shim) explain() {
	exit := &s.status.Exit
	// A shell reports the end of its child by 137, Python's sys.exit(-9), as in DeepSpeed's launcher, by 247.
	const killedByShell, killedByPython = 128 + int(syscall.SIGKILL), 256 - int(syscall.SIGKILL)
	killed := exit.Signal == "SIGKILL" || exit.Code == killedByShell || exit.Code == killedByPython
	if memory := facts.ReadMemory(s.sys); killed && memory.Killed > s.killed {
		exit.OutOfMemory, exit.MemoryLimit = true, memory.Limit
	}
	s.status.Tail, s.status.Python = s.output.lastWords(s.dir.RankLog(s.status.Rank))
	// A rank that was stopped has not failed, so a log that others may have written since explains nothing.
	if s.status.Tail == nil && *exit != (agent.Exit{}) && exit.Signal != "SIGTERM" {
		s.status.TailFile = newestLog(".", s.status.Started)
		s.status.Tail, s.status.Python = LastWords(s.status.TailFile, time.Time{})
	}
	s.status.Below = s.below()
	if raised := s.raised(); raised != nil {
		s.status.Python = raised
	} else if p := s.status.Python; p != nil && s.isPython() {
		_, err := os.Stat(s.dir.Errors(s.status.Rank))
		p.Handled = err == nil // the hook was there
	}
	if s.status.Python != nil {
		s.status.Python.InTree = inTree(s.status.Python, ".")
	}
}

func variable(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return otherwise
}

// ExitOf returns how a process ended, whose Wait has returned err.
func ExitOf(err error, state *os.ProcessState) agent.Exit {
	if state == nil {
		return agent.Exit{Code: -1, Error: err.Error()}
	}
	exit := agent.Exit{Code: state.ExitCode()}
	if wait, ok := state.Sys().(syscall.WaitStatus); ok && wait.Signaled() {
		exit.Signal = unix.SignalName(wait.Signal())
	}
	return exit
}

// waitListening waits until a process listens on the port of loopback; it is false if ctx is done first. It does not connect,
// because a debug server takes the first connection for its debugger.
func waitListening(ctx context.Context, port int) bool {
	for ticks := time.Tick(100 * time.Millisecond); ; {
		if table, err := os.ReadFile("/proc/net/tcp"); err == nil && listens(table, port) {
			return true
		}
		select {
		case <-ticks:
		case <-ctx.Done():
			return false
		}
	}
}

// listens reads the kernel's table of sockets: number, local and remote address, state, where 0A is listening. Addresses are in the
// machine's byte order.
func listens(table []byte, port int) bool {
	return regexp.MustCompile(fmt.Sprintf(`: 0100007F:%04X [0-9A-F:]+ 0A `, port)).Match(table)
}
