// Package rank is the shim that every launcher runs in a training process's
// place. It starts the process, owns its output, and writes down when and how it
// ended, so that no launcher, connection or agent has to be believed.
package rank

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/signal"
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
	"github.com/ml-dev-env/ml-dev-env/internal/agent/record"
)

// The variables by which the agent speaks to the shim, beside RANK and
// LOCAL_RANK, which the launcher sets.
const (
	// JobVariable marks all processes of a job.
	JobVariable = "MLENV_JOB_ID"
	// NodeVariable is the node's ordinal.
	NodeVariable = "MLENV_NODE"
	// LocalRankVariable asks for --local_rank=N, as DeepSpeed's launcher adds it, and says in front of which argument.
	LocalRankVariable = "MLENV_PASS_LOCAL_RANK"
	// DebugVariable is the rank that waits for a debugger, and DebugAtVariable in front
	// of which argument its script is.
	DebugVariable   = "MLENV_DEBUG_RANK"
	DebugAtVariable = "MLENV_DEBUG_AT"
	// RunDirVariable is the record's folder.
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
	dir := record.Dir(os.Getenv(RunDirVariable))
	if dir == "" {
		return 2, fmt.Errorf("%s is not set: the agent sets it", RunDirVariable)
	}
	node, err := strconv.Atoi(os.Getenv(NodeVariable))
	if err != nil {
		return 2, fmt.Errorf("reading %s: %w", NodeVariable, err)
	}
	// Of launcher command there is no RANK: the one process of a node stands for it.
	status := agent.RankStatus{Node: node, Rank: variable("RANK", variable("NODE_RANK", node)), LocalRank: variable("LOCAL_RANK", 0), Exit: agent.Exit{Code: -1}}
	if at := variable(LocalRankVariable, 0); at > 0 && at <= len(command) {
		command = slices.Insert(slices.Clone(command), at, fmt.Sprintf("--local_rank=%d", status.LocalRank))
	}
	debugged := variable(DebugVariable, -1) == status.Rank
	if at := variable(DebugAtVariable, 0); debugged && at > 0 && at <= len(command) {
		// debugpy lets everybody in who can connect: on loopback, that is who may forward
		// ports. It warns of modules without their source in Python, which the first switch prevents.
		command = slices.Insert(slices.Clone(command), at, "-Xfrozen_modules=off", "-m", "debugpy", "--listen", net.JoinHostPort("127.0.0.1", strconv.Itoa(agent.DebugPort)), "--wait-for-client")
	}
	log, err := os.OpenFile(dir.RankLog(status.Rank), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o664)
	if err != nil {
		return 1, err
	}
	defer log.Close()
	killed := facts.ReadMemory(sys).Killed

	reader, writer, err := os.Pipe()
	if err != nil {
		return 1, err
	}
	// A larger pipe makes fewer, larger writes; where that is refused it works too.
	_, _ = unix.FcntlInt(reader.Fd(), unix.F_SETPIPE_SZ, 1<<20)
	// A rank must not outlive its shim, and the kernel ties that to this thread.
	runtime.LockOSThread()
	process := exec.Command(command[0], command[1:]...)
	process.Stdout, process.Stderr = writer, writer
	process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	status.Started = time.Now().UTC()
	if err := process.Start(); err != nil {
		status.Ended = time.Now().UTC()
		status.Exit.Error = err.Error()
		fmt.Fprintf(log, "%v\n", err)
		return 127, errors.Join(err, record.WriteJSON(dir.RankStatus(status.Rank), status))
	}
	writer.Close()
	status.PID = process.Process.Pid
	if err := record.WriteJSON(dir.RankStatus(status.Rank), status); err != nil {
		return 1, errors.Join(err, process.Process.Kill())
	}
	var told atomic.Bool
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	go func() {
		for s := range signals {
			told.Store(true)
			_ = process.Process.Signal(s)
		}
	}()

	listening, stopListening := context.WithCancel(context.Background())
	var debugger sync.WaitGroup
	if debugged {
		waiting := status
		debugger.Go(func() {
			if waitListening(listening, agent.DebugPort) {
				waiting.DebugPort = agent.DebugPort
				_ = record.WriteJSON(dir.RankStatus(waiting.Rank), waiting) // the step says less then
			}
		})
	}
	output := &output{log: log}
	copied := make(chan error, 1)
	go func() { copied <- output.copy(reader) }()
	waited := process.Wait()
	ended := time.Now().UTC()
	stopListening()
	debugger.Wait()
	// A child of the rank may hold the pipe open for ever.
	select {
	case err = <-copied:
	case <-time.After(2 * time.Second):
		err = nil
	}
	status.Exit, status.Ended = exitOf(waited, process.ProcessState), ended
	// SIGTERM comes from us or from the launcher that ends the others of its node.
	status.Stopped = told.Load() || status.Exit.Signal == "SIGTERM"
	status.Exit.OutOfMemory = status.Exit.Signal == "SIGKILL" && facts.ReadMemory(sys).Killed > killed
	status.Tail, status.Python = LastWords(dir.RankLog(status.Rank), output.tracebackSeen())
	err = errors.Join(err, record.WriteJSON(dir.RankStatus(status.Rank), status))
	if number := unix.SignalNum(status.Exit.Signal); number != 0 {
		return 128 + int(number), err
	}
	return status.Exit.Code, err
}

func variable(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return otherwise
}

func exitOf(err error, state *os.ProcessState) agent.Exit {
	if state == nil {
		return agent.Exit{Code: -1, Error: err.Error()}
	}
	exit := agent.Exit{Code: state.ExitCode()}
	if wait, ok := state.Sys().(syscall.WaitStatus); ok && wait.Signaled() {
		exit.Signal = unix.SignalName(wait.Signal())
	}
	return exit
}
