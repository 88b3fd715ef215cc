package tree

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// IgnoreFile lies at the top of a tree, says in gitignore syntax what is left
// out, and is itself never left out.
const IgnoreFile = ".mlenvignore"

// Ignore says what a scan leaves out. Always left out, in every folder, are .git,
// __pycache__, *.pyc and .DS_Store. The nil Ignore leaves out only these.
type Ignore struct {
	rules []rule
	// only, where it is not nil, has the paths of Only: true for one of them, false for a folder on the way to one.
	only map[string]bool
	// under is the path of the tree in the folder that the rules are anchored to, "" where
	// that is the tree itself.
	under string
}

// rule is one line. Its pattern is matched from the top of the tree, part by
// part; a part ** stands for any number of parts.
type rule struct {
	parts       []string
	foldersOnly bool
	include     bool
}

// LoadIgnore reads the ignore file of the tree at dir; there need not be one. A
// pattern that cannot be is InvalidInput.
func LoadIgnore(dir string) (*Ignore, error) {
	content, err := readIgnore(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fail.Becausef(fail.InvalidInput, "reading what to ignore: %w", err)
	}
	return ParseIgnore(content)
}

// maxIgnore bounds an ignore file, in bytes.
const maxIgnore = 1 << 20

// readIgnore reads the ignore file below dir. A link of a repository must not lead to
// a file of this machine, whose lines the errors would show.
func readIgnore(dir string) ([]byte, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	switch info, err := root.Stat(IgnoreFile); {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular() || info.Size() > maxIgnore:
		return nil, fmt.Errorf("%s: %s of %d bytes: want a file of at most %d bytes", IgnoreFile, info.Mode().Type(), info.Size(), maxIgnore)
	}
	return root.ReadFile(IgnoreFile)
}

// ParseIgnore reads the content of an ignore file. All bad lines, of reason
// InvalidInput, are told at once.
func ParseIgnore(content []byte) (*Ignore, error) {
	rules, err := parseRules(IgnoreFile, content)
	if err != nil {
		return nil, fail.Because(fail.InvalidInput, err)
	}
	return &Ignore{rules: rules}, nil
}

// parseRules reads the lines of the file of that name. All bad ones are told at once.
func parseRules(name string, content []byte) ([]rule, error) {
	var rules []rule
	var wrong []error
	content = bytes.TrimPrefix(content, []byte("\xef\xbb\xbf")) // a byte order mark
	number := 0
	for line := range strings.Lines(string(content)) {
		number++
		r, err := parseRule(strings.TrimRight(line, "\r\n"))
		if err != nil {
			wrong = append(wrong, fmt.Errorf("%s:%d: %q: %w", name, number, strings.TrimSpace(line), err))
		}
		if r != nil {
			rules = append(rules, *r)
		}
	}
	return rules, errors.Join(wrong...)
}

// parseRule is nil for a line without a pattern.
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
		return nil, errors.New("character classes by name are not understood: want ranges, as in [a-z]")
	}
	pattern = strings.ReplaceAll(pattern, "[!", "[^") // as package path writes it
	if _, err := path.Match(pattern, ""); err != nil {
		return nil, fmt.Errorf("not a pattern: %w", err)
	}
	if strings.Contains(pattern, "/") {
		r.parts = strings.Split(strings.TrimPrefix(pattern, "/"), "/")
	} else {
		r.parts = []string{"**", pattern}
	}
	return &r, nil
}

// LeavesOut says of a path in the tree, with slashes, whether a scan leaves it out:
// it, or a folder that it lies in. folder is whether it is a folder itself.
func (i *Ignore) LeavesOut(name string, folder bool) bool {
	for at, r := range name {
		if r == '/' && i.leavesOut(name[:at], true) {
			return true
		}
	}
	return i.leavesOut(name, folder)
}

// leavesOut says whether the entry at a path, unescaped and with slashes, is left
// out. It takes for granted that the folders it lies in are not; so, as in git,
// nothing comes back whose folder is left out.
func (i *Ignore) leavesOut(name string, folder bool) bool {
	switch base := path.Base(name); {
	case base == ".git", base == "__pycache__", base == ".DS_Store", strings.HasSuffix(base, ".pyc"):
		return true
	case i == nil:
		return false
	case i.only != nil:
		return !i.wanted(name)
	case name == IgnoreFile:
		return false
	}
	parts := strings.Split(path.Join(i.under, name), "/")
	for n := len(i.rules) - 1; n >= 0; n-- { // the last one that matches decides
		r := i.rules[n]
		if (folder || !r.foldersOnly) && matches(r.parts, parts) {
			return !r.include
		}
	}
	return false
}

func matches(pattern, parts []string) bool {
	for len(pattern) > 0 {
		if pattern[0] == "**" {
			if len(pattern) == 1 {
				return len(parts) > 0
			}
			for skip := range len(parts) {
				if matches(pattern[1:], parts[skip:]) {
					return true
				}
			}
			return false
		}
		if len(parts) == 0 {
			return false
		}
		if ok, err := path.Match(pattern[0], parts[0]); err != nil || !ok {
			return false
		}
		pattern, parts = pattern[1:], parts[1:]
	}
	return len(parts) == 0
}
