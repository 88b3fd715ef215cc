// SPDX-License-Identifier: Apache-2.0

package treestore

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// repository has a file that is large enough for a link.
var repository = files{"train.py": "import pkg", "run.sh*": "true", "pkg/__init__.py": "", "pkg/data/a": "a",
	"weights": strings.Repeat("w", linkedFrom), "link": "->pkg/data/a", "empty/": ""}

func (w workspace) lay(t *testing.T, hash tree.Digest, job, user string) string {
	t.Helper()
	dir, err := w.CreateWork(hash, job, user)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func (w workspace) leave(t *testing.T, user string) {
	t.Helper()
	if err := w.LeaveWork("job", user); err != nil {
		t.Fatal(err)
	}
}

// wantWork checks everything that is in the folder of working directories.
func (w workspace) wantWork(t *testing.T, what string, want files) {
	t.Helper()
	if diff := cmp.Diff(want, reads(t, w.work)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
	w.wantRoot(t, 1, metaSuffix)
}

// TestWritesStayOutOfTheTree: whatever a job does to its files, the tree keeps its content, even if root, or a file system without modes,
// lets it write to read-only files.
func TestWritesStayOutOfTheTree(t *testing.T) {
	for _, root := range []bool{false, true} {
		w := newWorkspace(t)
		hash := w.synced(t, repository)
		w.writable = func(string) bool { return root }
		dir := w.lay(t, hash, "job", "a")
		if diff := cmp.Diff(repository, reads(t, dir)); diff != "" {
			t.Errorf("working directory (-want +got):\n%s", diff)
		}
		in, err := os.Stat(filepath.Join(dir, "weights"))
		of, ofErr := os.Stat(filepath.Join(w.treeDir(hash), "weights"))
		if err != nil || ofErr != nil || os.SameFile(in, of) == root || !root && in.Mode().Perm()&0o222 != 0 {
			t.Errorf("root %v: the large file has mode %s and is the tree's: %v", root, in.Mode(), os.SameFile(in, of))
		}
		for name := range repository {
			name = strings.TrimSuffix(name, "*")
			path := filepath.Join(dir, name)
			info, err := os.Lstat(path)
			switch {
			case err != nil:
				t.Fatal(err)
			case info.Mode().IsRegular() && (info.Mode().Perm()&0o220 == 0o220 || root):
				f, openErr := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
				if openErr != nil {
					t.Fatal(openErr)
				}
				_, err = f.WriteString("changed")
				err = errors.Join(err, f.Close())
			case info.Mode().IsRegular(): // as programs replace files
				err = errors.Join(os.WriteFile(path+".new", []byte("changed"), 0o644), os.Rename(path+".new", path))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		w.wantTree(t, hash, repository)
		w.leave(t, "a")
		left := reads(t, dir)
		if len(left) != 5 || !strings.HasSuffix(left["train.py"], "changed") || !strings.HasSuffix(left["weights"], "changed") {
			t.Errorf("root %v: %d files are left, want the 5 that were changed", root, len(left))
		}
	}
}

// TestUnchangedFilesAreDeleted: also those that were only touched, and what Python compiled.
func TestUnchangedFilesAreDeleted(t *testing.T) {
	w := newWorkspace(t)
	hash := w.synced(t, repository)
	dir := w.lay(t, hash, "job", "a")
	write(t, dir, "pkg/__pycache__/__init__.cpython-312.pyc", "compiled")
	write(t, dir, "__pycache__/train.cpython-312.opt-1.pyc", "compiled")
	if err := os.Chtimes(filepath.Join(dir, "train.py"), time.Now(), time.Now()); err != nil {
		t.Fatal(err)
	}
	w.leave(t, "a")
	w.wantWork(t, "after a job that wrote nothing", files{})

	write(t, w.lay(t, hash, "job", "a"), "out/model", "weights")
	write(t, dir, "pkg/data/generated/__pycache__/mine.cpython-312.pyc", "compiled")
	w.leave(t, "a")
	w.wantWork(t, "after a job that wrote",
		files{"job/out/model": "weights", "job/pkg/data/generated/__pycache__/mine.cpython-312.pyc": "compiled"})
	if jobs, err := w.Jobs(); err != nil || !cmp.Equal(jobs, []string{"job"}) {
		t.Errorf("jobs: %q, %v", jobs, err)
	}
}

// TestNodesShare: two agents lay the directory at the same time, and only the last one that leaves cleans it.
func TestNodesShare(t *testing.T) {
	w := newWorkspace(t)
	hash := w.synced(t, repository)
	other := workspace{Store: open(t, w.dir), dir: w.dir}
	var group sync.WaitGroup
	for _, agent := range []workspace{w, other} {
		group.Go(func() {
			if _, err := agent.CreateWork(hash, "job", agent.boot[:1]+map[bool]string{true: "a", false: "b"}[agent.Store == w.Store]); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	dir := w.WorkDir("job")
	if err := os.Remove(filepath.Join(dir, "train.py")); err != nil {
		t.Fatal(err)
	}
	w.lay(t, hash, "job", "late") // the job runs: what it removed stays away
	if _, err := os.Stat(filepath.Join(dir, "train.py")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that the job removed: %v", err)
	}
	w.leave(t, "late")
	w.leave(t, w.boot[:1]+"a")
	if _, err := os.Stat(filepath.Join(dir, "run.sh")); err != nil || !w.InUse(hash) {
		t.Errorf("a file that another node uses: %v, the tree is in use: %v", err, w.InUse(hash))
	}
	other.leave(t, w.boot[:1]+"b")
	w.wantWork(t, "when both have left", files{})
	if w.InUse(hash) {
		t.Error("the tree is still in use")
	}
}

// TestLayAgain: a later attempt has what the first one left. Nothing is read, written or deleted through a link that the job made.
func TestLayAgain(t *testing.T) {
	w := newWorkspace(t)
	hash := w.synced(t, repository)
	dir, outside := w.lay(t, hash, "job", "a"), t.TempDir()
	write(t, outside, "a", "a") // as in the tree
	write(t, dir, "train.py", "mine")
	data := filepath.Join(dir, "pkg/data")
	if err := errors.Join(os.RemoveAll(data), os.Symlink(outside, data), os.RemoveAll(filepath.Join(dir, "run.sh"))); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		w.leave(t, "a")
		w.wantWork(t, "after an attempt", files{"job/train.py": "mine", "job/pkg/data": "->" + outside})
		w.lay(t, hash, "job", "a")
		want := files{}
		for name, content := range repository {
			want[name] = content
		}
		delete(want, "pkg/data/a")
		want["train.py"], want["pkg/data"] = "mine", "->"+outside
		if diff := cmp.Diff(want, reads(t, dir)); diff != "" {
			t.Errorf("laid again (-want +got):\n%s", diff)
		}
	}
	if diff := cmp.Diff(files{"a": "a"}, reads(t, outside)); diff != "" {
		t.Errorf("outside (-want +got):\n%s", diff)
	}
}

// TestAbandoned: an agent that was killed forgets its jobs when it starts again, and a lost node renews nothing.
func TestAbandoned(t *testing.T) {
	w := newWorkspace(t)
	hash := w.synced(t, repository)
	for _, job := range []string{"killed", "lost", "running"} {
		write(t, w.lay(t, hash, job, job), "out", job)
	}
	if err := w.CleanUp(); err != nil {
		t.Fatal(err)
	}
	for _, job := range []string{"killed", "lost", "running"} {
		if _, err := os.Stat(filepath.Join(w.WorkDir(job), "train.py")); err != nil {
			t.Error(err)
		}
	}
	long := time.Now().Add(-lostAfter - time.Minute)
	if err := errors.Join(w.Forget("killed"), os.Chtimes(w.aboutPath("lost", userPrefix+"lost"), long, long)); err != nil {
		t.Fatal(err)
	}
	// A removal may be interrupted too.
	if err := os.Remove(w.aboutPath("killed", laidFile)); err != nil {
		t.Fatal(err)
	}
	if err := w.CleanUp(); err != nil {
		t.Fatal(err)
	}
	if jobs, err := w.uncleaned(); err != nil || !cmp.Equal(jobs, []string{"running"}) {
		t.Errorf("not cleaned: %q, %v; want the running one", jobs, err)
	}
	for _, job := range []string{"killed", "lost"} {
		if diff := cmp.Diff(files{"out": job}, reads(t, w.WorkDir(job))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", job, diff)
		}
	}
	if err := errors.Join(w.RenewWork("running", "running"), w.CleanUp()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(len(repository)+1, len(reads(t, w.WorkDir("running")))); diff != "" {
		t.Errorf("files of the running job (-want +got):\n%s", diff)
	}
}

// TestTreeThatWasChanged: a job does not run something else than the commit that its receipt names.
func TestTreeThatWasChanged(t *testing.T) {
	for name, change := range map[string]func(path string) error{
		"rewritten": func(path string) error { return replaceFile(path, "other code") },
		"removed":   os.Remove,
	} {
		w := newWorkspace(t)
		hash := w.synced(t, repository)
		if err := change(filepath.Join(w.treeDir(hash), "train.py")); err != nil {
			t.Fatal(err)
		}
		_, err := w.CreateWork(hash, "job", "a")
		if fail.ReasonOf(err) != fail.SyncFailed || !strings.Contains(err.Error(), "train.py: a program changed or removed this file") {
			t.Errorf("%s: got %v, want SyncFailed with the file", name, err)
		}
		w.wantWork(t, name, files{})
	}
}

// TestHasOwn: the working directory stays if the job wrote something, and Python's compiled modules are nothing.
func TestHasOwn(t *testing.T) {
	later := time.Now().Add(time.Hour)
	for name, tc := range map[string]struct {
		wrote []string
		until time.Time
		want  bool
	}{
		"nothing":                  {until: later},
		"a compiled file":          {wrote: []string{"__pycache__/train.cpython-312.pyc"}, until: later},
		"a file":                   {wrote: []string{"pkg/out"}, until: later, want: true},
		"a file in its own folder": {wrote: []string{"out/model.pt"}, until: later, want: true},
		"a changed file":           {wrote: []string{"train.py"}, until: later, want: true},
		"no time to look":          {want: true},
	} {
		w := newWorkspace(t)
		dir := w.lay(t, w.synced(t, repository), "job", "a")
		for _, path := range tc.wrote {
			write(t, dir, path, "mine")
		}
		if got := HasOwn(dir, tc.until); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
		if err := w.LeaveWork("job", "a"); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(dir); (err == nil) != (len(tc.wrote) > 0 && tc.want) {
			t.Errorf("%s: after the job %v", name, err)
		}
		if HasOwn(dir, later) != (len(tc.wrote) > 0 && tc.want) {
			t.Errorf("%s: after the job the answer is another one", name)
		}
	}
}

// TestLaidIn: what a job wrote can be told from its view at any time, by a program that only reads.
func TestLaidIn(t *testing.T) {
	w := newWorkspace(t)
	hash := w.synced(t, repository)
	dir := w.lay(t, hash, "job", "a")
	write(t, dir, "out", "x")
	write(t, dir, "train.py", "mine")
	laid, err := LaidIn(filepath.Join(w.dir, ".mlenv"), "job")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"out": false, "train.py": false, "weights": true, "run.sh": true, "link": true, "nosuch": false} {
		if got := laid.Has(name, false); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	if !laid.Has("pkg/data", true) || laid.Has("out", true) {
		t.Error("want the tree's folders, and no other")
	}
	if none, err := LaidIn(filepath.Join(w.dir, ".mlenv"), "another"); err != nil || none.Has("train.py", false) {
		t.Errorf("of an unknown job: %v, %v", none, err)
	}
}
