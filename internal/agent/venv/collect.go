// SPDX-License-Identifier: Apache-2.0

package venv

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
)

// Names in the folder of all virtual environments.
var (
	linkName   = regexp.MustCompile(`^[0-9a-f]{64}-[0-9a-f]{16}$`)
	folderName = regexp.MustCompile(`^[0-9a-f]{64}-[0-9a-f]{16}\.[0-9]+$`)
)

const (
	lockName = ".collect.lock"
	// removing is the suffix of what Collect removes: nobody finds it any more.
	removing = ".removing"
)

// item is a virtual environment, or what is left of one that never was complete.
type item struct {
	// name is its link, or the folder if it has no link.
	name, folder string
	used         time.Time
}

// Collect removes the virtual environments in a folder of the claim that have not been used for so long, but keeps the last ones. It
// removes none while busy reports that a job runs, on any node: a job may use one without a sign. It returns the names of those that
// it has removed.
func Collect(folder string, keep int, unused time.Duration, busy func() bool) (removed []string, err error) {
	lock, err := claimfile.OpenFile(filepath.Join(folder, lockName), os.O_CREATE|os.O_RDWR, 0o664)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // no requirements have been installed
	}
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	if errors.Is(unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK) {
		return nil, nil // another agent collects
	}
	items, err := itemsOf(folder)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(items, func(a, b item) int { return cmp.Or(b.used.Compare(a.used), strings.Compare(a.name, b.name)) })
	for _, i := range items[min(keep, len(items)):] {
		if time.Since(i.used) <= unused {
			continue
		}
		if busy() {
			return removed, nil
		}
		gone, err := i.remove(folder, busy)
		if err != nil {
			return removed, fmt.Errorf("removing the virtual environment %s: %w", i.name, err)
		}
		if gone {
			removed = append(removed, i.name)
		}
	}
	return removed, nil
}

// itemsOf lists links with their folders, and folders without a link.
func itemsOf(folder string) (items []item, err error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	linked := map[string]bool{}
	add := func(name, target string) {
		items = append(items, item{name: name, folder: target, used: lastUse(filepath.Join(folder, target))})
	}
	for _, entry := range entries {
		name := strings.TrimSuffix(entry.Name(), removing)
		if entry.Type() != os.ModeSymlink || !linkName.MatchString(name) {
			continue
		}
		target, err := os.Readlink(filepath.Join(folder, entry.Name()))
		if err == nil && strings.HasPrefix(target, name+".") && folderName.MatchString(target) {
			linked[target] = true
			add(entry.Name(), target)
		}
	}
	for _, entry := range entries {
		if name := entry.Name(); entry.IsDir() && folderName.MatchString(strings.TrimSuffix(name, removing)) && !linked[name] {
			add(name, name)
		}
	}
	return items, nil
}

// lastUse returns the newest modification time of a folder, its completeFile and its usedFile. While pip still installs, only the
// folder exists.
func lastUse(dir string) (used time.Time) {
	for _, path := range []string{dir, filepath.Join(dir, completeFile), filepath.Join(dir, usedFile)} {
		if info, err := os.Lstat(path); err == nil && info.ModTime().After(used) {
			used = info.ModTime()
		}
	}
	return used
}

// remove renames the item first, so that nobody finds it, and then looks again whether somebody has found it before.
func (i item) remove(folder string, busy func() bool) (gone bool, err error) {
	name := filepath.Join(folder, i.name)
	away := strings.TrimSuffix(name, removing) + removing
	if name != away {
		if err := os.Rename(name, away); err != nil {
			return false, err
		}
	}
	dir := filepath.Join(folder, i.folder)
	if i.folder == i.name {
		dir = away
	}
	if busy() || !lastUse(dir).Equal(i.used) {
		return false, os.Rename(away, strings.TrimSuffix(away, removing))
	}
	return true, errors.Join(claimfile.RemoveAll(folder, dir), claimfile.RemoveAll(folder, away))
}
