// SPDX-License-Identifier: Apache-2.0

package syncrepo

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// CheckFiles finds files that the params name and the nodes would not get from a folder: missing ones, and those that ignore
// leaves out. value returns a param's value.
func CheckFiles(dir string, ignore *tree.Ignore, value func(param string) string) error {
	exists := func(path string) bool {
		_, err := os.Stat(filepath.Join(dir, path))
		return err == nil
	}
	var problems []error
	for _, file := range launch.NamedFiles(value, exists) {
		info, err := os.Stat(filepath.Join(dir, file.Path))
		name := filepath.ToSlash(filepath.Clean(file.Path))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			problems = append(problems, fail.Advise(fail.Becausef(file.Missing, "looking for %s %s in %s: it does not exist; the folder has %s",
				file.Param, file.Value, dir, tree.Nearby(tree.Names(dir), name)), "%s", nextIn(dir, file, exists)))
		case err != nil:
			problems = append(problems, fail.Because(file.Missing, fmt.Errorf("looking for %s %s in %s: %w", file.Param, file.Value, dir, err)))
		case info.IsDir():
			problems = append(problems, fail.Advise(fail.Becausef(file.Missing, "looking for %s %s in %s: it is a folder; want a file", file.Param,
				file.Value, dir), "%s", file.NextStep(exists)))
		case ignore.LeavesOut(name, false):
			problems = append(problems, fail.Advise(
				fail.Becausef(file.Missing, "sending %s %s of %s: .gitignore or .mlenvignore names it, so the nodes would not get it", file.Param,
					file.Path, dir),
				"echo '!/%s' >> %s", leftOut(ignore, name), filepath.Join(dir, tree.IgnoreFile)))
		}
	}
	return errors.Join(problems...)
}

// nextIn returns what to do about a missing file of a folder of this machine.
func nextIn(dir string, file launch.NamedFile, exists func(path string) bool) string {
	// The path may be relative to the current folder.
	if whole, err := filepath.Abs(file.Path); err == nil {
		if inside := InFolder(dir, whole); inside != whole && exists(inside) {
			return fmt.Sprintf("name it by its path in %s: %s", dir, inside)
		}
	}
	if above := emptyFolder(dir, file.Path); above != "" {
		return fmt.Sprintf("%s is an empty folder; if it is a submodule: git -C %s submodule update --init %s", above, dir, above)
	}
	return file.NextStep(exists)
}

// emptyFolder returns the empty folder of dir in which a file should be, "" for none.
func emptyFolder(dir, name string) string {
	for name = filepath.Dir(name); name != "."; name = filepath.Dir(name) {
		if entries, err := os.ReadDir(filepath.Join(dir, name)); err == nil {
			if len(entries) > 0 {
				return ""
			}
			return name
		}
	}
	return ""
}

// InFolder returns the path in the folder for an absolute path of a file in it, and other paths as they are: an absolute one
// is a path on the nodes.
func InFolder(dir, path string) string {
	if !filepath.IsAbs(path) {
		return path
	}
	whole, err := filepath.Abs(dir)
	if err != nil {
		return path
	}
	for _, resolve := range []func(string) (string, error){
		func(path string) (string, error) { return path, nil },
		filepath.EvalSymlinks, // such as /tmp on a Mac, or the current folder as a shell shows it
	} {
		above, errAbove := resolve(whole)
		folder, errFolder := resolve(filepath.Dir(path))
		if inside, err := filepath.Rel(above, filepath.Join(folder, filepath.Base(path))); errors.Join(errAbove, errFolder, err) == nil &&
			filepath.IsLocal(inside) {
			return filepath.ToSlash(inside)
		}
	}
	return path
}

// leftOut returns the path that a line of an ignore file names: the file, or the first folder that it lies in.
func leftOut(ignore *tree.Ignore, name string) string {
	for n, r := range name {
		if r == '/' && ignore.LeavesOut(name[:n], true) {
			return name[:n+1]
		}
	}
	return name
}
