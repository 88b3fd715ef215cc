// SPDX-License-Identifier: Apache-2.0

package syncrepo

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
)

// TestPlanIsChecked: an agent that asks for a content again and again would keep the step sending without end.
func TestPlanIsChecked(t *testing.T) {
	for name, forge := range map[string]func([]tree.Digest) []tree.Digest{
		"a content again":    func(missing []tree.Digest) []tree.Digest { return slices.Repeat(missing, 1000) },
		"a foreign content":  func([]tree.Digest) []tree.Digest { return []tree.Digest{tree.Digest(strings.Repeat("0", 64))} },
		"what is no content": func([]tree.Digest) []tree.Digest { return []tree.Digest{"../../etc/passwd"} },
	} {
		t.Run(name, func(t *testing.T) {
			agents := agenttest.Start(t, 1)
			var uploads atomic.Int64
			agents[0].Wrap(func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.Method == http.MethodPut {
						uploads.Add(1)
					}
					if r.Method != http.MethodPost || !strings.HasPrefix(r.URL.Path, "/v1/trees/") {
						next.ServeHTTP(w, r)
						return
					}
					recorded := httptest.NewRecorder()
					next.ServeHTTP(recorded, r)
					var plan agent.TreePlan
					_ = json.Unmarshal(recorded.Body.Bytes(), &plan)
					plan.Missing = forge(plan.Missing)
					_ = json.NewEncoder(w).Encode(plan)
				})
			})
			dir := t.TempDir()
			write(t, dir, map[string]string{"train.py": "print(1)"})
			_, err := sendDir(t.Context(), quiet(), setOf(agents), dir)
			if fail.ReasonOf(err) != fail.SyncFailed || !strings.Contains(err.Error(), "node 0 asks for content") {
				t.Errorf("got %v, want SyncFailed", err)
			}
			if uploads.Load() != 0 {
				t.Errorf("%d uploads, want none", uploads.Load())
			}
		})
	}
}

// TestRequirementsAreBounded: large files, many files and pipes do not stop the step.
func TestRequirementsAreBounded(t *testing.T) {
	dir := t.TempDir()
	many := map[string]string{"large.txt": strings.Repeat("#", maxRequirements+1), "includes-large.txt": "-r large.txt\n"}
	for i := range maxIncludes {
		many[fmt.Sprintf("%d.txt", i)] = fmt.Sprintf("-r %d.txt\n", i+1)
	}
	many[fmt.Sprintf("%d.txt", maxIncludes)] = ""
	write(t, dir, many)
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe.txt"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"large.txt", "includes-large.txt", "0.txt", "pipe.txt"} {
		if content, err := readRequirements(dir, name); fail.ReasonOf(err) != fail.RequirementsFailed {
			t.Errorf("%s: got %d bytes, %v; want RequirementsFailed", name, len(content), err)
		}
	}
}

// TestForgedInstallation: an installation that ended without a rank has installed nothing.
func TestForgedInstallation(t *testing.T) {
	agents := agenttest.Start(t, 1)
	agents[0].Wrap(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !strings.HasPrefix(r.URL.Path, "/v1/jobs/") {
				next.ServeHTTP(w, r)
				return
			}
			_ = json.NewEncoder(w).Encode(
				agent.JobStatus{State: agent.Exited, Spec: agent.JobSpec{Launcher: agent.Command, Nodes: 1, RanksPerNode: 1}})
		})
	})
	needs := requirements{name: "pip.txt", digest: tree.Digest(strings.Repeat("9", 64)), program: "agent", venvs: t.TempDir(),
		timeout: timeForPip}
	_, err := newSender(t.Context(), setOf(agents), quiet()).install(t.Context(), needs, tree.Digest(strings.Repeat("8", 64)))
	if fail.ReasonOf(err) != fail.RequirementsFailed || !strings.Contains(err.Error(), "pip could not be started") {
		t.Errorf("got %v, want RequirementsFailed", err)
	}
}

// FuzzRequirements: whatever a requirements file includes, the step reads only files in the folder, and reading ends.
func FuzzRequirements(f *testing.F) {
	f.Add("-r other.txt\n--constraint=../secret # no\n", "einops\n")
	f.Add("-c other.txt", "-r requirements.txt\n-r\tother.txt\r\n")
	f.Add("-r /etc/passwd\n-r link\n", "--requirement https://example.com/x")
	f.Fuzz(func(t *testing.T, requirements, other string) {
		top := t.TempDir()
		const marker = "outside the folder"
		write(t, top, map[string]string{"secret": marker, "tree/requirements.txt": requirements, "tree/other.txt": other,
			"tree/link": "-> ../secret"})
		content, err := readRequirements(filepath.Join(top, "tree"), "requirements.txt")
		if err != nil && fail.ReasonOf(err) != fail.RequirementsFailed {
			t.Errorf("reason %s: %v", fail.ReasonOf(err), err)
		}
		if strings.Contains(string(content), marker) && !strings.Contains(requirements+other, marker) {
			t.Errorf("%q and %q include a file outside the folder", requirements, other)
		}
		if len(content) > maxIncludes*maxRequirements {
			t.Errorf("%d bytes", len(content))
		}
		_ = os.RemoveAll(top)
	})
}
