// SPDX-License-Identifier: Apache-2.0

package server

import (
	"os"
	"path/filepath"
	"slices"
	"time"
)

// extensionsVariable is where torch compiles extensions (torch/utils/cpp_extension.py). Each has a folder with a file lock while a process
// compiles it, for which others wait without end (torch/utils/file_baton.py). A process that is killed leaves it behind.
const extensionsVariable = "TORCH_EXTENSIONS_DIR"

// locks returns the locks of extensions in a folder, the oldest first.
func locks(folder string) (paths []string) {
	modified := map[string]time.Time{}
	// Without the variable torch has a folder for each version of Python and CUDA.
	for _, pattern := range []string{"*/lock", "*/*/lock"} {
		found, _ := filepath.Glob(filepath.Join(folder, pattern))
		for _, path := range found {
			if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() {
				modified[path] = info.ModTime()
				paths = append(paths, path)
			}
		}
	}
	slices.SortFunc(paths, func(a, b string) int { return modified[a].Compare(modified[b]) })
	return paths
}

// oldestLock returns the lock for which ranks probably wait, "" for none.
func oldestLock(folder string) string {
	for _, path := range locks(folder) {
		return path
	}
	return ""
}

// removeLocks removes the locks in this node's own folder that no process holds. Only processes of this container compile there, and the
// one that compiles keeps its lock open.
func (c Config) removeLocks() (removed []string) {
	held := map[string]bool{}
	open, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, file := range open {
		if path, err := os.Readlink(file); err == nil {
			held[path] = true
		}
	}
	for _, path := range locks(c.additions()[extensionsVariable]) {
		real, err := filepath.EvalSymlinks(path)
		if err == nil && !held[real] && os.Remove(path) == nil {
			removed = append(removed, path)
		}
	}
	return removed
}
