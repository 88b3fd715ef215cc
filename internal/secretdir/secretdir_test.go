// SPDX-License-Identifier: Apache-2.0

package secretdir

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

func TestRead(t *testing.T) {
	dir := t.TempDir()
	full, empty := filepath.Join(dir, "wandb"), filepath.Join(dir, "gone")
	for path, content := range map[string]string{"wandb/WANDB_API_KEY": "k\n", "wandb/..data/x": "y", "gone/..data/x": "y"} {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct {
		dir  string
		want map[string]string
		err  bool
	}{
		{"", nil, false},
		{filepath.Join(dir, "none"), nil, false},
		{full, map[string]string{"WANDB_API_KEY": "k"}, false},
		{empty, nil, true},
		{filepath.Join(dir, "never"), nil, true},
	}
	for _, test := range tests {
		got, err := Read(test.dir)
		if diff := cmp.Diff(test.want, got); diff != "" || test.err != (err != nil) || test.err && fail.ReasonOf(err) != fail.InvalidInput {
			t.Errorf("Read(%q) = %v, %v; want %v", test.dir, got, err, test.want)
		}
	}
}
