// SPDX-License-Identifier: Apache-2.0

package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/record"
	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// Folder returns where local runs lie: mlenv in XDG_DATA_HOME, or else in ~/.local/share.
func Folder() (string, error) {
	data := os.Getenv("XDG_DATA_HOME")
	if data == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", err
		}
		data = filepath.Join(home, ".local", "share")
	}
	return filepath.Join(data, "mlenv"), nil
}

// Run is a run on this machine, in progress or not.
type Run struct {
	// Folder holds all local runs.
	Folder string
	Name   string
}

const (
	// lockName is the file that a run in progress holds a lock on. Its lines: mlenv's process ID, the scratch folder, its machine.
	lockName    = "lock"
	longestLock = 8 << 10
	// reachName is the file that tells other processes how to reach the nodes.
	reachName = "nodes.json"
	// scratchPrefix begins the name of the folder for sockets, certificates, the copy of the user's files and scratch of jobs.
	scratchPrefix = "mlenv-"
)

// reach is how other processes of the user reach the nodes.
type reach struct {
	Addresses []string `json:"addresses"`
	// TLS is a folder with the certificates of a client, in the scratch folder. It ends with the nodes.
	TLS string `json:"tls"`
}

func (r Run) reach() (at reach, err error) {
	const longest = 64 << 10
	err = claimfile.ReadJSON(r.path(reachName), longest, &at)
	return at, err
}

// Find returns the run of that name; ok is false if this machine has none.
func Find(name string) (r Run, ok bool) {
	folder, err := Folder()
	if err != nil || !agent.IsJobID(name) {
		return r, false
	}
	r = Run{Folder: folder, Name: name}
	_, err = os.Lstat(r.path(lockName))
	return r, err == nil
}

// ListRuns returns the runs of this machine.
func ListRuns() (all []Run, err error) {
	folder, err := Folder()
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(Run{Folder: folder}.Dir())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("listing the local runs: %w", err)
	}
	for _, entry := range entries {
		if r, ok := Find(entry.Name()); ok {
			all = append(all, r)
		}
	}
	return all, nil
}

// InProgress returns the run that began last of those in progress; ok is false if there is none.
func InProgress() (newest Run, ok bool) {
	var began time.Time
	all, _ := ListRuns()
	for _, r := range all {
		info, err := os.Stat(r.path(lockName))
		if err == nil && (!ok || info.ModTime().After(began)) && r.Running() {
			newest, began, ok = r, info.ModTime(), true
		}
	}
	return newest, ok
}

// Dir returns the folder of the run: its record, its receipt, and what it printed.
func (r Run) Dir() string { return filepath.Join(r.Folder, ".mlenv", "runs", r.Name) }

func (r Run) path(name string) string { return filepath.Join(r.Dir(), name) }

// Process returns the ID of mlenv's process, 0 if it is not known, or the run is not in progress. The ranks may write the file too, and a
// process on another machine that shares the folder has no ID here, so only a process that has the file open counts.
func (r Run) Process() (pid int) {
	content, err := claimfile.Read(r.path(lockName), longestLock)
	if err != nil || !r.Running() {
		return 0
	}
	_, _ = fmt.Sscan(string(content), &pid)
	lock, _ := filepath.EvalSymlinks(r.path(lockName))
	open := fmt.Sprintf("/proc/%d/fd", pid)
	descriptors, _ := os.ReadDir(open) // none of another user's process, or on systems without local runs
	for _, descriptor := range descriptors {
		if file, err := os.Readlink(filepath.Join(open, descriptor.Name())); err == nil && file == lock {
			return pid
		}
	}
	return 0
}

// LastWrite returns when a file of the run was last written.
func (r Run) LastWrite() (last time.Time) {
	_ = filepath.WalkDir(r.Dir(), func(_ string, entry fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // what cannot be read is left out
		}
		if info, err := entry.Info(); err == nil && !entry.IsDir() && info.ModTime().After(last) {
			last = info.ModTime()
		}
		return nil
	})
	return last
}

// NodesEnded reports whether every node has recorded the end of the run's newest attempt. failure is the end of the first node that did not
// succeed, "" for none.
func (r Run) NodesEnded() (ended bool, failure string) {
	for node, nodes := 0, 1; node < nodes; node++ {
		status, err := record.Newest(r.Dir(), node).ReadNode(node)
		if err != nil || status.State == agent.Running || status.State == agent.Restarted {
			return false, ""
		}
		nodes = status.Spec.Nodes
		if exit := status.Launcher; failure == "" && (status.State != agent.Exited || exit.Code != 0) {
			failure = fmt.Sprintf("node %d ended as %s with exit code %d", node, status.State, exit.Code)
		}
	}
	return true, failure
}

// scratch returns the folder of the run's temporary files, "" for none. The ranks may write the file that names it, so it may be none but
// one of this kind; an error tells where it stays.
func (r Run) scratch() (string, error) {
	content, _ := claimfile.Read(r.path(lockName), longestLock)
	lines := strings.Split(string(content), "\n")
	if len(lines) < 3 || lines[1] == "" {
		return "", nil
	}
	folder, host := lines[1], lines[2]
	switch digits, found := strings.CutPrefix(folder, filepath.Join(os.TempDir(), scratchPrefix)); {
	case !found || digits == "" || strings.Trim(digits, "0123456789") != "":
		return "", fmt.Errorf("temporary files of local run %s may be in %s: want a folder of mlenv below TMPDIR, which is %s", r.Name, folder,
			os.TempDir())
	case host != "" && host != hostname():
		return "", fmt.Errorf("temporary files of local run %s are in %s on %s", r.Name, folder, host)
	}
	return folder, nil
}

func hostname() string {
	name, _ := os.Hostname()
	return name
}

// own returns the folder of what environments do not share. It ends with the environment.
func (r Run) own() string { return filepath.Join(r.Folder, ".mlenv", "environments", r.Name) }

// CleanUp deletes the temporary files of a run whose mlenv was killed, and ends the records of its nodes: one that says running keeps its
// tree for ever. Errors: EnvironmentBusy.
func (r Run) CleanUp() error {
	unlock, err := r.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := r.scratch(); err != nil {
		return err
	}
	ended := r.LastWrite()
	for node, nodes := 0, 1; node < nodes; node++ {
		dir := record.Newest(r.Dir(), node)
		status, err := dir.ReadNode(node)
		if nodes = max(nodes, status.Spec.Nodes); err == nil && status.State == agent.Running {
			status.State, status.Ended = agent.Restarted, ended
			if err := record.WriteJSON(dir.NodeStatus(node), status); err != nil {
				return err
			}
		}
	}
	return r.removeScratch()
}

func (r Run) removeScratch() error {
	err := claimfile.RemoveFolder(r.own())
	if scratch, _ := r.scratch(); scratch != "" {
		err = errors.Join(err, claimfile.RemoveFolder(scratch))
	}
	return err
}

// Remove deletes a run that has ended: its record, its receipt, and its working directory. Errors: EnvironmentBusy.
func (r Run) Remove() error {
	unlock, err := r.lock()
	if err != nil {
		return err
	}
	defer unlock()
	errs := []error{r.removeScratch()}
	// From here on there is no such run, whatever happens.
	state := filepath.Join(r.Folder, ".mlenv")
	gone, err := os.MkdirTemp(filepath.Join(state, "runs"), ".gone-")
	if err == nil {
		err = os.Rename(r.Dir(), filepath.Join(gone, r.Name))
	}
	if err != nil {
		return fmt.Errorf("deleting local run %s: %w", r.Name, err)
	}
	for _, folder := range []string{
		gone, filepath.Join(r.Folder, agent.WorkFolder, r.Name), filepath.Join(r.Folder, agent.WorkFolder, "."+r.Name),
	} {
		errs = append(errs, claimfile.RemoveFolder(folder))
	}
	return errors.Join(errs...)
}

// BusyError returns the error of a run in progress that is to be deleted.
func (r Run) BusyError() error {
	err := fail.Becausef(fail.EnvironmentBusy, "deleting local run %s: it has not ended", r.Name)
	return fail.Advise(err, "%s", r.Stop())
}

// Stop returns the command that ends the run, which is in progress.
func (r Run) Stop() string {
	const how = "Ctrl-C in its terminal: it stops its ranks, and writes its receipt"
	if pid := r.Process(); pid != 0 {
		return fmt.Sprintf("kill %d   # or %s", pid, how)
	}
	return how
}
