// Package watch tells when something in a folder that somebody works in has changed.
package watch

import (
	"context"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

const (
	// quiet is how long nothing must happen for changes to be one: an editor writes a file
	// in several steps, a checkout many files.
	quiet = 150 * time.Millisecond
	// longest is when changes are told though more of them come.
	longest = 2 * time.Second
)

// Change is one or several changes shortly after each other.
type Change struct {
	// Paths in the folder, with slashes, sorted.
	Paths []string
	// Problem says why not all of the folder is watched any more, nil where all is.
	Problem error
}

// String names what changed, for people.
func (c Change) String() string {
	const most = 3
	if len(c.Paths) > most {
		return fmt.Sprintf("%s and %s changed", strings.Join(c.Paths[:most], ", "), humanize.Count(len(c.Paths)-most, "other path"))
	}
	return strings.Join(c.Paths, ", ") + " changed"
}

// Folder tells of changes in dir and the folders below it, less what a scan with
// tree.LoadWorkIgnore leaves out, until ctx ends. A change that comes while an earlier one is
// not taken yet is added to it.
//
//   - What changes after Folder has returned is told, in new folders too.
//   - A folder that is new is watched before its change is told: who reads it then sees all.
//   - Ignore files that changed are read anew.
func Folder(ctx context.Context, dir string) (<-chan Change, error) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watching %s: %w", dir, err)
	}
	f := &folder{dir: dir, watcher: watcher}
	if err := f.watchAll(); err != nil {
		watcher.Close()
		return nil, err
	}
	paths := make(chan string)
	go func() {
		defer close(paths)
		defer watcher.Close()
		f.run(ctx, paths)
	}()
	changes := make(chan Change)
	go batch(ctx, paths, changes, f.watchAll)
	return changes, nil
}

type folder struct {
	dir     string
	watcher *fsnotify.Watcher
	ignore  atomic.Pointer[tree.Ignore]
}

// watchAll watches every folder that is not left out. One that is watched already stays so.
func (f *folder) watchAll() error {
	ignore, err := tree.LoadWorkIgnore(f.dir)
	if err != nil {
		return err
	}
	f.ignore.Store(ignore)
	return filepath.WalkDir(f.dir, func(path string, entry fs.DirEntry, err error) error {
		name, relErr := filepath.Rel(f.dir, path)
		switch {
		case err != nil && name != ".":
			return nil // it has gone meanwhile, or may not be read, which the scan says
		case err != nil:
			return fmt.Errorf("watching %s: %w", f.dir, err)
		case relErr != nil:
			return relErr
		case !entry.IsDir():
			return nil
		case name != "." && ignore.LeavesOut(filepath.ToSlash(name), true):
			return fs.SkipDir
		}
		if err := f.watcher.Add(path); err != nil {
			return fmt.Errorf("watching %s: %w", path, err)
		}
		return nil
	})
}

// run passes on the paths of events that count.
func (f *folder) run(ctx context.Context, paths chan<- string) {
	for {
		var name string
		select {
		case <-ctx.Done():
			return
		case event, ok := <-f.watcher.Events:
			if !ok {
				return
			}
			name = f.counts(event)
		case _, ok := <-f.watcher.Errors:
			if !ok {
				return
			}
			name = "." // too many events at once: some are lost, so anything may have changed
		}
		if name == "" {
			continue
		}
		select {
		case paths <- name:
		case <-ctx.Done():
			return
		}
	}
}

// counts is the path of an event that is about what is sent, or "".
func (f *folder) counts(event fsnotify.Event) string {
	name, err := filepath.Rel(f.dir, event.Name)
	if err != nil {
		return ""
	}
	name = filepath.ToSlash(name)
	// Whether it is, or was, a folder is not told.
	if ignore := f.ignore.Load(); ignore.LeavesOut(name, false) && ignore.LeavesOut(name, true) {
		return ""
	}
	return name
}

// batch gathers paths into changes, and closes them when there are no more paths. ready is
// called before each is told.
func batch(ctx context.Context, paths <-chan string, changes chan<- Change, ready func() error) {
	defer close(changes)
	var gathered Change
	var silence, end <-chan time.Time
	var out chan<- Change // nil until gathered is ready
	tell := func() {
		silence, end, out = nil, nil, changes
		slices.Sort(gathered.Paths)
		gathered.Paths = slices.Compact(gathered.Paths)
		gathered.Problem = ready()
	}
	for {
		select {
		case <-ctx.Done():
			return
		case name, ok := <-paths:
			if !ok {
				return
			}
			gathered.Paths = append(gathered.Paths, name)
			silence, out = time.After(quiet), nil
			if end == nil {
				end = time.After(longest)
			}
		case <-silence:
			tell()
		case <-end:
			tell()
		case out <- gathered:
			gathered, out = Change{}, nil
		}
	}
}
