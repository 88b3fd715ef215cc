// SPDX-License-Identifier: Apache-2.0

package rank

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestNewestLog(t *testing.T) {
	dir := t.TempDir()
	start := time.Now()
	for name, age := range map[string]time.Duration{
		"old.log": -time.Hour, "output/training.log": 2 * time.Minute, "output/other.out": time.Minute, "weights.bin": time.Hour,
		"a/b/c/d/deep.log": time.Hour, ".mlenv/runs/job/rank-2.log": time.Hour,
	} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte("x"), 0o644),
			os.Chtimes(path, time.Time{}, start.Add(age))); err != nil {
			t.Fatal(err)
		}
	}
	if got := newestLog(dir, start); got != "output/training.log" {
		t.Errorf("got %q", got)
	}
	if got := newestLog(dir, start.Add(time.Hour)); got != "" {
		t.Errorf("got %q, want none since then", got)
	}
}
