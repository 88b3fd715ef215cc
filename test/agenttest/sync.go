// SPDX-License-Identifier: Apache-2.0

package agenttest

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// Sync makes a tree of files the node's current one.
func (n *Node) Sync(files map[string]string) tree.Digest {
	n.t.Helper()
	hash, err := n.sync(n.t.Context(), n.t.TempDir(), files)
	if err != nil {
		n.t.Fatal(err)
	}
	return hash
}

func (n *Node) sync(ctx context.Context, dir string, files map[string]string) (tree.Digest, error) {
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)); err != nil {
			return "", err
		}
	}
	manifest, err := tree.Scan(ctx, dir, nil)
	if err != nil {
		return "", err
	}
	hash := manifest.Hash()
	encoded, err := json.Marshal(manifest)
	if err != nil {
		return "", err
	}
	var missing []tree.Digest
	if _, _, err = n.Client.PlanTree(ctx, hash, encoded, func(content tree.Digest) error {
		missing = append(missing, content)
		return nil
	}); err != nil {
		return "", err
	}
	var contents strings.Builder
	if err := tree.WriteContents(ctx, &contents, dir, manifest, missing, nil); err != nil {
		return "", err
	}
	if _, err := n.Client.SendTree(ctx, hash, 0, strings.NewReader(contents.String())); err != nil {
		return "", err
	}
	_, err = n.Client.SwitchTree(ctx, hash, agent.Switch{})
	return hash, err
}
