// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/record"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/treestore"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// jobs are all jobs of this node: those that this agent started, and the record
// of earlier ones.
type jobs struct {
	config Config
	log    *slog.Logger
	trees  *treestore.Store
	// starting is held during the start of a job, which may have to copy a large tree.
	starting sync.Mutex
	// cleaning are the jobs that have not left their working directories.
	cleaning sync.WaitGroup

	// python is what the image's Python is, nil until a job asks; starting guards it.
	python []byte
	// attempts counts the attempts of jobs that this agent started.
	attempts atomic.Int64

	// mu guards live and ending, which is true when no job may start any more.
	mu     sync.Mutex
	live   map[string]*job
	ending bool
}

// openJobs marks jobs that an earlier container left running.
func openJobs(config Config, log *slog.Logger, trees *treestore.Store) *jobs {
	js := &jobs{config: config, log: log, trees: trees, live: map[string]*job{}}
	for _, path := range js.records(strconv.Itoa(config.Node)) {
		status, err := record.Dir(filepath.Dir(path)).ReadNode(config.Node)
		if err == nil && status.State == agent.Running && status.Environment == config.Name {
			status.State, status.Ended = agent.Restarted, time.Now().UTC()
			err = record.WriteJSON(path, status)
		}
		if err != nil {
			log.Warn("Skipping the record of a job.", "path", path, "error", err)
		}
	}
	return js
}

// records returns the paths of the records of nodes whose number matches the pattern, of all attempts of all jobs.
func (js *jobs) records(node string) []string {
	first, _ := filepath.Glob(filepath.Join(js.config.Paths.runsDir(), "*", "node-"+node+".json"))
	later, _ := filepath.Glob(filepath.Join(js.config.Paths.runsDir(), "*", "attempt-*", "node-"+node+".json"))
	return append(first, later...)
}

// start starts a job, or its next attempt, or returns the existing one of that id.
func (js *jobs) start(id string, spec agent.JobSpec) (status agent.JobStatus, made bool, err error) {
	if err := js.check(id, spec); err != nil {
		return status, false, err
	}
	js.starting.Lock()
	defer js.starting.Unlock()
	if status, earlier, err := js.get(id); err == nil {
		if again, err := js.isNext(id, status, spec); !again {
			return status, false, err
		}
		if earlier != nil {
			<-earlier.left // the working directory, which this attempt gets
		}
	}
	folder, err := js.enterWorkDir(id, spec)
	if err != nil {
		return status, false, err
	}
	j, err := js.launch(id, spec, folder)
	if err != nil {
		js.leaveWorkDir(id, folder)
		return status, false, err
	}
	status, _ = j.snapshot()
	return status, true, nil
}

// isNext reports whether a job is an attempt after the recorded one.
func (js *jobs) isNext(id string, status agent.JobStatus, spec agent.JobSpec) (bool, error) {
	switch {
	case !sameJob(status.Spec, spec):
		return false, fail.Becausef(fail.InvalidInput, "starting job %s: a job of that id exists with another script, arguments or nodes", id)
	case spec.Attempt() <= status.Spec.Attempt():
		return false, nil
	case status.State == agent.Running:
		return false, fail.Becausef(fail.EnvironmentBusy, "starting attempt %d of job %s: attempt %d has not ended on node %d", spec.Attempt(),
			id, status.Spec.Attempt(), js.config.Node)
	}
	return true, nil
}

// launch starts the processes of a job in its folder.
func (js *jobs) launch(id string, spec agent.JobSpec, folder jobFolder) (*job, error) {
	recordDir := filepath.Join(js.config.Paths.runsDir(), id, agent.AttemptFolder(spec.Attempt()))
	l, err := js.config.planLaunch(id, spec, folder, recordDir)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(recordDir, 0o775); err != nil {
		return nil, err
	}
	// The record never holds secrets.
	spec.SecretEnv = nil
	status := agent.JobStatus{
		ID: id, Node: js.config.Node, Environment: js.config.Name, State: agent.Running, Spec: spec, Record: recordDir, Work: folder.workDir(),
		Started: time.Now().UTC(), Launcher: agent.Exit{Code: -1},
	}
	for _, path := range js.config.removeLocks() {
		js.log.Info("Removed the lock of an extension of torch that no process compiles.", "path", path)
	}
	js.mu.Lock()
	defer js.mu.Unlock()
	if js.ending {
		return nil, fail.Becausef(fail.AgentUnreachable, "starting job %s: the container of node %d is ending", id, js.config.Node)
	}
	j, err := startJob(js.log, status, l, js.config)
	if err != nil {
		return nil, err
	}
	js.live[id] = j
	js.attempts.Add(1)
	js.cleaning.Go(func() {
		js.occupy(j, id, folder)
		close(j.left)
	})
	return j, nil
}

func (js *jobs) check(id string, spec agent.JobSpec) error {
	problems := []error{spec.Validate()}
	require := func(valid bool, format string, args ...any) {
		if !valid {
			problems = append(problems, fmt.Errorf(format, args...))
		}
	}
	require(agent.IsJobID(id), "id %q: want letters, digits, dots and hyphens", id)
	require(spec.Script != "", "script: is empty")
	require(spec.Nodes <= js.config.Nodes, "nodes: %d: the environment has %d", spec.Nodes, js.config.Nodes)
	require(js.config.Node < spec.Nodes || spec.Nodes < 1, "nodes: %d: node %d is not one of them", spec.Nodes, js.config.Node)
	err := spec.Launcher.Check()
	require(err == nil, "launcher: %w", err)
	require(spec.Launcher != agent.AutoLauncher, "launcher auto: want the one that it became")
	if spec.DebugRank != nil {
		rank, last := *spec.DebugRank, spec.Nodes*spec.RanksPerNode-1
		require(spec.Launcher != agent.Command, "debugRank: %d: launcher command starts programs and no ranks; want deepspeed or torchrun", rank)
		require(rank >= 0 && rank <= last, "debugRank: %d: the job has ranks 0 to %d", rank, last)
		require(agent.IsPython(spec.Script), "debugRank: %d: script %q does not end in .py, and is not a module", rank, spec.Script)
	}
	if err := errors.Join(problems...); err != nil {
		return fail.Because(fail.InvalidInput, fmt.Errorf("starting a job: %w", err))
	}
	return nil
}

// sameJob ignores what differs when a step attaches again.
func sameJob(a, b agent.JobSpec) bool {
	return a.Launcher == b.Launcher && a.Script == b.Script && slices.Equal(a.Args, b.Args) && a.Tree == b.Tree &&
		a.Nodes == b.Nodes && a.RanksPerNode == b.RanksPerNode
}

// find returns the status of a live job, or the recorded one.
func (js *jobs) find(id string) (agent.JobStatus, error) {
	if j, ok := js.live[id]; ok {
		status, _ := j.snapshot()
		return status, nil
	}
	if !agent.IsJobID(id) {
		return agent.JobStatus{}, fs.ErrNotExist
	}
	dir := record.Newest(filepath.Join(js.config.Paths.runsDir(), id), js.config.Node)
	status, err := dir.ReadNode(js.config.Node)
	if record.Foreign(err) {
		js.log.Warn("Skipping the record of a job.", "job", id, "error", err)
		err = fs.ErrNotExist
	}
	if err != nil {
		return status, err
	}
	if status.State == agent.Running {
		// The container that ran it is gone, and openJobs could not write that.
		status.State, status.Ended = agent.Restarted, time.Now().UTC()
	}
	status.Ranks = nil
	for local, rank := range status.Spec.Ranks(js.config.Node) {
		r, err := dir.ReadRank(rank)
		if err == nil {
			r.Confine(rank, local, js.config.Node)
			status.Ranks = append(status.Ranks, r)
		} else if !errors.Is(err, fs.ErrNotExist) {
			js.log.Warn("Skipping the status of a rank.", "rank", rank, "error", err)
		}
	}
	endRanks(&status, dir)
	return status, nil
}

// get is find for callers that do not hold the lock. The job is nil unless it is live.
func (js *jobs) get(id string) (agent.JobStatus, *job, error) {
	js.mu.Lock()
	defer js.mu.Unlock()
	status, err := js.find(id)
	return status, js.live[id], err
}

// running lists the live jobs. A job whose end a watcher may have seen is not among them, even if its record is still being
// written.
func (js *jobs) running() (ids []string) {
	js.mu.Lock()
	defer js.mu.Unlock()
	for id, j := range js.live {
		if status, _ := j.snapshot(); status.State == agent.Running {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// newest returns the running job that started last, nil for none.
func (js *jobs) newest() (newest *job) {
	js.mu.Lock()
	defer js.mu.Unlock()
	var started time.Time
	for _, j := range js.live {
		if status, _ := j.snapshot(); status.State == agent.Running && status.Started.After(started) {
			newest, started = j, status.Started
		}
	}
	return newest
}

// stopAll stops every job, for the end of the container. A job that is being stopped keeps its time, unless the container ends before.
func (js *jobs) stopAll(reason string, grace time.Duration) {
	js.mu.Lock()
	defer js.mu.Unlock()
	js.ending = true
	for _, j := range js.live {
		j.stop(agent.Stop{Cause: agent.StopContainer, Reason: reason, Grace: grace, Hasten: true})
	}
}

// waitAll waits until every job has ended; no other starts after stopAll.
func (js *jobs) waitAll() {
	js.mu.Lock()
	live := slices.Collect(maps.Values(js.live))
	js.mu.Unlock()
	for _, j := range live {
		<-j.alive.Done()
	}
}

// pinned reports whether a job runs in the tree, on any node, or another environment has switched to it: nodes that share
// the workspace read each other's records and links. Without a record nothing is pinned, unless the claim cannot be read.
func (js *jobs) pinned(hash tree.Digest) bool {
	others, _ := filepath.Glob(filepath.Join(js.config.Paths.stateDir(), "environments", "*", "repo"))
	for _, link := range append(others, filepath.Join(js.config.Paths.Workspace, "repo")) {
		if target, err := os.Readlink(link); err == nil && filepath.Base(target) == string(hash) {
			return true
		}
	}
	return js.mayRun(func(spec agent.JobSpec) bool { return spec.Tree == hash })
}

// mayRun reports whether such a job runs on any node of any environment that shares the claim, as far as the records show: one that cannot
// be read may be of such a job.
func (js *jobs) mayRun(such func(agent.JobSpec) bool) bool {
	for _, path := range js.records("*") {
		var node int
		if _, err := fmt.Sscanf(filepath.Base(path), "node-%d.json", &node); err != nil {
			continue
		}
		status, err := record.Dir(filepath.Dir(path)).ReadNode(node)
		switch {
		case record.Foreign(err):
			js.log.Warn("Skipping the record of a job.", "path", path, "error", err)
		case errors.Is(err, fs.ErrNotExist):
		case err != nil, status.State == agent.Running && such(status.Spec):
			return true
		}
	}
	return false
}
