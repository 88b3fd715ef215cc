// SPDX-License-Identifier: Apache-2.0

package tree

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// IgnoreFile at the top of a tree names, in gitignore syntax, what is left out. It is itself never left out.
const IgnoreFile = ".mlenvignore"

// maxIgnore bounds an ignore file, in bytes. Matching a path costs at most the file's size times the path's length.
const maxIgnore = 64 << 10

// Ignore decides what a scan leaves out: always .git, __pycache__, *.pyc and .DS_Store, in every folder. The nil
// Ignore leaves out only these.
type Ignore struct {
	rules []rule
	// only, unless nil, has the paths of OnlyPaths as true, and the folders that lead to them as false.
	only map[string]bool
	// except, unless nil, is what Except leaves out, too.
	except func(name string, folder bool) bool
	// under is the path of the tree in the folder that the rules are anchored to, "" if that is the tree itself.
	under string
}

// rule is one line. Its pattern matches the parts of a path from the top of the tree; ** matches any number of parts.
type rule struct {
	parts       []string
	foldersOnly bool
	include     bool
}

// LoadIgnore reads the ignore file of the tree at dir, if it has one. All invalid patterns are one error, InvalidInput.
func LoadIgnore(dir string) (*Ignore, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fail.Becausef(fail.InvalidInput, "reading what to ignore: %w", err)
	}
	defer root.Close()
	r := &ignoreReader{Ignore: &Ignore{}, root: root}
	r.add("", IgnoreFile)
	return r.result()
}

func parseRules(name string, content []byte) ([]rule, error) {
	var rules []rule
	var wrong []error
	content = bytes.TrimPrefix(content, []byte("\xef\xbb\xbf")) // a byte order mark
	for i, line := range strings.Split(string(content), "\n") {
		r, err := parseRule(strings.TrimRight(line, "\r"))
		if err != nil {
			wrong = append(wrong, fmt.Errorf("%s:%d: %q: %w", name, i+1, strings.TrimSpace(line), err))
		}
		if r != nil {
			rules = append(rules, *r)
		}
	}
	return rules, errors.Join(wrong...)
}

// parseRule returns nil for a line without a pattern.
func parseRule(line string) (*rule, error) {
	if strings.HasPrefix(line, "#") {
		return nil, nil
	}
	trimmed := strings.TrimRight(line, " ")
	if strings.HasSuffix(trimmed, `\`) && len(trimmed) < len(line) {
		trimmed += " " // a quoted space counts
	}
	var r rule
	pattern, include := strings.CutPrefix(trimmed, "!")
	r.include = include
	pattern, r.foldersOnly = strings.CutSuffix(pattern, "/")
	if pattern == "" {
		return nil, nil
	}
	if strings.Contains(pattern, "[:") {
		return nil, errors.New("named character classes are not supported: want ranges, as in [a-z]")
	}
	pattern = strings.ReplaceAll(pattern, "[!", "[^") // as package path writes it
	if _, err := path.Match(pattern, ""); err != nil {
		return nil, fmt.Errorf("not a pattern: %w", err)
	}
	if !strings.Contains(pattern, "/") {
		pattern = "**/" + pattern
	}
	r.parts = strings.Split(strings.TrimPrefix(pattern, "/"), "/")
	if r.parts[len(r.parts)-1] == "**" {
		r.parts = append(r.parts, "*") // what lies in the folder, but not the folder
	}
	return &r, nil
}

// LeavesOut reports whether a scan leaves out a path in the tree, or a folder that it lies in. The path has slashes;
// folder is true if it is a folder itself.
func (i *Ignore) LeavesOut(name string, folder bool) bool {
	for n, r := range name {
		if r == '/' && i.leavesOut(name[:n], true) {
			return true
		}
	}
	return i.leavesOut(name, folder)
}

// leavesOut is LeavesOut for a path whose parent folder is not left out: as in git, no line includes a path again
// whose folder is left out.
func (i *Ignore) leavesOut(name string, folder bool) bool {
	switch base := path.Base(name); {
	case base == ".git", base == "__pycache__", base == ".DS_Store", strings.HasSuffix(base, ".pyc"):
		return true
	case i == nil:
		return false
	case i.except != nil && i.except(name, folder):
		return true
	case i.only != nil:
		return !i.selects(name)
	case name == IgnoreFile:
		return false
	}
	parts := strings.Split(path.Join(i.under, name), "/")
	for _, r := range slices.Backward(i.rules) { // the last match decides
		if (folder || !r.foldersOnly) && matches(r.parts, parts) {
			return !r.include
		}
	}
	return false
}

// matches goes back to the last ** alone: an earlier one gains nothing by taking more parts. So a comparison costs
// at most the pattern's length times the path's.
func matches(pattern, parts []string) bool {
	p, n := 0, 0
	star, from := -1, 0 // the last **, and the first part after those that it stands for
	for n < len(parts) {
		switch {
		case p < len(pattern) && pattern[p] == "**":
			star, from = p, n
			p++
		case p < len(pattern) && matchesPart(pattern[p], parts[n]):
			p++
			n++
		case star >= 0:
			from++
			p, n = star+1, from
		default:
			return false
		}
	}
	return p == len(pattern)
}

func matchesPart(pattern, part string) bool {
	ok, err := path.Match(pattern, part)
	return err == nil && ok
}

// OnlyPaths leaves out everything except what lies at or below the paths, which are relative, with slashes, and no
// patterns. Without paths, or with ".", it leaves out only what is always left out. A map, because a dataset may
// have a million paths.
func OnlyPaths(paths []string) *Ignore {
	only := map[string]bool{}
	for _, p := range paths {
		if p = path.Clean(p); p == "." {
			return nil
		}
		only[p] = true
		for parent := path.Dir(p); parent != "."; parent = path.Dir(parent) {
			if _, known := only[parent]; known {
				break
			}
			only[parent] = false
		}
	}
	if len(only) == 0 {
		return nil
	}
	return &Ignore{only: only}
}

// Except returns an Ignore that also leaves out the paths for which f is true.
func (i *Ignore) Except(f func(name string, folder bool) bool) *Ignore {
	var except Ignore
	if i != nil {
		except = *i
	}
	except.except = f
	return &except
}

// selects reports whether a path is at or below one of the paths of OnlyPaths, or is a folder that leads to one.
func (i *Ignore) selects(name string) bool {
	if _, known := i.only[name]; known {
		return true
	}
	for parent := path.Dir(name); parent != "."; parent = path.Dir(parent) {
		if i.only[parent] {
			return true
		}
	}
	return false
}

// LoadWorkIgnore reads what to leave out of a folder that a user works in: what the .gitignore files name, in the
// folder, below it, and above it up to the top of its git repository, and then what its .mlenvignore names, which
// has the last word. It does not know which files git tracks although they are ignored: a line !NAME in .mlenvignore
// must include them. Errors: InvalidInput.
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
	// A virtual environment is for one machine: its programs lead out of the folder.
	isVenv := func(name string, folder bool) bool {
		_, err := os.Lstat(filepath.Join(dir, filepath.FromSlash(name), "pyvenv.cfg"))
		return folder && err == nil
	}
	root, err := os.OpenRoot(top)
	return &ignoreReader{
		Ignore: &Ignore{under: strings.TrimPrefix(path.Join("/", filepath.ToSlash(under)), "/"), except: isVenv}, root: root,
	}, err
}

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

func (w *ignoreReader) add(folder, name string) {
	isGit := name == ".gitignore"
	name = path.Join(folder, name)
	if info, err := w.root.Lstat(filepath.FromSlash(name)); isGit && err == nil && info.Mode()&fs.ModeSymlink != 0 {
		return // git does not follow it either
	}
	content, err := claimfile.ReadIn(w.root, filepath.FromSlash(name), maxIgnore)
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
