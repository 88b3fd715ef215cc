package syncrepo

import (
	"context"
	"log/slog"

	"github.com/ml-dev-env/ml-dev-env/internal/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/tree"
)

// Send makes the folder dir, less what its .mlenvignore names, the current tree
// of all nodes, as the step does with what it fetched. Returned is the tree's
// hash, which every node confirmed. Errors: UnsafeTree, SyncFailed, AgentUnreachable.
func Send(ctx context.Context, log *slog.Logger, set nodes.Set, dir string) (tree.Digest, error) {
	m, err := scan(ctx, dir)
	if err != nil {
		return "", err
	}
	s := sender{nodes: set, log: log}
	hash, err := s.send(ctx, dir, m)
	if err != nil {
		return "", err
	}
	return hash, s.switchTo(ctx, hash, "")
}

// scan describes the folder, less what its .mlenvignore names. Errors: UnsafeTree.
func scan(ctx context.Context, dir string) (tree.Manifest, error) {
	ignore, err := tree.LoadIgnore(dir)
	if err != nil {
		return tree.Manifest{}, err
	}
	return tree.Scan(ctx, dir, ignore)
}
