// SPDX-License-Identifier: Apache-2.0

package syncrepo

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cause"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
)

// timeForPip is for tests in which pip ends by itself.
const timeForPip = time.Minute

// fakePython returns a python3 with venv and pip. It records what it installs in the file installed, fails for
// "no-such-package" and never ends for "endless".
func fakePython(t *testing.T) (installed string) {
	t.Helper()
	dir := t.TempDir()
	installed = filepath.Join(dir, "installed")
	script := fmt.Sprintf(`#!/bin/sh
for last; do :; done
[ "$#" = 3 ] && [ "$1-$2" = -I--c ] && cat '%[1]s.version'
case $* in
*' -m venv '*) mkdir -p "$last/bin" && cp "$0" "$last/bin/python3";;
*' install '*)
  if grep -q no-such-package "$last"; then echo "ERROR: No matching distribution found for no-such-package"; exit 1; fi
  if grep -q private "$last"; then
    echo "WARNING: Retrying after connection broken by 'SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] `+
		`certificate verify failed'))': /simple/private/"
    echo "ERROR: No matching distribution found for private"
    exit 1
  fi
  if grep -q limited "$last"; then echo "ERROR: Could not install requirement limited from https://pypi.example.com/limited.whl `+
		`because of HTTP error 429 Client Error: Too Many Requests for url: https://pypi.example.com/limited.whl"; exit 1; fi
  if grep -q endless "$last"; then echo waiting; exec sleep 1000; fi
  cat "$last" >> '%[1]s';;
esac
`, installed)
	write(t, dir, map[string]string{"installed.version": "3.13"})
	if err := os.WriteFile(filepath.Join(dir, "python3"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return installed
}

// installer returns an installer for two nodes on one shared volume whose tree has the files. The agents' own program is
// the test's.
func installer(t *testing.T, files map[string]string) (sender, requirements, tree.Digest) {
	t.Helper()
	return installerOn(t, agenttest.StartWith(t, 2, agenttest.Options{Shared: true}), files)
}

func installerOn(t *testing.T, agents []*agenttest.Node, files map[string]string) (sender, requirements, tree.Digest) {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, files)
	hash, err := sendDir(t.Context(), quiet(), setOf(agents), dir)
	if err != nil {
		t.Fatal(err)
	}
	digest, err := RequirementsDigest(dir, "requirements.txt", hash)
	if err != nil {
		t.Fatal(err)
	}
	return newSender(t.Context(), setOf(agents), quiet()),
		requirements{name: "requirements.txt", digest: digest, program: agents[0].Config.Program, venvs: t.TempDir(), timeout: timeForPip}, hash
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
	own := made(t, first)
	if len(own) != 1 {
		t.Fatalf("%d virtual environments, want one", len(own))
	}
	write(t, filepath.Dir(installed), map[string]string{"installed.version": "3.14"})
	if again, err := s.install(t.Context(), needs, hash); err != nil || again != first {
		t.Errorf("the same file with another image's Python: %s, %v; want %s", again, err, first)
	}
	if got, err := os.ReadFile(installed); err != nil || string(got) != "einops==0.8.1\neinops==0.8.1\n" {
		t.Errorf("installed %q, %v; want it again for another Python", got, err)
	}
	// A run with the first image may be training with the first one.
	both := made(t, first)
	if _, err := os.Stat(filepath.Join(own[0], ".complete")); err != nil || len(both) != 2 || !slices.Contains(both, own[0]) {
		t.Errorf("virtual environments %v, %v; want another one, and %s as it was", both, err, own[0])
	}
	for _, dir := range both {
		complete := filepath.Join(dir, ".complete")
		if err := errors.Join(os.Remove(complete), syscall.Mkfifo(complete, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if again, err := s.install(t.Context(), needs, hash); err != nil || again != first {
		t.Errorf("with a FIFO on the claim: %s, %v; want %s, installed again", again, err, first)
	}
	needs.digest = tree.Digest(strings.Repeat("9", 64))
	if other, err := s.install(t.Context(), needs, hash); err != nil || other == first {
		t.Errorf("another file: %s, %v; want a folder of its own", other, err)
	}
}

// An installation takes minutes, in which a connection may break.
func TestRequirementsSurviveABrokenConnection(t *testing.T) {
	installed := fakePython(t)
	agents := agenttest.StartWith(t, 2, agenttest.Options{Shared: true})
	for _, node := range agents {
		node.BreakWatch()()
	}
	s, needs, hash := installerOn(t, agents, map[string]string{"requirements.txt": "einops==0.8.1\n"})
	if _, err := s.install(t.Context(), needs, hash); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(installed); err != nil || string(got) != "einops==0.8.1\n" {
		t.Errorf("installed %q, %v; want it once", got, err)
	}
}

// TestRequirementsOfTheRepositoryItself: the same lines install other code after a commit.
func TestRequirementsOfTheRepositoryItself(t *testing.T) {
	fakePython(t)
	s, needs, hash := installer(t, map[string]string{"requirements.txt": "-e .\n", "pkg.py": "version = 1\n"})
	first, err := s.install(t.Context(), needs, hash)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write(t, dir, map[string]string{"requirements.txt": "-e .\n", "pkg.py": "version = 2\n"})
	if hash, err = sendDir(t.Context(), quiet(), s.nodes, dir); err != nil {
		t.Fatal(err)
	}
	if needs.digest, err = RequirementsDigest(dir, "requirements.txt", hash); err != nil {
		t.Fatal(err)
	}
	second, err := s.install(t.Context(), needs, hash)
	if err != nil || second == first {
		t.Errorf("the next commit has %s, %v; want another one than the commit before it", second, err)
	}
}

// made returns the folders of the virtual environments of a requirements file that have been published.
func made(t *testing.T, base string) (dirs []string) {
	t.Helper()
	names, err := filepath.Glob(base + "-*")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if target, err := os.Readlink(name); err == nil {
			dirs = append(dirs, filepath.Join(filepath.Dir(name), target))
		}
	}
	return dirs
}

func TestRequirementsThatFail(t *testing.T) {
	fakePython(t)
	const timeForPipToFail, timeForPipToStart = time.Minute, 2 * time.Second
	for _, tc := range []struct {
		content     string
		timeout     time.Duration
		words, next string
	}{
		{"no-such-package\n", timeForPipToFail, "installing requirements.txt on node 0: pip failed\n  ERROR: No matching distribution found " +
			"for no-such-package", ""},
		{"private\n", timeForPipToFail, "installing requirements.txt on node 0: pip does not trust the certificate of a server\n  WARNING: " +
			"Retrying", "network.trusted_ca"},
		{"limited\n", timeForPipToFail, "installing requirements.txt on node 0: pip: a server limits the number of requests\n  ERROR: Could " +
			"not install requirement limited", "--index-url"},
		{"endless\n", timeForPipToStart, "installing requirements.txt on node 0: pip did not end within 2s", ""},
	} {
		t.Run(strings.TrimSpace(tc.content), func(t *testing.T) {
			s, needs, hash := installer(t, map[string]string{"requirements.txt": tc.content})
			needs.timeout = tc.timeout
			venv, err := s.install(t.Context(), needs, hash)
			if fail.ReasonOf(err) != fail.RequirementsFailed || !strings.Contains(err.Error(), tc.words) ||
				!strings.Contains(fail.NextOf(err), tc.next) || !strings.Contains(fail.NextOf(err), "/rank-0.log on node 0") {
				t.Errorf("got %s: %v (%s); want RequirementsFailed with %q", fail.ReasonOf(err), err, fail.NextOf(err), tc.words)
			}
			if dirs := made(t, venv); len(dirs) > 0 {
				t.Errorf("the environment %v is published", dirs)
			}
		})
	}
}

// A run's node is gone when a user reads its error, so the user fetches the log from the claim.
func TestLogOfRequirementsAfterTheRun(t *testing.T) {
	needs := requirements{name: "pip.txt", job: cause.Job{Run: "nightly", Environment: "env", Namespace: "ns"}}
	last := agent.JobStatus{State: agent.Exited, Record: "/workspace/.mlenv/runs/venv-1",
		Ranks: []agent.RankStatus{{Tail: slices.Repeat([]string{"ERROR: " + strings.Repeat("x", 400)}, 30)}}}
	err := needs.failed(1, last)
	if got, want := fail.NextOf(err), "mlenv fetch nightly /workspace/.mlenv/runs/venv-1/rank-1.log -n ns   # the whole log"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	const mostResult = 700
	if len(err.Error()) > mostResult || strings.Count(fail.Details(err), "ERROR") != causeLines+shownLines {
		t.Errorf("%d bytes, want at most %d and the last lines apart:\n%s", len(err.Error()), mostResult, fail.Details(err))
	}
}

// A user at a laptop sees each line of pip once, and gets a command that prints the whole log.
func TestRequirementsOfAUser(t *testing.T) {
	needs := requirements{name: "pip.txt", job: cause.Job{Environment: "mine", Namespace: "ns"}}
	err := needs.failed(1, agent.JobStatus{State: agent.Exited, Record: "/workspace/.mlenv/runs/venv-1",
		Ranks: []agent.RankStatus{{Tail: []string{
			"Looking in indexes: https://pypi.org/simple", "ERROR: Could not find a version", "ERROR: No matching distribution found for torchh",
		}}}})
	want := "installing pip.txt on node 1: pip failed\n  ERROR: Could not find a version\n  ERROR: No matching distribution found for " +
		"torchh\n" +
		"its last lines:\n  Looking in indexes: https://pypi.org/simple"
	if got := fail.Details(err); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := fail.NextOf(err), "mlenv shell 1 --name=mine -n ns -- cat /workspace/.mlenv/runs/venv-1/rank-1.log   # the "+
		"whole log"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The exception with which the build of a package failed is the message, and not pip's own words about it. The files have what pip printed.
func TestWhyABuildFailed(t *testing.T) {
	for name, want := range map[string][]string{
		"setuptools-scm":    {"pip failed\n  LookupError: setuptools-scm was unable to detect version for", ""},
		"build-needs-torch": {"pip failed\n  ModuleNotFoundError: No module named 'torch'", "a line # mlenv: pip --no-build-isolation in r.txt"},
		"20":                {"pip failed\n  RuntimeError: CUDA_HOME is not set, and nvcc is not found", ""},
		"compiler":          {"pip failed\n  missing_header.c:1:10: fatal error: no_such_header.h: No such file or directory", ""},
	} {
		content, err := os.ReadFile("testdata/pip-" + name + ".txt")
		if err != nil {
			t.Fatal(err)
		}
		err = requirements{name: "r.txt"}.failed(0, agent.JobStatus{State: agent.Exited, Ranks: []agent.RankStatus{
			{Tail: strings.Split(string(content), "\n"), Exit: agent.Exit{Code: 1}}}})
		if !strings.Contains(err.Error(), want[0]) || !strings.Contains(fail.NextOf(err), want[1]) {
			t.Errorf("%s: got %v; next: %s; want %q", name, err, fail.NextOf(err), want)
		}
	}
}
