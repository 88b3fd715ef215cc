package runs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/run"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/syncrepo"
)

// requirementsTime is what installing the requirements of a folder may take, as the Task has it.
const requirementsTime = 20 * time.Minute

// folder is what a run trains from in place of a repository: a copy, because the
// person goes on working while the nodes come up.
type folder struct {
	dir string
	// manifest is of dir.
	manifest     tree.Manifest
	requirements string
	environment  string
}

// isFolder is true of values whose repository is a folder of this machine.
func isFolder(values map[string][]string) bool {
	url := values["repo-url"]
	if len(url) != 1 {
		return false
	}
	return url[0] == "." || url[0] == ".." || strings.HasPrefix(url[0], "./") || strings.HasPrefix(url[0], "../") || filepath.IsAbs(url[0])
}

// packFolder copies the folder and puts what stands for it into values. Errors: InvalidInput, UnsafeTree, RequirementsFailed.
func packFolder(ctx context.Context, values map[string][]string) (*folder, error) {
	dir := values["repo-url"][0]
	if info, err := os.Stat(dir); err != nil {
		return nil, wrongUsage(fail.Becausef(fail.InvalidInput, "looking at the folder to train from: %w", err))
	} else if !info.IsDir() {
		return nil, wrongUsage(fail.Becausef(fail.InvalidInput, "looking at the folder to train from: %s is no folder", dir))
	}
	if err := checkScript(dir, values); err != nil {
		return nil, err
	}
	ignore, err := tree.LoadWorkIgnore(dir)
	if err != nil {
		return nil, err
	}
	manifest, err := tree.Scan(ctx, dir, ignore)
	if err != nil {
		return nil, err
	}
	copied, err := os.MkdirTemp("", "mlenv-folder-")
	if err != nil {
		return nil, fmt.Errorf("making a folder for the copy: %w", err)
	}
	f := &folder{dir: copied}
	if err := copyTree(copied, dir, manifest); err != nil {
		f.remove()
		return nil, err
	}
	// Of the copy: somebody may have saved a file between the two.
	if f.manifest, err = tree.Scan(ctx, copied, nil); err != nil {
		f.remove()
		return nil, err
	}
	var requirements tree.Digest
	if given := values["requirements"]; len(given) == 1 && given[0] != "" {
		f.requirements = given[0]
		if requirements, err = syncrepo.RequirementsDigest(copied, f.requirements); err != nil {
			f.remove()
			return nil, err
		}
	}
	values["repo-url"] = []string{syncrepo.SentURL(f.manifest.Hash(), requirements)}
	if values["revision"] == nil {
		values["revision"] = []string{describeFolder(ctx, dir)}
	}
	return f, nil
}

func (f *folder) remove() { _ = os.RemoveAll(f.dir) }

// checkScript finds out now what would be found out when the nodes are there. A script of launcher
// command may be a program of the image.
func checkScript(dir string, values map[string][]string) error {
	script, launcher := values["script"], values["launcher"]
	if len(script) != 1 || len(launcher) == 1 && launcher[0] == "command" {
		return nil
	}
	if _, err := os.Stat(filepath.Join(dir, script[0])); errors.Is(err, os.ErrNotExist) {
		return wrongUsage(fail.Becausef(fail.ScriptNotFound, "looking for the script %s in %s: %w", script[0], dir, err))
	}
	return nil
}

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
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	mode := os.FileMode(0o644)
	if executable {
		mode = 0o755
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// describeFolder is the commit that the folder is at, with -dirty where it has
// changes; "" where that cannot be told, as without git.
func describeFolder(ctx context.Context, dir string) string {
	git := func(args ...string) (string, error) {
		out, err := exec.CommandContext(ctx, "git", append([]string{"-C", dir}, args...)...).Output()
		return strings.TrimSpace(string(out)), err
	}
	commit, err := git("rev-parse", "HEAD")
	if err != nil {
		return ""
	}
	if changes, err := git("status", "--porcelain", "--", "."); err != nil || changes != "" {
		return commit + "-dirty"
	}
	return commit
}

// sender sends a folder as soon as the nodes of its run are there.
type sender struct {
	folder  *folder
	clients *kube.Clients
	run     *v1.PipelineRun
	display *display
	mu      sync.Mutex
	// detach ends the following when the folder is sent.
	detach bool
	// sent is true when the run needs nothing of this machine any more.
	sent bool
	// done tells once: nil, or why the run cannot even be cancelled. Without detach only the latter.
	done chan error
	// failed has why the folder was not sent, for which the run was cancelled.
	failed chan error
}

// leave is true where whoever follows can go: without the folder the run would hold its nodes for
// nothing. Else they are let go as soon as it is sent.
func (s *sender) leave() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.detach = true
	return s.folder == nil || s.sent
}

// arrived is true where somebody waits for that to go.
func (s *sender) arrived() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent = true
	return s.detach
}

// failure is why the folder was not sent, nil where it was.
func (s *sender) failure() error {
	select {
	case err := <-s.failed:
		return err
	default:
		return nil
	}
}

// observe is a launch.Observer that waits for the environment.
func (s *sender) observe(ctx context.Context) launch.Observer {
	return func(e launch.Event) {
		if e.Kind == launch.TaskEnded && e.Task == "provision" && e.Ended.Status == run.Succeeded {
			go s.send(ctx)
		}
	}
}

func (s *sender) send(ctx context.Context) {
	err := s.sendTo(ctx)
	switch {
	case ctx.Err() != nil:
		// Whoever followed has left already.
	case err != nil:
		// Nothing can come of the run any more.
		err = fmt.Errorf("sending the folder to the nodes: %w", err)
		s.display.say("== %v", err)
		s.failed <- err
		if cancelling := launch.Cancel(ctx, s.clients, s.run); cancelling != nil {
			s.done <- errors.Join(err, cancelling)
		}
	case s.arrived():
		s.done <- nil
	default:
		s.display.say("== the folder is on the nodes; from here on the run needs nothing of this machine")
	}
}

func (s *sender) sendTo(ctx context.Context) error {
	set, err := nodes.Connect(ctx, s.clients, s.folder.environment, "")
	if err != nil {
		return err
	}
	defer set.Close()
	began := time.Now()
	_, err = syncrepo.SendFolder(ctx, step.TextLog(sayer{s.display}), set, syncrepo.Folder{
		Dir: s.folder.dir, Manifest: s.folder.manifest, Requirements: s.folder.requirements, RequirementsTimeout: requirementsTime,
	})
	if err == nil {
		s.display.say("== sent in %s", humanize.Duration(time.Since(began)))
	}
	return err
}

// sayer writes lines to a display.
type sayer struct{ display *display }

func (s sayer) Write(p []byte) (int, error) {
	s.display.say("[folder] %s", strings.TrimSuffix(string(p), "\n"))
	return len(p), nil
}
