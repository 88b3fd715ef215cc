// SPDX-License-Identifier: Apache-2.0

package server

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// extensionsVariable is where torch compiles extensions (torch/utils/cpp_extension.py). Each has a folder with a file lock while a process
// compiles it, for which others wait without end (torch/utils/file_baton.py). A process that is killed leaves it behind.
const extensionsVariable = "TORCH_EXTENSIONS_DIR"

// locks returns the locks of extensions in a folder, relative to it, the oldest first.
func locks(folder *os.Root) (names []string) {
	modified := map[string]time.Time{}
	// Without the variable torch has a folder for each version of Python and CUDA.
	for _, pattern := range []string{"*/lock", "*/*/lock"} {
		found, _ := fs.Glob(folder.FS(), pattern) //nolint:forbidigo // it lists names and opens no file
		for _, name := range found {
			if info, err := folder.Lstat(name); err == nil && info.Mode().IsRegular() {
				modified[name] = info.ModTime()
				names = append(names, name)
			}
		}
	}
	slices.SortFunc(names, func(a, b string) int { return modified[a].Compare(modified[b]) })
	return names
}

// oldestLock returns the path of the lock for which ranks probably wait, "" for none.
func oldestLock(folder string) string {
	root, err := os.OpenRoot(folder)
	if err != nil {
		return ""
	}
	defer root.Close()
	for _, name := range locks(root) {
		return filepath.Join(folder, name)
	}
	return ""
}

// removeLocks removes the locks in this node's own folder that no process holds. Only processes of this container compile there, and the
// one that compiles keeps its lock open. A local run has no such folder: its ranks compile in the user's, for which others may wait.
func (c Config) removeLocks() (removed []string) {
	folder, own := c.additions()[extensionsVariable]
	if !own {
		return nil
	}
	root, err := os.OpenRoot(folder)
	if err != nil {
		return nil
	}
	defer root.Close()
	held := map[string]bool{}
	open, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, file := range open {
		if path, err := os.Readlink(file); err == nil {
			held[path] = true
		}
	}
	for _, name := range locks(root) {
		path := filepath.Join(folder, name)
		real, err := filepath.EvalSymlinks(path)
		if err == nil && !held[real] && root.Remove(name) == nil {
			removed = append(removed, path)
		}
	}
	return removed
}
