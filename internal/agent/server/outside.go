// SPDX-License-Identifier: Apache-2.0

package server

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/treestore"
)

// temporary are the names that programs give to what only they need: Python's tempfile and multiprocessing, torch, triton, Ray, and ours.
var temporary = regexp.MustCompile(`^(\.|tmp|pymp-|torch|triton|ray$|mlenv|wandb|hsperfdata|nccl)`)

// outside returns what was written next to the working directory and, in a pod, to the ranks' home and the folder for temporary files since
// the job began: a script that names ../data, ~/results or /tmp/log means it to stay. On a person's machine the last two have other
// programs' files.
func outside(work string, local bool, since time.Time) (found []agent.Outside) {
	const (
		deepest, mostFiles = 6, 20_000       // of an entry
		least              = 1 << 20         // bytes that are worth a warning
		patience           = 5 * time.Second // for the sizes of what a rank left elsewhere
	)
	until := time.Now().Add(patience)
	places := []string{filepath.Dir(work)}
	if !local {
		places = append(places, filepath.Join(filepath.Dir(places[0]), homeName), os.TempDir())
	}
	for _, place := range places {
		entries, _ := os.ReadDir(place)
		for _, entry := range entries {
			path := filepath.Join(place, entry.Name())
			if path == work || temporary.MatchString(entry.Name()) || place == places[0] && treestore.IsWork(path) {
				continue
			}
			one := agent.Outside{Path: path}
			newest, files := since, 0
			_ = filepath.WalkDir(path, func(name string, entry fs.DirEntry, err error) error {
				if files++; files > mostFiles || time.Now().After(until) {
					return fs.SkipAll
				}
				if err != nil || entry.IsDir() && strings.Count(strings.TrimPrefix(name, path), "/") > deepest {
					return fs.SkipDir
				}
				info, err := entry.Info()
				if err != nil || !info.Mode().IsRegular() || info.ModTime().Before(since) {
					return nil //nolint:nilerr // it was deleted meanwhile
				}
				one.Files, one.Bytes = one.Files+1, one.Bytes+agent.Bytes(info.Size())
				if info.ModTime().After(newest) {
					newest, one.Newest = info.ModTime(), name
				}
				return nil
			})
			if one.Bytes >= least {
				found = append(found, one)
			}
			if len(found) == agent.MaxOutside || time.Now().After(until) {
				return found
			}
		}
	}
	return found
}
