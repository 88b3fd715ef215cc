// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/facts"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/rank"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/record"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/treestore"
	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
)

// job is this node's part of a job that this agent started.
type job struct {
	dir   record.Dir
	ranks []int
	log   *slog.Logger
	// changed wakes followers of the status, grown wakes followers of a log.
	changed, grown broadcast
	nccl           *ncclLogs
	processes      *processes
	output         growth
	peers          *peers
	// arrived are the ranks that were seen at the job's rendezvous.
	arrived sync.Map
	// unread has the ranks whose stacks py-spy could not read, aborted the ones among them that were made to print them at their end.
	unread, aborted sync.Map
	// own are the programs that the agent itself runs for the job; extensions is where torch compiles its extensions; flightDump and
	// flightPipe are the beginnings of the names of the ranks' dumps and pipes.
	own                                ownPrograms
	extensions, flightDump, flightPipe string
	// scratch is a folder of the container for temporary files of the job, "" for none.
	scratch string
	// local is Config.Local.
	local bool
	// notice has the room of the file that tells the ranks that they are stopped, nil if there was none. grace is the node's.
	notice *claimfile.Reservation
	grace  time.Duration
	// alive ends, by end, when no process is left and the status is written.
	alive context.Context //nolint:containedctx // it is the job's own
	end   context.CancelFunc
	// recordEnd writes the node's last status, for which the room is taken.
	recordEnd func(agent.JobStatus) error
	// left is closed when the job uses its working directory no more.
	left chan struct{}

	mu     sync.Mutex
	status agent.JobStatus
	// killNow ends the grace of a job that is being stopped.
	killNow context.CancelFunc
}

func startJob(log *slog.Logger, status agent.JobStatus, l launch, config Config) (*job, error) {
	within := ""
	if config.Local { // no container ends with it
		within = config.Paths.Home
	}
	scratch, err := claimfile.MkdirTemp(within, "mlenv-job-*")
	if err == nil { // torch ends a rank that cannot make its pipe
		recordFlight(l.env, scratch)
	}
	notice := reserveNotice(scratch)
	if notice != nil {
		l.env[agent.StopFileVariable] = filepath.Join(scratch, stopName)
	}
	dir := record.Dir(status.Record)
	j := &job{
		dir: dir, ranks: status.Spec.Ranks(status.Node), log: log,
		// The ranks have the agent's limits and capabilities.
		nccl:      newNCCLLogs(dir, status.Node, rdma.ReadMemlock(os.DirFS("/"))), //nolint:forbidigo // it reads /proc, which is the kernel's
		processes: &processes{record: status.Record, node: status.Node},
		own:       config.ownPrograms(), extensions: l.env[extensionsVariable], flightDump: cmp.Or(l.env[newFlightDump], l.env[flightDump]),
		flightPipe: l.env[flightPipe],
		scratch:    scratch, notice: notice, grace: config.stopGrace(), status: status, local: config.Local,
		peers: &peers{spec: status.Spec, node: status.Node, host: config.Host}, left: make(chan struct{}),
	}
	j.alive, j.end = context.WithCancel(context.Background())
	// The record is watched before anything can write into it.
	watcher, err := fsnotify.NewBufferedWatcher(64)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("watching the record of the job: %w", err), j.leaveNothing())
	}
	output, err := claimfile.Append(j.dir.LauncherLog(status.Node))
	if err == nil {
		defer output.Close()
		if err = watcher.Add(string(j.dir)); err == nil {
			j.recordEnd, err = j.dir.BeginNode(status)
		}
	}
	if err != nil {
		return nil, errors.Join(err, watcher.Close(), j.leaveNothing())
	}
	supervisor := exec.Command(l.args[0], l.args[1:]...)
	supervisor.Dir, supervisor.Env = l.dir, agent.Environ(l.env)
	supervisor.Stdout, supervisor.Stderr = output, output
	supervisor.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	reader, writer, err := os.Pipe()
	if err == nil {
		supervisor.ExtraFiles = []*os.File{writer}
		err = errors.Join(supervisor.Start(), writer.Close())
	}
	if err != nil {
		j.finish(agent.Exit{Code: -1, Error: err.Error()})
		return j, watcher.Close()
	}
	j.processes.supervisor.Store(int64(supervisor.Process.Pid))
	go j.peers.watch(j.alive, func() []agent.RankStatus {
		status, _ := j.snapshot()
		return status.Ranks
	})
	go j.watch(watcher)
	go j.wait(supervisor, reader)
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
				// The end of a rank comes with all that its NCCL wrote before.
				j.updateNCCL()
				j.changed.fire()
			}
			j.grown.fire()
		case <-ncclSettled:
			ncclSettled = nil
			if j.updateNCCL() {
				j.changed.fire()
			}
		case err := <-watcher.Errors:
			// Too many events at once.
			j.log.Debug("Reading the whole record again.", "error", err)
			for _, number := range j.ranks {
				j.readRank(number)
			}
			j.changed.fire()
			j.grown.fire()
		case <-j.alive.Done():
			return
		}
	}
}

// ncclPause is how long the job gathers NCCL's lines before it reports a change.
const ncclPause = 500 * time.Millisecond

// updateNCCL puts the summary of NCCL's logs into the status, and reports whether it changed.
func (j *job) updateNCCL() bool {
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

// readRank reads the status of the rank with that number from the record.
func (j *job) readRank(number int) {
	status, err := j.dir.ReadRank(number)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			j.log.Warn("Skipping the status of a rank.", "rank", number, "error", err)
		}
		return
	}
	status.Confine(number, slices.Index(j.ranks, number), j.status.Node)
	if _, aborted := j.aborted.Load(number); aborted && !status.Ended.IsZero() {
		status.Stopped = true
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	ranks := slices.Clone(j.status.Ranks)
	i, found := slices.BinarySearchFunc(ranks, number, func(r agent.RankStatus, number int) int { return r.Rank - number })
	if !found {
		ranks = slices.Insert(ranks, i, agent.RankStatus{})
	}
	ranks[i] = status
	j.status.Ranks = ranks
}

// wait ends the job when its supervisor has ended, which leaves no process, unless it was killed itself.
func (j *job) wait(supervisor *exec.Cmd, result *os.File) {
	defer result.Close()
	deadline := j.status.Spec.Deadline
	if !deadline.IsZero() {
		stop := agent.Stop{Cause: agent.StopDeadline, Reason: "deadline"}
		timer := time.AfterFunc(time.Until(deadline), func() { j.stop(stop) })
		defer timer.Stop()
	}
	err := supervisor.Wait()
	j.processes.supervisor.Store(0)
	j.processes.kill(context.Background())
	exit, reported := readExit(result)
	if !reported {
		exit = rank.ExitOf(err, supervisor.ProcessState)
	}
	for _, number := range j.ranks {
		j.readRank(number)
	}
	j.lastDumps()
	if err := j.nccl.end(); err != nil {
		j.log.Warn(err.Error())
	}
	j.updateNCCL()
	j.processes.close()
	const room = 1 << 20 // bytes
	space := facts.VolumeSpace(string(j.dir))
	var found []agent.Outside
	work := j.status.Work
	if work != "" {
		found = outside(work, j.local, j.status.Started)
		const patience = 5 * time.Second // for a large tree on a slow volume; a guess
		if !treestore.HasOwn(work, time.Now().Add(patience)) {
			work = ""
		}
	}
	j.mu.Lock()
	j.status.Work, j.status.Outside, j.status.Full = work, found, space.Problem == "" && space.Free < room
	j.mu.Unlock()
	j.finish(exit)
}

// readExit reads how the launcher ended, which a supervisor that was killed did not write. A process that escaped from the job may
// still have the pipe open.
func readExit(result *os.File) (exit agent.Exit, reported bool) {
	const most = 64 << 10
	err := result.SetReadDeadline(time.Now().Add(time.Second))
	if err == nil {
		err = json.NewDecoder(io.LimitReader(result, most)).Decode(&exit)
	}
	return exit, err == nil
}

func (j *job) finish(exit agent.Exit) {
	alone := j.peers.neverMet()
	j.mu.Lock()
	j.status.Alone = alone
	j.status.Ended = time.Now().UTC()
	j.status.Launcher = exit
	j.status.State = agent.Exited
	if !j.status.Stopping.IsZero() {
		j.status.State = agent.Stopped
	}
	endRanks(&j.status, j.dir)
	status := j.status
	j.mu.Unlock()
	status.Ranks = nil
	if err := j.recordEnd(status); err != nil {
		j.log.Error("Recording the end of a job failed.", "job", status.ID, "error", err)
	}
	if err := j.leaveNothing(); err != nil {
		j.log.Warn("Removing the scratch files of a job failed.", "job", status.ID, "error", err)
	}
	j.end()
	j.changed.fire()
	j.grown.fire()
}

// leaveNothing removes the scratch files of a job that is over or has not begun.
func (j *job) leaveNothing() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	var err error
	if j.notice != nil {
		err = j.notice.Leave()
	}
	j.notice = nil
	if j.scratch != "" { // there was room for it
		err = errors.Join(err, claimfile.RemoveFolder(j.scratch))
	}
	return err
}

// endRanks marks ranks whose shim could not write their end as killed: such as
// one that is slow to end, when its launcher is gone. Its log shows whether it
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

// snapshot returns the status now, and a channel that is closed at the next change.
func (j *job) snapshot() (agent.JobStatus, <-chan struct{}) {
	next := j.changed.next()
	j.mu.Lock()
	defer j.mu.Unlock()
	status := j.status
	status.Ranks = j.withArrivals(status.Ranks)
	return status, next
}

func (j *job) isOver() bool { return j.alive.Err() != nil }
