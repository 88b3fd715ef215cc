// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent/server"
)

// A shell starts in the environment's own repository once one was synced, also by the link that leads to it, and in the workspace
// before. Environments that share a claim have a repository each.
func TestShellsStartInTheRepository(t *testing.T) {
	for _, own := range []string{"", "environments/ml-dev-env-a"} {
		workspace := t.TempDir()
		paths := server.Paths{Workspace: workspace}
		if own != "" {
			paths.Own = filepath.Join(workspace, own)
		}
		repository := filepath.Join(workspace, own, "repo")
		start := func(when, want string) {
			t.Helper()
			if got := (server.Config{Paths: paths}).ShellFolder(); got != want {
				t.Errorf("%s: %s, want %s", when, got, want)
			}
		}
		start("without a repository", workspace)
		tree := filepath.Join(workspace, "tree")
		if err := os.MkdirAll(filepath.Dir(repository), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(tree, repository); err != nil {
			t.Fatal(err)
		}
		start("with a link that leads nowhere", workspace)
		if err := os.Mkdir(tree, 0o755); err != nil {
			t.Fatal(err)
		}
		start("with a repository", repository)
	}
}
