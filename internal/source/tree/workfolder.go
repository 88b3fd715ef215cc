package tree

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// LoadWorkIgnore reads what to leave out of a folder that a user works in: what the .gitignore files name, in the
// folder, below it, and above it up to the top of its git repository, and then what its .mlenvignore names, which
// has the last word.
//
// Git keeps a tracked file although it is ignored. LoadWorkIgnore does not know which files are tracked, so a line
// !NAME in .mlenvignore must include such a file. Errors: InvalidInput.
func LoadWorkIgnore(dir string) (*Ignore, error) {
	w, err := newWorkReader(dir)
	if err != nil {
		return nil, fail.Becausef(fail.InvalidInput, "reading what to ignore: %w", err)
	}
	defer w.root.Close()
	for n, r := range w.under {
		if n == 0 {
			w.add("", ".gitignore")
		}
		if r == '/' {
			w.add(w.under[:n], ".gitignore")
		}
	}
	w.below(w.under)
	w.add(w.under, IgnoreFile)
	return w.result()
}

// ignoreReader collects the rules of files in folders below root, such as the top of the git repository.
type ignoreReader struct {
	*Ignore
	root  *os.Root
	wrong []error
}

func (w *ignoreReader) result() (*Ignore, error) {
	if err := errors.Join(w.wrong...); err != nil {
		return nil, fail.Because(fail.InvalidInput, err)
	}
	return w.Ignore, nil
}

func newWorkReader(dir string) (*ignoreReader, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	// A link may lead into the folder from another repository.
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return nil, err
	}
	top := repositoryOf(dir)
	under, err := filepath.Rel(top, dir)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(top)
	return &ignoreReader{Ignore: &Ignore{under: strings.TrimPrefix(path.Join("/", filepath.ToSlash(under)), "/")}, root: root}, err
}

// repositoryOf returns the top of the git repository that dir lies in, or dir if there is none.
func repositoryOf(dir string) string {
	for folder := dir; ; folder = filepath.Dir(folder) {
		if _, err := os.Lstat(filepath.Join(folder, ".git")); err == nil {
			return folder
		}
		if folder == filepath.Dir(folder) {
			return dir
		}
	}
}

// below adds the .gitignore files of a folder, whose path is relative to root, and of the folders in it that are
// not left out.
func (w *ignoreReader) below(folder string) {
	w.add(folder, ".gitignore")
	entries, err := os.ReadDir(filepath.Join(w.root.Name(), filepath.FromSlash(folder)))
	if err != nil {
		return // the scan reports it
	}
	for _, entry := range entries {
		name := path.Join(folder, entry.Name())
		if entry.IsDir() && !w.leavesOut(strings.TrimPrefix(strings.TrimPrefix(name, w.under), "/"), true) {
			w.below(name)
		}
	}
}

// add adds the rules of one file, anchored to the folder that it lies in.
func (w *ignoreReader) add(folder, name string) {
	isGit := name == ".gitignore"
	name = path.Join(folder, name)
	if info, err := w.root.Lstat(filepath.FromSlash(name)); isGit && err == nil && info.Mode()&fs.ModeSymlink != 0 {
		return // git does not follow it either
	}
	content, err := ReadFile(w.root, filepath.FromSlash(name), maxIgnore)
	if errors.Is(err, fs.ErrNotExist) {
		return
	} else if err != nil {
		w.wrong = append(w.wrong, fmt.Errorf("reading what to ignore: %w", err))
		return
	}
	rules, err := parseRules(name, content)
	w.wrong = append(w.wrong, err)
	for _, r := range rules {
		if folder != "" {
			r.parts = slices.Concat(strings.Split(literal.Replace(folder), "/"), r.parts)
		}
		w.rules = append(w.rules, r)
	}
}

// literal makes a pattern of a path that matches it alone.
var literal = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`)
