package syncrepo

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// CheckFiles finds files of a folder that the nodes would not get: missing ones, and those that ignore leaves out.
func CheckFiles(dir string, ignore *tree.Ignore, files []launch.NamedFile) error {
	var problems []error
	for _, file := range files {
		info, err := os.Stat(filepath.Join(dir, file.Path))
		name := filepath.ToSlash(filepath.Clean(file.Path))
		if errors.Is(err, fs.ErrNotExist) {
			err = errors.New("it does not exist")
		}
		switch {
		case err != nil:
			problems = append(problems, fail.Advise(fail.Becausef(file.Missing, "looking for %s %s in %s: %w", file.Param, file.Path, dir, err), "%s", file.Next(func(path string) bool {
				_, err := os.Stat(filepath.Join(dir, path))
				return err == nil
			})))
		case info.IsDir():
			problems = append(problems, fail.Becausef(file.Missing, "looking for %s %s in %s: it is a folder; want a file", file.Param, file.Path, dir))
		case ignore.LeavesOut(name, false):
			problems = append(problems, fail.Advise(
				fail.Becausef(file.Missing, "sending %s %s of %s: .gitignore or .mlenvignore names it, so the nodes would not get it", file.Param, file.Path, dir),
				"echo '!/%s' >> %s", leftOut(ignore, name), filepath.Join(dir, tree.IgnoreFile)))
		}
	}
	return errors.Join(problems...)
}

// leftOut is the path that a line of an ignore file names: the file, or the first folder that it lies in.
func leftOut(ignore *tree.Ignore, name string) string {
	for n, r := range name {
		if r == '/' && ignore.LeavesOut(name[:n], true) {
			return name[:n+1]
		}
	}
	return name
}
