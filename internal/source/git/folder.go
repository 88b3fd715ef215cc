// SPDX-License-Identifier: Apache-2.0

package git

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
)

// Folder is a folder of this machine in a git repository. Others may have made both, for example as an archive, so git runs
// with a view of the repository: a folder of our own with links to its commits and its index. git never reads the
// configuration and attributes of the repository or its submodules, and so runs no program that they name: no
// fsmonitor, hook, filter, pager, external diff, text conversion, credential helper, ssh or gpg.
type Folder struct {
	*repository
	dir string
}

// folderLimits bound what git does for a folder.
var folderLimits = limits{disk: math.MaxInt64, output: usualLimits.output}

// folderPatience is how long a command of git may take. A FIFO in place of a file would block it for ever.
const folderPatience = 30 * time.Second

// maxSmall bounds the files of a repository that mlenv reads itself, in bytes.
const maxSmall = 64 << 10

// OpenFolder opens the repository that the folder dir lies in. An embedded bare repository is none: only a repository's .git
// counts.
func OpenFolder(ctx context.Context, dir string) (*Folder, error) {
	dir, err := filepath.Abs(dir)
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return nil, err
	}
	found, err := findRepository(dir)
	if err != nil {
		return nil, err
	}
	scratch, err := claimfile.MkdirTemp("", "mlenv-git-")
	if err != nil {
		return nil, err
	}
	p := &programs{log: slog.New(slog.DiscardHandler), scratch: scratch, limits: folderLimits, env: environment(scratch, safeSettings)}
	f := &Folder{dir: dir, repository: &repository{programs: p, dir: filepath.Join(scratch, "view"), worktree: found.top}}
	if err := f.view(ctx, found); err != nil {
		f.Close()
		return nil, fmt.Errorf("reading the git repository of %s: %w", dir, err)
	}
	return f, nil
}

// Close removes what git needed.
func (f *Folder) Close() { claimfile.RemoveFolder(f.scratch) }

// Commit returns the hash of the checked out commit.
func (f *Folder) Commit(ctx context.Context) (string, error) {
	return f.run(ctx, "rev-parse", "--verify", "HEAD^{commit}")
}

// Changed reports whether a file in the folder differs from the commit, or is new and not ignored by git.
func (f *Folder) Changed(ctx context.Context) (bool, error) {
	// Of submodules, only the commit counts: git would read their configuration to look for changed files.
	changes, err := f.run(ctx, "status", "--porcelain", "--ignore-submodules=dirty", "--untracked-files=normal", "--", ".")
	return changes != "", err
}

func (f *Folder) run(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, folderPatience)
	defer cancel()
	text, err := f.runGit(ctx, slices.Concat([]string{"--no-pager", "-C", f.dir}, args)...)
	return strings.TrimSpace(text), err
}

// location has the absolute paths of a repository.
type location struct {
	// top is the top folder of the work tree, and dir its .git.
	top, dir string
	// common has what all work trees of the repository share: dir, except in a work tree of git worktree.
	common string
}

// findRepository looks for .git as git does, in the folder and those above it. Errors: fs.ErrNotExist for none.
func findRepository(dir string) (location, error) {
	for top := dir; ; top = filepath.Dir(top) {
		info, err := os.Stat(filepath.Join(top, ".git"))
		switch {
		case err == nil:
			return newLocation(top, info)
		case top == filepath.Dir(top):
			return location{}, fmt.Errorf("looking for the git repository of %s: %w", dir, fs.ErrNotExist)
		}
	}
}

func newLocation(top string, info fs.FileInfo) (location, error) {
	r := location{top: top, dir: filepath.Join(top, ".git")}
	if !info.IsDir() {
		text, err := readSmall(r.dir)
		if err != nil {
			return r, err
		}
		r.dir = resolve(top, strings.TrimSpace(strings.TrimPrefix(text, "gitdir:")))
	}
	r.common = r.dir
	if text, err := readSmall(filepath.Join(r.dir, "commondir")); err == nil {
		r.common = resolve(r.dir, strings.TrimSpace(text))
	}
	return r, nil
}

func resolve(from, path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(from, path)
}

func readSmall(path string) (string, error) {
	content, err := claimfile.Read(path, maxSmall)
	return string(content), err
}

// view creates the view of the repository.
func (f *Folder) view(ctx context.Context, found location) error {
	for _, folder := range []string{"home", "tmp", "view", "view/info"} {
		if err := os.Mkdir(filepath.Join(f.scratch, folder), 0o700); err != nil {
			return err
		}
	}
	head, err := readSmall(filepath.Join(found.dir, "HEAD"))
	if err != nil {
		return err
	}
	format, err := f.format(ctx, filepath.Join(found.common, "config"))
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(found.common, "reftable")); err == nil && found.dir != found.common {
		return fmt.Errorf("%s: a work tree of git worktree whose references are a reftable: want references as files", found.top)
	}
	for name, content := range map[string]string{"HEAD": head, "config": format} {
		if err := os.WriteFile(filepath.Join(f.repository.dir, name), []byte(content), 0o600); err != nil {
			return err
		}
	}
	links := map[string]string{"index": filepath.Join(found.dir, "index")}
	for _, name := range []string{"objects", "refs", "packed-refs", "reftable", "shallow", "info/exclude"} {
		links[name] = filepath.Join(found.common, name)
	}
	entries, err := os.ReadDir(found.dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), "sharedindex.") { // the larger part of a split index
			links[entry.Name()] = filepath.Join(found.dir, entry.Name())
		}
	}
	for name, path := range links {
		info, err := os.Stat(path)
		if err != nil || !info.IsDir() && !info.Mode().IsRegular() {
			continue // git does without it, or reports it
		}
		if err := os.Symlink(path, filepath.Join(f.repository.dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// formatKeys are the only settings of a repository that its view has too: how its files are to be read. Their values are
// single words; none is a path or a program.
var formatKeys = regexp.MustCompile(`^(extensions\.(objectformat|refstorage)|` +
	`core\.(filemode|ignorecase|symlinks|autocrlf|eol|checkstat|trustctime|precomposeunicode))$`)

var formatWord = regexp.MustCompile(`^[A-Za-z0-9]*$`)

// format returns the configuration of the view of the repository that has the configuration file.
func (f *Folder) format(ctx context.Context, file string) (string, error) {
	content, err := claimfile.Read(file, 16*maxSmall)
	if err != nil {
		return "", err
	}
	copied := filepath.Join(f.scratch, "config")
	if err := os.WriteFile(copied, content, 0o600); err != nil {
		return "", err
	}
	text, err := f.run(ctx, "config", "--file", copied, "--no-includes", "--null", "--list")
	if err != nil {
		return "", err
	}
	var b strings.Builder
	version := 0
	for entry := range strings.SplitSeq(text, "\x00") {
		key, value, hasValue := strings.Cut(entry, "\n")
		if !formatKeys.MatchString(key) || !formatWord.MatchString(value) {
			continue
		}
		section, name, _ := strings.Cut(key, ".")
		if section == "extensions" {
			version = 1
		}
		if !hasValue {
			value = "true"
		}
		fmt.Fprintf(&b, "[%s]\n\t%s = %s\n", section, name, value)
	}
	fmt.Fprintf(&b, "[core]\n\trepositoryformatversion = %d\n\tbare = false\n", version)
	return b.String(), nil
}
