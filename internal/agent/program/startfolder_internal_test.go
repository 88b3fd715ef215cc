package program

import (
	"os"
	"path/filepath"
	"testing"
)

// A shell starts in the repository once one was synced, also by the link that leads to it, and in the workspace before.
func TestShellsStartInTheRepository(t *testing.T) {
	workspace := t.TempDir()
	repository := filepath.Join(workspace, "repo")
	if got := startFolder(repository, workspace); got != workspace {
		t.Errorf("without a repository: %s, want %s", got, workspace)
	}
	tree := filepath.Join(workspace, "tree")
	if err := os.Symlink(tree, repository); err != nil {
		t.Fatal(err)
	}
	if got := startFolder(repository, workspace); got != workspace {
		t.Errorf("with a link that leads nowhere: %s, want %s", got, workspace)
	}
	if err := os.Mkdir(tree, 0o755); err != nil {
		t.Fatal(err)
	}
	if got := startFolder(repository, workspace); got != repository {
		t.Errorf("with a repository: %s, want %s", got, repository)
	}
}
