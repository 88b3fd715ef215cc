// SPDX-License-Identifier: Apache-2.0

package program

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/treestore"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// RunFileCommand runs one of the file commands, which mlenv starts by exec to read from a volume or to write to it.
func RunFileCommand(args []string, stdin io.Reader, stdout io.Writer) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	shareFiles()
	switch command, rest := args[0], args[1:]; {
	case command == "hold" && len(rest) == 0:
		hold(ctx, time.NewTicker(holdLooks).C, onlyProcess)
		return nil
	case command == "remove" && len(rest) > 1:
		return removeFiles(rest[0], rest[1:])
	case command == "send" && len(rest) == 1:
		var wanted agent.FileRequest
		if err := json.NewDecoder(stdin).Decode(&wanted); err != nil {
			return fmt.Errorf("reading the list of requested files: %w", err)
		}
		return tree.WriteContents(ctx, stdout, rest[0], wanted.Manifest, wanted.Missing, wanted.From)
	case command == "page" && len(rest) == 1:
		var wanted agent.PageRequest
		if err := json.NewDecoder(stdin).Decode(&wanted); err != nil {
			return fmt.Errorf("reading which files are to be listed: %w", err)
		}
		return pageFiles(ctx, rest[0], wanted, stdout)
	}
	return fmt.Errorf("files %q: want hold, remove DIR PATH..., page DIR or send DIR", args)
}

const (
	// holdLooks is the time between two looks for processes that read or delete files of the pod.
	holdLooks = time.Minute
	// holdFor is how many looks in a row may see none. The program that created the pod may read local files for a long time between two
	// requests. If it was killed, the pod must end soon: a ReadWriteOnce claim keeps pods on other nodes waiting.
	holdFor = 30
)

// hold waits until ctx is done, or until it was alone for holdFor looks in a row.
func hold(ctx context.Context, looks <-chan time.Time, alone func() bool) {
	for quiet := 0; quiet < holdFor; {
		select {
		case <-ctx.Done():
			return
		case <-looks:
		}
		if quiet++; !alone() {
			quiet = 0
		}
	}
}

// onlyProcess reports whether the container runs no other process.
func onlyProcess() bool {
	entries, err := os.ReadDir("/proc")
	return err == nil && !slices.ContainsFunc(entries, func(entry os.DirEntry) bool {
		pid, err := strconv.Atoi(entry.Name())
		return err == nil && pid != os.Getpid()
	})
}

// pageFiles prints an agent.FilePage of the paths, a part of their files, because connections may last only so long. Of working
// directories of jobs it lists what the jobs wrote.
func pageFiles(ctx context.Context, dir string, wanted agent.PageRequest, stdout io.Writer) error {
	looked, err := look(dir, wanted.Paths)
	if err != nil {
		return err
	}
	var found agent.FilePage
	if len(looked.present) > 0 {
		end := time.Now().Add(time.Duration(wanted.Seconds * float64(time.Second)))
		found.Page, err = tree.ScanPage(ctx, dir, looked.files(), wanted.From, func() bool { return time.Now().After(end) })
		if err != nil {
			return err
		}
		found.Entries = slices.DeleteFunc(found.Entries, looked.work.isTreeFolder)
	}
	found.Looked = looked.result()
	return json.NewEncoder(stdout).Encode(found)
}

// looked are paths of a folder: those that exist, and those that do not.
type looked struct {
	dir             string
	present, absent []string
	work            workFilter
}

func look(dir string, paths []string) (l looked, err error) {
	l = looked{dir: dir, work: workFilter{dir: dir, laid: map[string]treestore.Laid{}}}
	for _, path := range paths {
		if !filepath.IsLocal(path) {
			return l, fmt.Errorf("path %q: want one in the folder", path)
		}
		_, err := os.Lstat(filepath.Join(dir, path))
		switch {
		case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ENOTDIR), err == nil && l.work.laidThere(path):
			l.absent = append(l.absent, path)
		case err != nil:
			return l, err
		default:
			l.present = append(l.present, path)
		}
	}
	return l, nil
}

// files selects the files to list.
func (l *looked) files() *tree.Ignore { return tree.OnlyPaths(l.present).Except(l.work.leavesOut) }

// result is valid after the files were listed.
func (l *looked) result() agent.Looked {
	result := agent.Looked{Absent: l.absent, LeftOut: l.work.leftOut}
	for _, path := range l.absent[:min(len(l.absent), mostNear)] {
		if result.Near == nil {
			result.Near = map[string]agent.Near{}
		}
		result.Near[path] = lookNear(l.dir, path, &l.work)
	}
	return result
}

// Bounds of what a listing has of absent paths and of files that are left out.
const (
	mostNear    = 10
	mostNames   = 30
	mostLeftOut = 20
)

// lookNear lists the innermost folder on the way to an absent path.
func lookNear(dir, path string, work *workFilter) agent.Near {
	for folder := filepath.Dir(path); ; folder = filepath.Dir(folder) {
		entries, err := os.ReadDir(filepath.Join(dir, folder))
		if err != nil && folder != "." {
			continue
		}
		n := agent.Near{Folder: folder}
		for _, e := range entries {
			if name := filepath.Join(folder, e.Name()); len(n.Names) < mostNames && !strings.HasPrefix(e.Name(), ".") && !work.laidThere(name) {
				n.Names = append(n.Names, e.Name())
			}
		}
		return n
	}
}

// workFilter knows what the jobs did not write in their working directories.
type workFilter struct {
	dir     string
	laid    map[string]treestore.Laid
	leftOut []string
}

// jobOf splits a path in the working directory of a job.
func (w *workFilter) jobOf(path string) (job treestore.Laid, name string, ok bool) {
	rest, inWork := strings.CutPrefix(path, agent.WorkFolder+"/")
	id, name, inJob := strings.Cut(rest, "/")
	if !inWork || !inJob || !agent.IsJobID(id) {
		return job, "", false
	}
	job, known := w.laid[id]
	if !known {
		// If it cannot be read, all files count as the job's.
		job, _ = treestore.LaidIn(filepath.Join(w.dir, filepath.Dir(agent.WorkFolder)), id)
		w.laid[id] = job
	}
	return job, name, true
}

// laidThere reports whether a path leads to a file as the agent laid it, or to a folder of the tree without any other file.
func (w *workFilter) laidThere(path string) bool {
	job, name, ok := w.jobOf(path)
	if !ok {
		return false
	}
	info, err := os.Lstat(filepath.Join(w.dir, path))
	if err != nil || !info.IsDir() {
		return err == nil && job.Has(name, false)
	}
	if !job.Has(name, true) {
		return false
	}
	entries, err := os.ReadDir(filepath.Join(w.dir, path))
	return err == nil && !slices.ContainsFunc(entries, func(e os.DirEntry) bool { return !w.laidThere(filepath.Join(path, e.Name())) })
}

// leavesOut is for tree.Ignore. A scan fails at special files, and at links that lead out; what a training left of them must not keep its
// other files from being fetched.
func (w *workFilter) leavesOut(path string, folder bool) bool {
	if !folder && filepath.Base(path) == agent.GivenFile && filepath.Dir(filepath.Dir(path)) == agent.RecordFolder {
		return true // it may have keys
	}
	job, name, ok := w.jobOf(path)
	if !ok || folder {
		return false
	}
	if job.Has(name, false) {
		return true
	}
	info, err := os.Lstat(filepath.Join(w.dir, path))
	if err != nil || info.Mode().IsRegular() {
		return false
	}
	if info.Mode().Type() == os.ModeSymlink {
		target, err := os.Readlink(filepath.Join(w.dir, path))
		if err == nil && !filepath.IsAbs(target) && filepath.IsLocal(filepath.Join(filepath.Dir(name), target)) {
			return false
		}
	}
	if len(w.leftOut) < mostLeftOut {
		w.leftOut = append(w.leftOut, path)
	}
	return true
}

// isTreeFolder reports whether an entry is a folder of the tree in which nothing else lies.
func (w *workFilter) isTreeFolder(e tree.Entry) bool {
	path, err := tree.Unescape(e.Path)
	if err != nil || e.Kind != tree.Folder {
		return false
	}
	job, name, ok := w.jobOf(path)
	return ok && job.Has(name, true)
}

// removeFiles deletes paths below the folder. It follows no link.
func removeFiles(dir string, paths []string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, path := range paths {
		if !filepath.IsLocal(path) || filepath.Clean(path) == "." {
			return fmt.Errorf("path %q: want one in the folder", path)
		}
		if err := root.RemoveAll(path); err != nil {
			return err
		}
	}
	return nil
}
