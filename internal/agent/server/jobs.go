package server

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/record"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/treestore"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// jobID must be a name that can be a folder's.
var jobID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// jobs are all jobs of this node: those that this agent started, and the record
// of earlier ones.
type jobs struct {
	config Config
	log    *slog.Logger
	trees  *treestore.Store

	mu   sync.Mutex
	live map[string]*job
}

// openJobs marks jobs that an earlier container left running.
func openJobs(config Config, log *slog.Logger, trees *treestore.Store) (*jobs, error) {
	js := &jobs{config: config, log: log, trees: trees, live: map[string]*job{}}
	records, err := filepath.Glob(filepath.Join(config.Paths.runs(), "*", fmt.Sprintf("node-%d.json", config.Node)))
	if err != nil {
		return nil, err
	}
	for _, path := range records {
		dir := record.Dir(filepath.Dir(path))
		status, err := dir.ReadNode(config.Node)
		if err != nil {
			log.Warn(fmt.Sprintf("The record of a job cannot be read: %v", err))
			continue
		}
		if status.State != agent.Running {
			continue
		}
		status.State, status.Ended = agent.Restarted, time.Now().UTC()
		if err := record.WriteJSON(path, status); err != nil {
			return nil, fmt.Errorf("writing the end of job %s, which ran when the container ended: %w", status.ID, err)
		}
	}
	return js, nil
}

// start starts a job, or answers with the one of that id that is there.
func (js *jobs) start(id string, spec agent.JobSpec) (status agent.JobStatus, made bool, err error) {
	if err := js.check(id, spec); err != nil {
		return status, false, err
	}
	js.mu.Lock()
	defer js.mu.Unlock()
	if status, err := js.find(id); err == nil {
		if !sameJob(status.Spec, spec) {
			return status, false, fail.Becausef(fail.InvalidInput, "starting job %s: there is a job of that id with another script, arguments or nodes already", id)
		}
		return status, false, nil
	}
	dir, venv := js.config.Paths.Workspace, ""
	if spec.Tree != "" {
		dir, err = js.trees.Path(spec.Tree)
		if err != nil {
			return status, false, fail.Advise(fail.Becausef(fail.SyncFailed, "starting job %s: tree %s on node %d: %w", id, spec.Tree, js.config.Node, err), "sync the repository again")
		}
		venv = js.trees.Venv(spec.Tree)
	}
	recordDir := filepath.Join(js.config.Paths.runs(), id)
	l, err := js.config.plan(id, spec, dir, venv, recordDir)
	if err != nil {
		return status, false, err
	}
	if err := os.MkdirAll(recordDir, 0o2775); err != nil {
		return status, false, err
	}
	// Secrets are for the processes alone.
	spec.SecretEnv = nil
	status = agent.JobStatus{ID: id, Node: js.config.Node, State: agent.Running, Spec: spec, Record: recordDir, Started: time.Now().UTC(), Launcher: agent.Exit{Code: -1}}
	j, err := startJob(js.log, status, l)
	if err != nil {
		return status, false, err
	}
	js.live[id] = j
	status, _ = j.snapshot()
	return status, true, nil
}

func (js *jobs) check(id string, spec agent.JobSpec) error {
	var problems []error
	if !jobID.MatchString(id) {
		problems = append(problems, fmt.Errorf("id %q: want letters, digits, dots and hyphens", id))
	}
	if spec.Script == "" {
		problems = append(problems, errors.New("script: is empty"))
	}
	if spec.Nodes < 1 || spec.Nodes > js.config.Nodes {
		problems = append(problems, fmt.Errorf("nodes: %d: the environment has %d", spec.Nodes, js.config.Nodes))
	}
	if js.config.Node >= spec.Nodes && spec.Nodes >= 1 {
		problems = append(problems, fmt.Errorf("nodes: %d: this is node %d, which is none of them", spec.Nodes, js.config.Node))
	}
	if spec.RanksPerNode < 1 {
		problems = append(problems, fmt.Errorf("ranksPerNode: %d: want at least 1", spec.RanksPerNode))
	}
	problems = append(problems, checkOrder(spec)...)
	problems = append(problems, checkDebug(spec)...)
	if len(problems) > 0 {
		return fail.Because(fail.InvalidInput, fmt.Errorf("starting a job: %w", errors.Join(problems...)))
	}
	return nil
}

// checkOrder wants each node once, and the master first.
func checkOrder(spec agent.JobSpec) []error {
	if len(spec.Order) == 0 {
		return nil
	}
	sorted := slices.Sorted(slices.Values(spec.Order))
	fine := len(sorted) == spec.Nodes && spec.Order[0] == 0
	for i, node := range sorted {
		fine = fine && i == node
	}
	if fine {
		return nil
	}
	return []error{fmt.Errorf("order: %v: want each of the %d nodes once, and node 0 first", spec.Order, spec.Nodes)}
}

// sameJob ignores what differs when a step attaches again.
func sameJob(a, b agent.JobSpec) bool {
	return a.Launcher == b.Launcher && a.Script == b.Script && slices.Equal(a.Args, b.Args) && a.Tree == b.Tree &&
		a.Nodes == b.Nodes && a.RanksPerNode == b.RanksPerNode
}

// find answers with a live job's status, or with what the record says.
func (js *jobs) find(id string) (agent.JobStatus, error) {
	if j, ok := js.live[id]; ok {
		status, _ := j.snapshot()
		return status, nil
	}
	if !jobID.MatchString(id) {
		return agent.JobStatus{}, fs.ErrNotExist
	}
	dir := record.Dir(filepath.Join(js.config.Paths.runs(), id))
	status, err := dir.ReadNode(js.config.Node)
	if err != nil {
		return status, err
	}
	for _, rank := range status.Spec.Ranks(js.config.Node) {
		r, err := dir.ReadRank(rank)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return status, err
		}
		status.Ranks = append(status.Ranks, r)
	}
	endRanks(&status, dir)
	return status, nil
}

// get is find for callers that do not hold the lock, with the live job if it is one.
func (js *jobs) get(id string) (agent.JobStatus, *job, error) {
	js.mu.Lock()
	defer js.mu.Unlock()
	status, err := js.find(id)
	return status, js.live[id], err
}

// running lists the jobs that are not over.
func (js *jobs) running() (ids []string) {
	js.mu.Lock()
	defer js.mu.Unlock()
	for id, j := range js.live {
		if !j.isOver() {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// stopAll ends every job and waits, for the end of the container.
func (js *jobs) stopAll(reason string, grace time.Duration) {
	js.mu.Lock()
	var live []*job
	for _, j := range js.live {
		live = append(live, j)
	}
	js.mu.Unlock()
	for _, j := range live {
		j.stop(agent.Stop{Reason: reason, Grace: grace})
	}
	for _, j := range live {
		<-j.over
	}
}

// pinned is true of trees that a job runs in, on any node: nodes that share the
// workspace see each other's records.
func (js *jobs) pinned(hash tree.Digest) bool {
	records, err := filepath.Glob(filepath.Join(js.config.Paths.runs(), "*", "node-*.json"))
	if err != nil {
		return true
	}
	for _, path := range records {
		status, err := record.ReadNodeFile(path)
		if err != nil || status.State == agent.Running && status.Spec.Tree == hash {
			return true
		}
	}
	return false
}
