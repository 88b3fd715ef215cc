// SPDX-License-Identifier: Apache-2.0

package tree_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

func TestNearby(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"pkg/main.py", "src/deep/main.py", "src/train.py", "run.sh", ".git/config", "pkg/__pycache__/main.pyc"} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "part"), 0o755); err != nil {
		t.Fatal(err)
	}
	names := tree.Names(dir)
	for missing, want := range map[string]string{
		"train.py":         "src/train.py",
		"deep/main.py":     "src/deep/main.py", // and not pkg/main.py
		"src/trian.py":     "deep/, train.py in src",
		"trian.py":         "part/, pkg/, run.sh, src/ in its top folder",
		"part/train2.py":   "nothing in part",
		"nowhere/other.py": "no folder nowhere, but part/, pkg/, run.sh, src/ in its top folder",
		"a/b/other.py":     "no folder a, but part/, pkg/, run.sh, src/ in its top folder",
	} {
		if got := tree.Nearby(names, missing); got != want {
			t.Errorf("%s: got %q, want %q", missing, got, want)
		}
	}
	if got := tree.Nearby(nil, "train.py"); got != "no file" {
		t.Errorf("of nothing: got %q", got)
	}
}
