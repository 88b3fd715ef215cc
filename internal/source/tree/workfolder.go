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

const gitIgnoreFile = ".gitignore"

// LoadWorkIgnore reads what to leave out of a folder that somebody works in: what
// the .gitignore files name, in the folder, below it, and above it up to the top of its git
// repository, and after them, so that it has the last word, its .mlenvignore.
//
// Git keeps a file that was added although it is ignored; which those are is not read here,
// so a line !NAME in .mlenvignore must bring such a file back. Errors: InvalidInput.
func LoadWorkIgnore(dir string) (*Ignore, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fail.Becausef(fail.InvalidInput, "reading what to ignore: %w", err)
	}
	top := repositoryOf(dir)
	under, err := filepath.Rel(top, dir)
	if err != nil {
		return nil, fail.Becausef(fail.InvalidInput, "reading what to ignore: %w", err)
	}
	if under == "." {
		under = ""
	}
	w := workIgnore{top: top, Ignore: &Ignore{under: filepath.ToSlash(under)}}
	// Those above the folder, the outermost first.
	at := ""
	for part := range strings.SplitSeq(w.under, "/") {
		if part == "" {
			break
		}
		w.add(at, gitIgnoreFile)
		at = path.Join(at, part)
	}
	w.below(at)
	w.add(at, IgnoreFile)
	if err := errors.Join(w.wrong...); err != nil {
		return nil, fail.Because(fail.InvalidInput, err)
	}
	return w.Ignore, nil
}

// repositoryOf is the folder at or above dir that is a git repository's, or dir itself.
func repositoryOf(dir string) string {
	for at := dir; ; at = filepath.Dir(at) {
		if _, err := os.Lstat(filepath.Join(at, ".git")); err == nil {
			return at
		}
		if at == filepath.Dir(at) {
			return dir
		}
	}
}

// workIgnore collects the rules of files in folders below top.
type workIgnore struct {
	*Ignore
	top   string
	wrong []error
}

// below adds the .gitignore files of a folder, whose path is from top, and of those in it
// that are not left out.
func (w *workIgnore) below(at string) {
	w.add(at, gitIgnoreFile)
	entries, err := os.ReadDir(filepath.Join(w.top, filepath.FromSlash(at)))
	if err != nil {
		return // the scan says so
	}
	for _, entry := range entries {
		name := path.Join(at, entry.Name())
		from := strings.TrimPrefix(strings.TrimPrefix(name, w.under), "/")
		if entry.IsDir() && !w.leavesOut(from, true) {
			w.below(name)
		}
	}
}

// add adds the rules of one file, anchored to the folder that it lies in.
func (w *workIgnore) add(at, name string) {
	name = path.Join(at, name)
	content, err := os.ReadFile(filepath.Join(w.top, filepath.FromSlash(name)))
	if errors.Is(err, fs.ErrNotExist) {
		return
	} else if err != nil {
		w.wrong = append(w.wrong, fmt.Errorf("reading what to ignore: %w", err))
		return
	}
	rules, err := parseRules(name, content)
	w.wrong = append(w.wrong, err)
	for _, r := range rules {
		if at != "" {
			r.parts = slices.Concat(strings.Split(literal(at), "/"), r.parts)
		}
		w.rules = append(w.rules, r)
	}
}

// literal is a path as a pattern that matches it alone.
func literal(name string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(name)
}
