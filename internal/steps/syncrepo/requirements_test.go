package syncrepo

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent/agenttest"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// fakePython is a python3 with venv and pip: it notes what is installed in the
// file installed, fails for "no-such-package" and never ends for "endless".
func fakePython(t *testing.T) (installed string) {
	t.Helper()
	dir := t.TempDir()
	installed = filepath.Join(dir, "installed")
	script := fmt.Sprintf(`#!/bin/sh
for last; do :; done
[ "$1" = -c ] && cat %[1]s.version
case $2 in
venv) mkdir -p "$last/bin" && cp "$0" "$last/bin/python3";;
pip)
  if grep -q no-such-package "$last"; then echo "ERROR: No matching distribution found for no-such-package"; exit 1; fi
  if grep -q endless "$last"; then echo waiting; exec sleep 1000; fi
  cat "$last" >> %[1]s;;
esac
`, installed)
	write(t, dir, map[string]string{"installed.version": "3.13"})
	if err := os.WriteFile(filepath.Join(dir, "python3"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return installed
}

// installer has two nodes on one shared volume with the files in their tree. The
// agents' own program is the test's.
func installer(t *testing.T, files map[string]string) (sender, requirements, tree.Digest) {
	t.Helper()
	agents := agenttest.StartWith(t, 2, agenttest.Options{Shared: true})
	dir := t.TempDir()
	write(t, dir, files)
	hash, err := sendDir(t.Context(), quiet(), setOf(agents), dir)
	if err != nil {
		t.Fatal(err)
	}
	content, err := readRequirements(dir, "requirements.txt")
	if err != nil {
		t.Fatal(err)
	}
	return sender{nodes: setOf(agents), log: quiet()},
		requirements{name: "requirements.txt", content: content, program: agents[0].Config.Program, venvs: t.TempDir(), timeout: time.Minute}, hash
}

func TestRequirementsAreInstalledOnce(t *testing.T) {
	installed := fakePython(t)
	s, needs, hash := installer(t, map[string]string{"requirements.txt": "einops==0.8.1\n"})
	first, err := s.install(t.Context(), needs, hash)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := s.install(t.Context(), needs, hash); err != nil || again != first {
		t.Errorf("the same file again: %s, %v; want %s", again, err, first)
	}
	if got, err := os.ReadFile(installed); err != nil || string(got) != "einops==0.8.1\n" {
		t.Errorf("installed %q, %v; want it once, for two nodes that share storage", got, err)
	}
	if _, err := os.Stat(filepath.Join(first, "bin", "python3")); err != nil {
		t.Error(err)
	}
	write(t, filepath.Dir(installed), map[string]string{"installed.version": "3.14"})
	if again, err := s.install(t.Context(), needs, hash); err != nil || again != first {
		t.Errorf("the same file with another image's Python: %s, %v; want %s", again, err, first)
	}
	if got, err := os.ReadFile(installed); err != nil || string(got) != "einops==0.8.1\neinops==0.8.1\n" {
		t.Errorf("installed %q, %v; want it again for another Python", got, err)
	}
	needs.content = []byte("einops==0.9\n")
	if other, err := s.install(t.Context(), needs, hash); err != nil || other == first {
		t.Errorf("another file: %s, %v; want a folder of its own", other, err)
	}
}

func TestRequirementsThatFail(t *testing.T) {
	fakePython(t)
	for _, tc := range []struct {
		content string
		timeout time.Duration
		words   string
	}{
		{"no-such-package\n", time.Minute, "installing requirements.txt on node 0: pip failed\n  ERROR: No matching distribution found for no-such-package"},
		{"endless\n", 500 * time.Millisecond, "installing requirements.txt on node 0: pip had not ended after 500ms"},
	} {
		t.Run(strings.TrimSpace(tc.content), func(t *testing.T) {
			s, needs, hash := installer(t, map[string]string{"requirements.txt": tc.content})
			needs.timeout = tc.timeout
			venv, err := s.install(t.Context(), needs, hash)
			if fail.ReasonOf(err) != fail.RequirementsFailed || !strings.Contains(err.Error(), tc.words) || !strings.Contains(fail.NextOf(err), "rank-0.log") {
				t.Errorf("got %s: %v (%s); want RequirementsFailed with %q", fail.ReasonOf(err), err, fail.NextOf(err), tc.words)
			}
			if _, err := os.Stat(filepath.Join(venv, ".complete")); !os.IsNotExist(err) {
				t.Errorf("the environment passes for complete: %v", err)
			}
		})
	}
}
