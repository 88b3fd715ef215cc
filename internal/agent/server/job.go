package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/rank"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/record"
)

const defaultGrace = 10 * time.Second

// job is this node's part of a job that was started since the agent was.
type job struct {
	dir   record.Dir
	ranks []int
	log   *slog.Logger
	// changed wakes whoever follows the status, grown whoever follows a log.
	changed, grown broadcast
	nccl           *ncclLogs
	// over is closed when no process is left and the status is written.
	over chan struct{}

	mu       sync.Mutex
	status   agent.JobStatus
	stopping bool
}

// startJob starts the launcher and returns at once.
func startJob(log *slog.Logger, status agent.JobStatus, l launch) (*job, error) {
	j := &job{dir: record.Dir(status.Record), ranks: l.ranks, log: log, over: make(chan struct{}), status: status}
	j.nccl = newNCCLLogs(j.dir, status.Node)
	// The record is watched before anything can write into it.
	watcher, err := fsnotify.NewBufferedWatcher(64)
	if err != nil {
		return nil, fmt.Errorf("watching the record of the job: %w", err)
	}
	output, err := os.OpenFile(j.dir.LauncherLog(status.Node), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o664)
	if err == nil {
		defer output.Close()
		err = errors.Join(watcher.Add(string(j.dir)), record.WriteJSON(j.dir.NodeStatus(status.Node), status))
	}
	if err != nil {
		return nil, errors.Join(err, watcher.Close())
	}
	launcher := exec.Command(l.args[0], l.args[1:]...)
	launcher.Dir, launcher.Env = l.dir, list(l.env)
	launcher.Stdout, launcher.Stderr = output, output
	launcher.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := launcher.Start(); err != nil {
		j.finish(agent.Exit{Code: -1, Error: err.Error()})
		return j, watcher.Close()
	}
	go j.watch(watcher)
	go j.wait(launcher)
	return j, nil
}

// watch reads the ranks' status when their shims write it, and wakes followers.
func (j *job) watch(watcher *fsnotify.Watcher) {
	defer watcher.Close()
	// NCCL writes thousands of lines at once.
	var ncclSettled <-chan time.Time
	for {
		select {
		case event := <-watcher.Events:
			if j.nccl.has(event.Name) {
				if err := j.nccl.read(event.Name); err != nil {
					j.log.Warn(err.Error())
				}
				if ncclSettled == nil {
					ncclSettled = time.After(ncclPause)
				}
				continue
			}
			if i := slices.IndexFunc(j.ranks, func(r int) bool { return j.dir.RankStatus(r) == event.Name }); i >= 0 && !event.Has(fsnotify.Remove) {
				j.readRank(j.ranks[i])
				// What a rank's NCCL wrote before it ended is known with its end.
				j.tellNCCL()
				j.changed.fire()
			}
			j.grown.fire()
		case <-ncclSettled:
			ncclSettled = nil
			if j.tellNCCL() {
				j.changed.fire()
			}
		case err := <-watcher.Errors:
			// Too many events at once: what they were about is read again.
			j.log.Debug("Reading the whole record again.", "error", err)
			for _, rank := range j.ranks {
				j.readRank(rank)
			}
			j.changed.fire()
			j.grown.fire()
		case <-j.over:
			return
		}
	}
}

// ncclPause is how long NCCL's lines are gathered before somebody is told of them.
const ncclPause = 500 * time.Millisecond

// tellNCCL puts what NCCL's logs show into the status. It is true where that says
// anything new.
func (j *job) tellNCCL() bool {
	summary := j.nccl.summary()
	if summary == nil {
		return false
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	old := j.status.NCCL
	j.status.NCCL = summary
	return old == nil || old.String() != summary.String() || len(old.Findings) != len(summary.Findings)
}

func (j *job) readRank(rank int) {
	status, err := j.dir.ReadRank(rank)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			j.log.Warn(err.Error())
		}
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	i, found := slices.BinarySearchFunc(j.status.Ranks, rank, func(r agent.RankStatus, rank int) int { return r.Rank - rank })
	if !found {
		j.status.Ranks = slices.Insert(slices.Clone(j.status.Ranks), i, status)
		return
	}
	ranks := slices.Clone(j.status.Ranks)
	ranks[i] = status
	j.status.Ranks = ranks
}

// wait ends the job when its launcher has ended: whatever is left of it is killed.
func (j *job) wait(launcher *exec.Cmd) {
	deadline := j.status.Spec.Deadline
	if !deadline.IsZero() {
		timer := time.AfterFunc(time.Until(deadline), func() { j.stop(agent.Stop{Cause: agent.StopDeadline, Reason: "deadline"}) })
		defer timer.Stop()
	}
	err := launcher.Wait()
	exit := agent.Exit{Code: -1}
	if launcher.ProcessState != nil {
		exit = launcherExit(launcher.ProcessState)
	} else {
		exit.Error = err.Error()
	}
	part{j.status.ID, j.status.Node}.kill(context.Background())
	for _, rank := range j.ranks {
		j.readRank(rank)
	}
	if err := j.nccl.end(); err != nil {
		j.log.Warn(err.Error())
	}
	j.tellNCCL()
	j.finish(exit)
}

// finish writes the end down and tells everybody.
func (j *job) finish(exit agent.Exit) {
	j.mu.Lock()
	j.status.Ended = time.Now().UTC()
	j.status.Launcher = exit
	j.status.State = agent.Exited
	if j.stopping {
		j.status.State = agent.Stopped
	}
	endRanks(&j.status, j.dir)
	status := j.status
	j.mu.Unlock()
	status.Ranks = nil
	if err := record.WriteJSON(j.dir.NodeStatus(status.Node), status); err != nil {
		j.log.Error(fmt.Sprintf("The end of job %s is not in its record: %v", status.ID, err))
	}
	close(j.over)
	j.changed.fire()
	j.grown.fire()
}

// quiet is for how long no log of the node's ranks has grown, nor the metrics.
func (j *job) quiet(now time.Time) time.Duration {
	last := j.status.Started // never changes
	files := []string{j.dir.LauncherLog(j.status.Node), j.dir.Metrics()}
	for _, rank := range j.ranks {
		files = append(files, j.dir.RankLog(rank))
	}
	for _, file := range files {
		if info, err := os.Stat(file); err == nil && info.ModTime().After(last) {
			last = info.ModTime()
		}
	}
	// The clock of shared storage may be ahead.
	return max(now.Sub(last), 0)
}

// endRanks marks ranks whose shim could not write their end as killed: such as
// one that is slow to end, when its launcher is gone. Its log tells whether it
// failed before, which may be why the others did.
func endRanks(status *agent.JobStatus, dir record.Dir) {
	ranks := slices.Clone(status.Ranks)
	for i := range ranks {
		if ranks[i].Ended.IsZero() {
			ranks[i].Ended = status.Ended
			ranks[i].Exit = agent.Exit{Code: -1, Signal: "SIGKILL"}
			ranks[i].Stopped = status.State != agent.Exited
			ranks[i].Tail, ranks[i].Python = rank.LastWords(dir.RankLog(ranks[i].Rank), time.Time{})
		}
	}
	status.Ranks = ranks
}

// stop sends SIGTERM, and SIGKILL after the grace. Only the first call counts.
func (j *job) stop(stop agent.Stop) {
	j.mu.Lock()
	first := !j.stopping && j.status.Ended.IsZero()
	if first {
		j.stopping = true
		j.status.StopCause, j.status.StopReason = stop.Cause, stop.Reason
	}
	grace, processes := j.status.Spec.Grace, part{j.status.ID, j.status.Node}
	j.mu.Unlock()
	if !first {
		return
	}
	if stop.Grace > 0 {
		grace = stop.Grace
	}
	if grace == 0 {
		grace = defaultGrace
	}
	processes.signal(syscall.SIGTERM)
	go func() {
		select {
		case <-j.over:
		case <-time.After(grace):
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			go func() { <-j.over; cancel() }()
			processes.kill(ctx)
		}
	}()
}

// snapshot is the status now, and a channel that is closed at the next change.
func (j *job) snapshot() (agent.JobStatus, <-chan struct{}) {
	next := j.changed.next()
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.status, next
}

func (j *job) isOver() bool {
	select {
	case <-j.over:
		return true
	default:
		return false
	}
}

func launcherExit(state *os.ProcessState) agent.Exit {
	exit := agent.Exit{Code: state.ExitCode()}
	if wait, ok := state.Sys().(syscall.WaitStatus); ok && wait.Signaled() {
		exit.Signal = wait.Signal().String()
	}
	return exit
}

// broadcast wakes all who wait, at every fire.
type broadcast struct {
	mu sync.Mutex
	ch chan struct{}
}

func (b *broadcast) next() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ch == nil {
		b.ch = make(chan struct{})
	}
	return b.ch
}

func (b *broadcast) fire() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ch != nil {
		close(b.ch)
		b.ch = nil
	}
}
