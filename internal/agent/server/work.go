// SPDX-License-Identifier: Apache-2.0

package server

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/record"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// renewEvery is how often a job shows that it still uses its working directory: other agents clean it after a day without.
const renewEvery = time.Hour

// jobFolder is where a job runs.
type jobFolder struct {
	// dir is the working directory of the ranks: a view of the tree, unless shared is true. Then other jobs use it, too.
	dir    string
	shared bool
	// venv is the virtual environment of the tree, "" for none.
	venv string
	// earlier are the working directories of the runs that the job resumes.
	earlier []string
}

// workDir returns the job's own working directory, "" for none.
func (f jobFolder) workDir() string {
	if f.shared {
		return ""
	}
	return f.dir
}

// sharerName returns this node's name among the nodes that share a working directory.
func (c Config) sharerName() string { return c.Name + "-" + strconv.Itoa(c.Node) }

// enterWorkDir lays the working directory of a job. Without a tree a job runs in the workspace. The installation of requirements starts in
// the tree itself, which it copies for pip.
func (js *jobs) enterWorkDir(id string, spec agent.JobSpec) (f jobFolder, err error) {
	if spec.Tree == "" {
		return jobFolder{dir: js.config.Paths.Workspace, shared: true}, nil
	}
	if f.dir, err = js.trees.Path(spec.Tree); err == nil && spec.Script == js.config.Program {
		return jobFolder{dir: f.dir, shared: true}, nil
	}
	if err == nil {
		if f.venv, err = js.venvFor(js.trees.Venv(spec.Tree)); err != nil {
			return f, err
		}
		if err := js.trees.CleanUp(); err != nil {
			js.log.Warn("Files of trees stay in working directories of ended jobs.", "error", err)
		}
		f.dir, err = js.trees.CreateWork(spec.Tree, id, js.config.sharerName())
	}
	if err != nil {
		err = fail.Becausef(fail.SyncFailed, "starting job %s: tree %s on node %d: %w", id, spec.Tree, js.config.Node, err)
		return f, fail.Advise(err, "sync the repository again")
	}
	if spec.Env[agent.ResumeVariable] != "" {
		for _, job := range js.earlier(id, spec.Series(id)) {
			f.earlier = append(f.earlier, js.trees.WorkDir(job))
		}
	}
	return f, nil
}

// occupy shows that the job uses its working directory until it has ended, and then deletes what it left unchanged.
func (js *jobs) occupy(j *job, id string, folder jobFolder) {
	if folder.workDir() == "" {
		return
	}
	ticker := time.NewTicker(renewEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			if err := js.trees.RenewWork(id, js.config.sharerName()); err != nil {
				js.log.Warn("Another node may take the working directory of a job for abandoned.", "job", id, "error", err)
			}
		case <-j.alive.Done():
			js.leaveWorkDir(id, folder)
			return
		}
	}
}

func (js *jobs) leaveWorkDir(id string, folder jobFolder) {
	if folder.workDir() == "" {
		return
	}
	if err := js.trees.LeaveWork(id, js.config.sharerName()); err != nil {
		js.log.Warn("Files of the tree stay in the working directory of a job.", "job", id, "error", err)
	}
}

// earlier returns the other jobs of a series that have a working directory, the newest first. One whose node was lost may still have all
// files of its tree.
func (js *jobs) earlier(id, series string) (ids []string) {
	found, err := js.trees.Jobs()
	if err != nil {
		js.log.Warn("Earlier working directories are not searched for checkpoints.", "error", err)
	}
	started := map[string]time.Time{}
	for _, job := range found {
		if status, ok := js.anyRecord(job); ok && job != id && status.Spec.Series(job) == series {
			started[job] = status.Started
			ids = append(ids, job)
		}
	}
	slices.SortStableFunc(ids, func(a, b string) int { return started[b].Compare(started[a]) })
	return ids
}

// anyRecord reads a node's record of the first attempt that has one.
func (js *jobs) anyRecord(job string) (agent.JobStatus, bool) {
	for _, folder := range []string{"", agent.AttemptFolder(2)} {
		dir := record.Dir(filepath.Join(js.config.Paths.runsDir(), job, folder))
		entries, _ := os.ReadDir(string(dir))
		for _, e := range entries {
			node, ok := record.NodeOf(e.Name())
			if !ok {
				continue
			}
			if status, err := dir.ReadNode(node); err == nil {
				return status, true
			}
		}
	}
	return agent.JobStatus{}, false
}
