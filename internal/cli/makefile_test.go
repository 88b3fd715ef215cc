// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// makes runs make in a folder with the Makefile, without the variables of a make that runs this test.
func makes(t *testing.T, dir string, args ...string) (string, error) {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := exec.LookPath("make"); err != nil {
		t.Skip("this machine has no make")
	}
	args = append(args, "--no-print-directory", "--file="+filepath.Join(root, "Makefile"), "--include-dir="+root)
	cmd := exec.CommandContext(t.Context(), "make", args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "MAKEFLAGS=", "MAKELEVEL=")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestPictureNeedsAReport: without one, the browser would draw its own error page.
func TestPictureNeedsAReport(t *testing.T) {
	out, err := makes(t, t.TempDir(), "picture")
	if err == nil || !strings.Contains(out, "bin/demo.html is missing") || !strings.Contains(out, "make demo") {
		t.Errorf("got %v and %q, want make demo", err, out)
	}
}
