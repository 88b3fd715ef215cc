// SPDX-License-Identifier: Apache-2.0

package server

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

func TestOutside(t *testing.T) {
	state, temp := t.TempDir(), t.TempDir()
	base, home := filepath.Join(state, "work"), filepath.Join(state, "home")
	t.Setenv("TMPDIR", temp)
	began := time.Now().Add(-time.Minute)
	write := func(path string, size int64, at time.Time) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(path, size); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
	const large = 2 << 20
	now, before := time.Now(), began.Add(-time.Hour)
	work := filepath.Join(base, "job")
	write(filepath.Join(work, "model.pt"), large, now)
	write(filepath.Join(base, "data", "mnist", "train.gz"), large, now)
	write(filepath.Join(base, "data", "mnist", "test.gz"), large, now.Add(-time.Second))
	write(filepath.Join(base, "data", "old.gz"), large, before)
	write(filepath.Join(base, "other-job", "model.pt"), large, now)
	write(filepath.Join(base, ".other-job", "tree"), 1, now) // what treestore keeps about it
	write(filepath.Join(base, "notes.txt"), 10, now)
	write(filepath.Join(temp, "openai", "log.bin"), large, now)
	write(filepath.Join(temp, "tmpab12", "scratch"), large, now)
	write(filepath.Join(home, "results", "model.pt"), large, now)
	write(filepath.Join(home, ".cache", "model.pt"), large, now)
	data := agent.Outside{Path: filepath.Join(base, "data"), Files: 2, Bytes: 2 * large,
		Newest: filepath.Join(base, "data", "mnist", "train.gz")}
	log := agent.Outside{Path: filepath.Join(temp, "openai"), Files: 1, Bytes: large, Newest: filepath.Join(temp, "openai", "log.bin")}
	results := agent.Outside{Path: filepath.Join(home, "results"), Files: 1, Bytes: large, Newest: filepath.Join(home, "results", "model.pt")}
	for local, want := range map[bool][]agent.Outside{false: {data, results, log}, true: {data}} {
		if diff := cmp.Diff(want, outside(work, local, began)); diff != "" {
			t.Errorf("local %v: %s", local, diff)
		}
	}
}
