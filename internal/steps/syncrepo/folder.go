package syncrepo

import (
	"context"
	"log/slog"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// Folder is one to make the current tree of all nodes.
type Folder struct {
	Dir string
	// Ignore says what of it is left out.
	Ignore *tree.Ignore
	// Manifest is of the folder if the caller has scanned it and nobody has changed it since. If it has no
	// entries, SendFolder scans the folder.
	Manifest tree.Manifest
	// Requirements is the path in it of a pip file to install, "" for none, and
	// RequirementsTimeout the time for that.
	Requirements        string
	RequirementsTimeout time.Duration
}

// SendFolder makes the folder the current tree of all nodes, as the step does with what it
// fetched. Returned is the tree's hash, which every node confirmed. Errors: UnsafeTree,
// SyncFailed, AgentUnreachable, RequirementsFailed.
func SendFolder(ctx context.Context, log *slog.Logger, set nodes.Set, f Folder) (tree.Digest, error) {
	m := f.Manifest
	if len(m.Entries) == 0 {
		var err error
		if m, err = tree.Scan(ctx, f.Dir, f.Ignore); err != nil {
			return "", err
		}
	}
	needs := requirements{name: f.Requirements, program: agent.Program, venvs: agent.State + "/venvs", timeout: f.RequirementsTimeout}
	return sender{nodes: set, log: log}.deliver(ctx, f.Dir, m, needs)
}

// deliver sends the tree, installs what it needs, and then switches to it.
func (s sender) deliver(ctx context.Context, dir string, m tree.Manifest, needs requirements) (hash tree.Digest, err error) {
	if needs.name != "" {
		if needs.content, err = readRequirements(dir, needs.name); err != nil {
			return "", err
		}
	}
	if hash, err = s.send(ctx, dir, m); err != nil {
		return "", err
	}
	venv := ""
	if needs.name != "" {
		if venv, err = s.install(ctx, needs, hash); err != nil {
			return "", err
		}
	}
	return hash, s.switchTo(ctx, hash, venv)
}

// scan describes the folder, less what its .mlenvignore names. Errors: UnsafeTree.
func scan(ctx context.Context, dir string) (tree.Manifest, error) {
	ignore, err := tree.LoadIgnore(dir)
	if err != nil {
		return tree.Manifest{}, err
	}
	return tree.Scan(ctx, dir, ignore)
}
