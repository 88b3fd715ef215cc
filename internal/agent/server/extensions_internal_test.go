// SPDX-License-Identifier: Apache-2.0

package server

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// A lock that no process holds is removed before a job starts, and one of a process that compiles stays.
func TestLocksOfExtensions(t *testing.T) {
	c := Config{Paths: Paths{Workspace: t.TempDir()}}
	folder := c.additions()[extensionsVariable]
	lock := func(name string) *os.File {
		path := filepath.Join(folder, name, "lock")
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		return file
	}
	held := lock("py312_cu126/fused_adam")
	defer held.Close()
	left := lock("cpu_adam")
	left.Close()
	before := time.Now().Add(-time.Hour)
	if err := os.Chtimes(left.Name(), before, before); err != nil {
		t.Fatal(err)
	}
	if got := oldestLock(folder); got != left.Name() {
		t.Errorf("the oldest lock is %q, want %q", got, left.Name())
	}
	if got := c.removeLocks(); !slices.Equal(got, []string{left.Name()}) {
		t.Errorf("removed %q, want %q alone", got, left.Name())
	}
	if _, err := os.Stat(held.Name()); err != nil {
		t.Error(err)
	}
	if got := oldestLock(filepath.Join(folder, "nothing")); got != "" {
		t.Errorf("a folder without extensions has the lock %q", got)
	}
}

// A local run removes no lock of the user's, wherever it is started.
func TestLocksOfOthersStay(t *testing.T) {
	here := t.TempDir()
	t.Chdir(here)
	locks := []string{"project/lock", ".terraform/plugins/lock", "a/b/lock"}
	for _, name := range locks {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	c := Config{Paths: Paths{Workspace: t.TempDir()}, Local: true}
	if got := c.removeLocks(); len(got) > 0 {
		t.Errorf("removed %q, want none", got)
	}
	for _, name := range locks {
		if _, err := os.Stat(name); err != nil {
			t.Error(err)
		}
	}
}
