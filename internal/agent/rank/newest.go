// SPDX-License-Identifier: Apache-2.0

package rank

import (
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// newestLog returns the path in dir of the log that was written last and since a time, "" for none: a script may send all that it prints
// there.
func newestLog(dir string, since time.Time) (newest string) {
	const deepest, mostEntries = 3, 10_000
	entries := 0
	_ = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if entries++; entries > mostEntries {
			return fs.SkipAll
		}
		if err != nil {
			return nil //nolint:nilerr // what cannot be read is not a log
		}
		name, _ := filepath.Rel(dir, path) // both are relative, or both absolute
		if entry.IsDir() {
			if strings.Count(name, "/") >= deepest || entry.Name() == ".mlenv" { // which has the records of all ranks
				return fs.SkipDir
			}
			return nil
		}
		info, err := entry.Info()
		if isLog := slices.Contains([]string{".log", ".out", ".err", ".txt"}, filepath.Ext(name)); !isLog || err != nil || info.Size() == 0 {
			return nil //nolint:nilerr // it was deleted meanwhile
		}
		if info.Mode().IsRegular() && info.ModTime().After(since) {
			newest, since = name, info.ModTime()
		}
		return nil
	})
	return newest
}
