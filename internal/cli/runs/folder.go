// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/source/git"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/syncrepo"
)

// packedFolder is a copy of the packedFolder that a run trains from, because the user may change files before the nodes are up.
type packedFolder struct {
	dir      string
	manifest tree.Manifest
	// from is the user's folder, and ignore what is left out of it.
	from   string
	ignore *tree.Ignore
}

// packFolder copies the folder and replaces it in values by the URL that names its content. Errors: InvalidInput,
// UnsafeTree, ScriptNotFound, RequirementsFailed.
func packFolder(ctx context.Context, pipeline *v1.Pipeline, values map[string][]string) (*packedFolder, error) {
	dir := values["repo-url"][0]
	if info, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, command.Usage(fail.Becausef(fail.InvalidInput, "looking at the folder to train from: %s does not exist; %s", dir,
			foldersNear(dir)))
	} else if err != nil {
		return nil, command.Usage(fail.Becausef(fail.InvalidInput, "looking at the folder to train from: %w", err))
	} else if !info.IsDir() {
		return nil, command.Usage(fail.Becausef(fail.InvalidInput, "looking at the folder to train from: %s is not a folder", dir))
	}
	// The other params can be checked even if this folder cannot be sent.
	values["repo-url"] = []string{git.FolderScheme}
	for _, param := range launch.FileParams() {
		if given := values[param]; len(given) == 1 {
			values[param] = []string{syncrepo.InFolder(dir, given[0])}
		}
	}
	ignore, err := tree.LoadWorkIgnore(dir)
	if err != nil {
		return nil, err
	}
	if err := syncrepo.CheckFiles(dir, ignore, func(param string) string { return launch.ParamValue(pipeline, values, param) }); err != nil {
		return nil, command.Usage(err)
	}
	manifest, err := tree.Scan(ctx, dir, ignore)
	if err != nil {
		return nil, adviseWhole(err, dir, launch.ParamValue(pipeline, values, "script"))
	}
	copied, err := claimfile.MkdirTemp("", "mlenv-folder-")
	if err != nil {
		return nil, fmt.Errorf("creating a folder for the copy: %w", err)
	}
	f := &packedFolder{dir: copied, from: dir, ignore: ignore}
	if err := copyTree(copied, dir, manifest); err != nil {
		f.remove()
		return nil, err
	}
	// The manifest must describe the copy: the user may have saved a file meanwhile.
	f.manifest, err = tree.Scan(ctx, copied, nil)
	if err == nil {
		err = git.CheckFolder(copied, smallFiles(f.manifest))
	}
	var requirements tree.Digest
	if given := values["requirements"]; err == nil && len(given) == 1 && given[0] != "" {
		requirements, err = syncrepo.RequirementsDigest(copied, given[0], f.manifest.Hash())
	}
	if err != nil {
		f.remove()
		return nil, err
	}
	values["repo-url"] = []string{syncrepo.SentURL(f.manifest.Hash(), requirements)}
	if commit := describeFolder(ctx, dir); values["revision"] == nil && commit != "" {
		values["revision"] = []string{commit}
	}
	return f, nil
}

// smallFiles returns the files that can be LFS pointers.
func smallFiles(m tree.Manifest) (names []string) {
	for _, entry := range m.Entries {
		if name, err := tree.Unescape(entry.Path); err == nil && entry.Kind == tree.File && entry.Size <= git.MaxPointer {
			names = append(names, filepath.FromSlash(name))
		}
	}
	return names
}

// adviseWhole adds to an error of reason UnsafeTree what sends the folder: a link may lead into the rest of its repository.
func adviseWhole(err error, dir, script string) error {
	if fail.ReasonOf(err) != fail.UnsafeTree {
		return err
	}
	const leaveOut = "lines in .mlenvignore leave entries out"
	absolute, _ := filepath.Abs(dir) // the scan has found it
	for top := filepath.Dir(absolute); top != filepath.Dir(top); top = filepath.Dir(top) {
		if _, missing := os.Stat(filepath.Join(top, ".git")); missing == nil {
			within, _ := filepath.Rel(top, absolute) // both are absolute
			return fail.Advise(err, "mlenv run %s %s   # the whole repository; or %s", top, filepath.Join(within, script), leaveOut)
		}
	}
	return fail.Advise(err, "%s", leaveOut)
}

// sayLeftOut tells how much the ignore files leave out, which may be data that the script reads.
func (f *packedFolder) sayLeftOut(out io.Writer) {
	const most = 10_000
	files, size := 0, int64(0)
	_ = filepath.WalkDir(f.from, func(path string, entry fs.DirEntry, err error) error {
		name, _ := filepath.Rel(f.from, path) // the path is below it
		switch {
		case err != nil || entry.IsDir() && entry.Name() == ".git":
			return fs.SkipDir
		case entry.IsDir() || !f.ignore.LeavesOut(filepath.ToSlash(name), false):
			return nil
		case files == most:
			return fs.SkipAll
		}
		files++
		if info, err := entry.Info(); err == nil {
			size += info.Size()
		}
		return nil
	})
	if files > 0 {
		atLeast := map[bool]string{true: "at least "}[files == most]
		tellUser(out, "Left out by .gitignore and .mlenvignore: %s%s, %s.\n", atLeast, humanize.Count(files, "file"), humanize.Bytes(size))
	}
}

// notFound is the path in the message of a FileNotFoundError. In a job's working directory it follows the job's ID.
var notFound = regexp.MustCompile(`No such file or directory: '(?:[^']*/\.mlenv/work/[^/']+/)?([^']+)'`)

// include returns the command that sends a file which the script misses, if the ignore files leave it out of the folder; else "".
func (f *packedFolder) include(message string) string {
	match := notFound.FindStringSubmatch(message)
	if f == nil || match == nil || !filepath.IsLocal(match[1]) || !f.ignore.LeavesOut(match[1], false) {
		return ""
	}
	if _, err := os.Stat(filepath.Join(f.from, match[1])); err != nil {
		return ""
	}
	return fmt.Sprintf("echo '!%s' >> %s   # the folder has this file, and .gitignore or .mlenvignore leaves it out", match[1],
		filepath.Join(f.from, tree.IgnoreFile))
}

// foldersNear describes the folders next to a missing one.
func foldersNear(dir string) string {
	parent := filepath.Dir(filepath.Clean(dir))
	entries, err := os.ReadDir(parent)
	for err != nil && parent != filepath.Dir(parent) {
		parent = filepath.Dir(parent)
		entries, err = os.ReadDir(parent)
	}
	const most = 12
	var names []string
	for _, entry := range entries {
		if entry.IsDir() && !strings.HasPrefix(entry.Name(), ".") {
			names = append(names, entry.Name())
		}
	}
	if parent == "." {
		parent = "this folder"
	}
	if len(names) == 0 {
		return parent + " has no folders"
	}
	return parent + " has " + humanize.FirstAnd(names, most)
}

// sentBy makes a follower send the folder to the nodes of its run.
func (f *packedFolder) sentBy(by *runFollower) {
	environment := launch.ParamValue(by.request.Pipeline, by.request.Values, "name")
	by.upload = func(ctx context.Context) error { return f.upload(ctx, by.clients, environment, by.display) }
	by.present = func(ctx context.Context, of *v1.PipelineRun) { launch.ShowSender(ctx, by.clients, of) }
}

func (f *packedFolder) remove() { claimfile.RemoveFolder(f.dir) }

func copyTree(to, from string, manifest tree.Manifest) error {
	for _, entry := range manifest.Entries {
		name, err := tree.Unescape(entry.Path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return fmt.Errorf("copying the folder: %w", err)
		}
		switch entry.Kind {
		case tree.Folder:
			err = os.MkdirAll(target, 0o755)
		case tree.Link:
			var leads string
			if leads, err = tree.Unescape(entry.Target); err == nil {
				err = os.Symlink(leads, target)
			}
		case tree.File:
			err = copyFile(target, filepath.Join(from, filepath.FromSlash(name)), entry.Executable)
		}
		if err != nil {
			return fmt.Errorf("copying the folder: %w", err)
		}
	}
	return nil
}

func copyFile(to, from string, executable bool) error {
	in, err := claimfile.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	mode := os.FileMode(0o644)
	if executable {
		mode = 0o755
	}
	out, err := claimfile.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// describeFolder returns the commit of the folder, with -dirty if it has changes; "" without git.
func describeFolder(ctx context.Context, dir string) string {
	repository, err := git.OpenFolder(ctx, dir)
	if err != nil {
		return ""
	}
	defer repository.Close()
	commit, err := repository.Commit(ctx)
	if err != nil {
		return ""
	}
	if changed, err := repository.Changed(ctx); err != nil || changed {
		return commit + "-dirty"
	}
	return commit
}

func (f *packedFolder) upload(ctx context.Context, clients *kube.Clients, environment string, display *display) error {
	set, err := env.Of(clients, environment).Nodes(ctx, "")
	if err != nil {
		return err
	}
	defer set.Close()
	return syncrepo.Upload(ctx, command.TextLog(folderLog{display}), set, f.dir, f.manifest)
}

type folderLog struct{ display *display }

func (l folderLog) Write(p []byte) (int, error) {
	l.display.print("[folder] %s", strings.TrimSuffix(string(p), "\n"))
	return len(p), nil
}
