// SPDX-License-Identifier: Apache-2.0

package build

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func module(t *testing.T, main string) Builder {
	t.Helper()
	b := Builder{Source: t.TempDir(), Cache: t.TempDir()}
	write(t, filepath.Join(b.Source, "go.mod"), "module example.com/m\n\ngo 1.26\n")
	write(t, filepath.Join(b.Source, "go.sum"), "")
	write(t, filepath.Join(b.Source, "cmd", "p", "main.go"), main)
	return b
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

var set = Set{Name: "p", Module: ".", Packages: []string{"./cmd/p"}}

func TestBuildsOncePerSource(t *testing.T) {
	b := module(t, "package main\n\nfunc main() { println(\"one\") }\n")
	first, err := b.Build(t.Context(), set, &bytes.Buffer{})
	if err != nil {
		t.Fatal(err)
	}
	// A second Build must find this mark, not compile over it.
	write(t, filepath.Join(first, "mark"), "")
	if again, err := b.Build(t.Context(), set, &bytes.Buffer{}); err != nil || again != first {
		t.Fatalf("Build = %s, %v; want %s", again, err, first)
	}
	if _, err := os.Stat(filepath.Join(first, "mark")); err != nil {
		t.Errorf("compiled again: %v", err)
	}

	// A version of a set does not replace another one.
	later := set
	later.Version = "v2"
	if folder, err := b.Build(t.Context(), later, &bytes.Buffer{}); err != nil || folder == first {
		t.Errorf("Build of another version = %s, %v", folder, err)
	}
	if _, err := os.Stat(first); err != nil {
		t.Errorf("another version has replaced the set: %v", err)
	}

	write(t, filepath.Join(b.Source, "cmd", "p", "main.go"), "package main\n\nfunc main() { println(\"two\") }\n")
	second, err := b.Build(t.Context(), set, &bytes.Buffer{})
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(filepath.Join(second, "p")).CombinedOutput(); err != nil || string(out) != "two\n" {
		t.Errorf("the new program printed %q, %v", out, err)
	}
	if _, err := os.Stat(first); !os.IsNotExist(err) {
		t.Errorf("the old program is still in the cache: %v", err)
	}
}

func TestAFailedBuildLeavesNothingAndSaysWhy(t *testing.T) {
	b := module(t, "package main\n\nfunc main() { undefined() }\n")
	_, err := b.Build(t.Context(), set, &bytes.Buffer{})
	if err == nil || !strings.Contains(err.Error(), "undefined: undefined") {
		t.Errorf("Build = %v", err)
	}
	if left, _ := os.ReadDir(filepath.Join(b.Cache, "bin")); len(left) != 0 {
		t.Errorf("a failed build left %v", left)
	}
}
