// SPDX-License-Identifier: Apache-2.0

package treestore

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// Names in the folder of working directories, which is next to the trees' root. JOB is the working directory of a job.
const (
	workFolder = "work"
	// aboutPrefix: the folder .JOB exists as long as JOB may contain files of its tree.
	aboutPrefix = "."
	// treeFile names that tree. laidFile is the index of what was laid: it is written last, when the working directory is complete.
	treeFile, laidFile = "tree", "index"
	// userPrefix begins the name of a file for each node whose ranks may use the working directory.
	userPrefix = "user-"
)

// lostAfter is the age at which a node's file shows that the node is lost. The node renews it much more often.
const lostAfter = 24 * time.Hour

// WorkDir returns the working directory of a job, which may not exist.
func (s *Store) WorkDir(job string) string { return filepath.Join(s.work, job) }

// IsWork reports whether a path is the working directory of a job.
func IsWork(path string) bool {
	_, err := os.Lstat(filepath.Join(filepath.Dir(path), aboutPrefix+filepath.Base(path)))
	return err == nil
}

func (s *Store) aboutPath(job, name string) string {
	return filepath.Join(s.work, aboutPrefix+job, name)
}

// CreateWork creates the working directory of a job, a view of a complete tree that no write can carry into the tree, and registers the
// user, a node, until Leave. Nodes that share the volume share the directory: only the first one lays it. If an earlier attempt of the job
// left files there, these stay and Lay adds what is missing. A file that was changed in the tree itself is SyncFailed.
func (s *Store) CreateWork(hash tree.Digest, job, user string) (dir string, err error) {
	defer syncFailed(&err, "laying the working directory of job %s", job)
	unlock, err := s.lock()
	if err != nil {
		return "", err
	}
	defer unlock()
	if err := s.lay(hash, job, user); err != nil {
		return "", errors.Join(err, s.leave(job, user))
	}
	return s.WorkDir(job), nil
}

func (s *Store) lay(hash tree.Digest, job, user string) error {
	from, err := s.Path(hash)
	if err != nil {
		return err
	}
	if err := makeFolders(s.aboutPath(job, "")); err != nil {
		return err
	}
	if err := s.replace(s.aboutPath(job, treeFile), []byte(hash)); err != nil {
		return err
	}
	if err := s.RenewWork(job, user); err != nil {
		return err
	}
	dir := s.WorkDir(job)
	if _, err := os.Lstat(s.aboutPath(job, laidFile)); err == nil && isFolder(dir) {
		return nil
	}
	m, err := s.manifest(hash)
	if err != nil {
		return err
	}
	v, err := s.newView(m, from, s.index(hash, indexSuffix))
	if err != nil {
		return err
	}
	defer claimfile.RemoveAll(s.root, v.stage)
	if err := v.layAt(dir); err != nil {
		return err
	}
	return s.replace(s.aboutPath(job, laidFile), v.index(s.boot).encode())
}

// RenewWork shows other agents that the user still uses the working directory.
func (s *Store) RenewWork(job, user string) error {
	return s.replace(s.aboutPath(job, userPrefix+user), nil)
}

// LeaveWork ends what Lay began. After the last user it deletes what the job left unchanged, and the directory if it is empty then. What
// the job wrote stays.
func (s *Store) LeaveWork(job, user string) (err error) {
	defer syncFailed(&err, "cleaning the working directory of job %s", job)
	unlock, err := s.lock()
	if err != nil {
		return err
	}
	defer unlock()
	return s.leave(job, user)
}

func (s *Store) leave(job, user string) error {
	if err := removeFile(s.aboutPath(job, userPrefix+user)); err != nil {
		return err
	}
	return s.clean(job, time.Time{})
}

// Forget removes the user from all working directories: its earlier container is gone. CleanUp then cleans them.
func (s *Store) Forget(user string) error {
	jobs, err := s.uncleaned()
	for _, job := range jobs {
		err = errors.Join(err, removeFile(s.aboutPath(job, userPrefix+user)))
	}
	return err
}

// CleanUp does what Leave does for working directories that nobody left, because an agent was killed or a node was lost.
func (s *Store) CleanUp() (err error) {
	defer syncFailed(&err, "cleaning abandoned working directories")
	jobs, err := s.uncleaned()
	if err != nil || len(jobs) == 0 {
		return err
	}
	now, err := s.volumeTime()
	if err != nil {
		return err
	}
	var wrong []error
	for _, job := range jobs {
		if used, err := s.used(job, now.Add(-lostAfter)); used || err != nil {
			wrong = append(wrong, err)
			continue
		}
		unlock, err := s.lock()
		if err != nil {
			return err
		}
		wrong = append(wrong, s.clean(job, now.Add(-lostAfter)))
		unlock()
	}
	return errors.Join(wrong...)
}

// InUse reports whether a working directory may still contain files of the tree.
func (s *Store) InUse(hash tree.Digest) bool {
	jobs, err := s.uncleaned()
	if err != nil {
		return true // as one that cannot be read
	}
	for _, job := range jobs {
		if of, err := s.treeOf(job); err != nil || of == hash {
			return true
		}
	}
	return false
}

// Jobs returns the jobs that have a working directory, running or ended.
func (s *Store) Jobs() (jobs []string, err error) {
	entries, err := os.ReadDir(s.work)
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), aboutPrefix) && e.IsDir() {
			jobs = append(jobs, e.Name())
		}
	}
	return jobs, err
}

// uncleaned returns the jobs whose working directories may contain files of a tree.
func (s *Store) uncleaned() (jobs []string, err error) {
	entries, err := os.ReadDir(s.work)
	for _, e := range entries {
		if job, ok := strings.CutPrefix(e.Name(), aboutPrefix); ok && e.IsDir() {
			jobs = append(jobs, job)
		}
	}
	return jobs, err
}

// used reports whether a node whose file is newer than the time uses the working directory.
func (s *Store) used(job string, since time.Time) (bool, error) {
	entries, err := os.ReadDir(s.aboutPath(job, ""))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), userPrefix) {
			continue
		}
		info, err := e.Info()
		if err == nil && info.ModTime().After(since) {
			return true, nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
	}
	return false, err
}

// volumeTime returns the time by the clock that stamps the volume's files. It may be a server's.
func (s *Store) volumeTime() (time.Time, error) {
	file, err := os.CreateTemp(filepath.Join(s.root, stagingFolder), "now-")
	if err != nil {
		return time.Time{}, err
	}
	defer os.Remove(file.Name())
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return time.Time{}, err
	}
	return info.ModTime(), nil
}

// treeOf returns the tree of a job's working directory.
func (s *Store) treeOf(job string) (tree.Digest, error) {
	const most = 100
	content, err := claimfile.Read(s.aboutPath(job, treeFile), most)
	if hash := tree.Digest(content); err != nil || hash.Valid() {
		return hash, err
	}
	return "", fmt.Errorf("%s: %q: want the hash of a tree", s.aboutPath(job, treeFile), content)
}

// clean deletes what a job left unchanged, unless it is used. The store is locked.
func (s *Store) clean(job string, since time.Time) error {
	if used, err := s.used(job, since); used || err != nil {
		return err
	}
	left, err := s.laid(job)
	if err != nil {
		return err
	}
	// From here on the working directory is incomplete, whatever happens.
	if err := removeFile(s.aboutPath(job, laidFile)); err != nil {
		return err
	}
	if left != nil {
		if err := left.removeAll(); err != nil {
			return err
		}
	}
	return claimfile.RemoveAll(s.work, s.aboutPath(job, ""))
}

// laid recognises what a job left unchanged. It is nil if that is not known: then all files stay.
func (s *Store) laid(job string) (*remover, error) {
	hash, err := s.treeOf(job)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	m, err := s.manifest(hash)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	known, err := claimfile.Read(s.aboutPath(job, laidFile), maxIndex)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	x, _ := parseIndex(string(known)) // without it the files are read
	r := s.newRemover(s.WorkDir(job), m, x)
	r.caches = true
	return r, nil
}

// removeAll removes the unchanged entries, many at a time, and then the folders that are empty.
func (r *remover) removeAll() error {
	replaced := r.replaced(r.dir)
	err := inParallel(len(r.names), func(i int) error {
		if name := r.names[i]; !replaced[filepath.Dir(name)] && r.unchanged(name) {
			return removeFile(filepath.Join(r.dir, name))
		}
		return nil
	})
	if err == nil {
		_, err = r.emptyFolder(".")
	}
	return err
}

// replaced returns the folders of the tree in whose place something else lies, as a link, with those below them: nothing may be reached
// through a link of the job.
func (m namedManifest) replaced(dir string) map[string]bool {
	replaced := map[string]bool{}
	for _, folder := range m.folders {
		info, err := os.Lstat(filepath.Join(dir, folder))
		replaced[folder] = replaced[filepath.Dir(folder)] || err == nil && !info.IsDir()
	}
	return replaced
}

// Laid are the entries of a working directory that are as the agent laid them.
type Laid struct{ r *remover }

// LaidIn describes the working directory of a job below the agents' folder on a volume. It only reads.
func LaidIn(state, job string) (Laid, error) {
	s := &Store{root: filepath.Join(state, "trees"), work: filepath.Join(state, workFolder)}
	r, err := s.laid(job)
	return Laid{r}, err
}

// HasOwn reports whether something in a working directory stays after the job, because the job made or changed it. It only reads, and
// supposes so if it has not seen everything by then.
func HasOwn(dir string, by time.Time) bool {
	laid, err := LaidIn(filepath.Dir(filepath.Dir(dir)), filepath.Base(dir))
	own := errors.New("the job's own")
	return err != nil || filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		name := strings.TrimPrefix(path, dir+"/")
		switch {
		case path == dir && errors.Is(err, fs.ErrNotExist), path == dir && err == nil && laid.r != nil:
			return nil
		case err != nil, time.Now().After(by), laid.r == nil:
			return own
		case laid.Has(name, e.IsDir()), e.IsDir() && e.Name() == compiledFolder, !e.IsDir() && laid.r.compiled(name):
			return nil
		}
		return own
	}) != nil
}

// Has reports whether a file or link is as it was laid, or a folder is one of the tree's. The name is its path in the working directory.
func (l Laid) Has(name string, folder bool) bool {
	switch {
	case l.r == nil:
		return false
	case folder:
		return l.r.folders[name]
	}
	return l.r.unchanged(name)
}
