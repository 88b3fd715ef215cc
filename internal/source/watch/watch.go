// SPDX-License-Identifier: Apache-2.0

// Package watch reports changes in a folder that a user works in.
package watch

import (
	"context"
	"fmt"
	"io/fs"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

const (
	// quiet is the pause that ends a change: an editor writes a file in several steps, a checkout many files.
	quiet = 150 * time.Millisecond
	// longest is the time after which a change is reported even without a pause.
	longest = 2 * time.Second
)

// Change combines changes in quick succession.
type Change struct {
	// Paths in the folder, with slashes, sorted.
	Paths []string
	// Problem is why a part of the folder is no longer watched, nil if all of it is.
	Problem error
}

// String names the changed paths.
func (c Change) String() string {
	const most = 3
	if len(c.Paths) > most {
		return fmt.Sprintf("%s and %s changed", strings.Join(c.Paths[:most], ", "), humanize.Count(len(c.Paths)-most, "other path"))
	}
	return strings.Join(c.Paths, ", ") + " changed"
}

// Folder reports changes in dir and the folders below it until ctx ends, except for files that a scan with
// tree.LoadWorkIgnore leaves out. A change that comes before the caller has received an earlier one is added to it. Folder
// misses no change after it has returned: it watches a new folder before it reports it. Changed ignore files take effect.
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
	changes := make(chan Change)
	go func() {
		defer close(changes)
		defer watcher.Close()
		f.run(ctx, changes, f.watchAll)
	}()
	return changes, nil
}

type folder struct {
	dir     string
	watcher *fsnotify.Watcher
	ignore  *tree.Ignore
}

func (f *folder) watchAll() error {
	ignore, err := tree.LoadWorkIgnore(f.dir)
	if err != nil {
		return err
	}
	f.ignore = ignore
	return filepath.WalkDir(f.dir, func(path string, entry fs.DirEntry, err error) error {
		name, relErr := filepath.Rel(f.dir, path)
		switch {
		case err != nil && name != ".":
			return nil // it was removed meanwhile, or may not be read, which the scan reports
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

// relevant returns the path of an event, "" if the scan leaves it out.
func (f *folder) relevant(event fsnotify.Event) string {
	name, err := filepath.Rel(f.dir, event.Name)
	if err != nil {
		return ""
	}
	name = filepath.ToSlash(name)
	// The event does not contain whether the path is a folder.
	// On a Mac, programs for search and backup change what belongs to a file, and do so after each save.
	if runtime.GOOS == "darwin" && event.Op == fsnotify.Chmod {
		return ""
	}
	if f.ignore.LeavesOut(name, false) && f.ignore.LeavesOut(name, true) {
		return ""
	}
	return name
}

// run combines the changed paths of the scan into changes. It calls ready before each change.
func (f *folder) run(ctx context.Context, changes chan<- Change, ready func() error) {
	var gathered Change
	var silence, end <-chan time.Time
	var out chan<- Change // nil until gathered is ready
	finish := func() {
		silence, end, out = nil, nil, changes
		slices.Sort(gathered.Paths)
		gathered.Paths = slices.Compact(gathered.Paths)
		gathered.Problem = ready()
	}
	for {
		name := ""
		select {
		case <-ctx.Done():
			return
		case event := <-f.watcher.Events:
			name = f.relevant(event)
		case <-f.watcher.Errors:
			name = "." // after too many events some are lost, so anything may have changed
		case <-silence:
			finish()
		case <-end:
			finish()
		case out <- gathered:
			gathered, out = Change{}, nil
		}
		if name == "" {
			continue
		}
		gathered.Paths = append(gathered.Paths, name)
		silence, out = time.After(quiet), nil
		if end == nil {
			end = time.After(longest)
		}
	}
}
