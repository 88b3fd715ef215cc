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

// TestSeeds: the changes of make mutants and the order of the unit tests have seeds with different defaults.
func TestSeeds(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"mutants"}, `-seed "1"`}, {[]string{"mutants", "SEED=4"}, `-seed "4"`},
		{[]string{"unit-1"}, "-shuffle=on"}, {[]string{"unit-1", "SEED=4"}, "-shuffle=4"},
	} {
		if out, err := makes(t, "../..", append(test.args, "--dry-run")...); err != nil || !strings.Contains(out, test.want) {
			t.Errorf("make %q would run, %v:\n%s\nwant %s", test.args, err, out, test.want)
		}
	}
}

// TestPictureNeedsAReport: without one, the browser would draw its own error page.
func TestPictureNeedsAReport(t *testing.T) {
	out, err := makes(t, t.TempDir(), "picture")
	if err == nil || !strings.Contains(out, "bin/demo.html is missing") || !strings.Contains(out, "make demo") {
		t.Errorf("got %v and %q, want make demo", err, out)
	}
}
