// SPDX-License-Identifier: Apache-2.0

package syncrepo

import (
	"context"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/source/git"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
)

// TestAwait: the step waits for the tree that mlenv run uploads, installs its requirements itself, and then switches to
// it.
func TestAwait(t *testing.T) {
	fakePython(t)
	for _, tc := range []struct {
		name, requirements string
		want               fail.Reason // "" for success
	}{
		{"it comes", "einops==0.8.1\n", ""},
		{"requirements that do not exist", "no-such-package\n", fail.RequirementsFailed},
	} {
		t.Run(tc.name, func(t *testing.T) {
			agents := agenttest.Start(t, 2)
			asked := make(chan struct{}, 100)
			for _, node := range agents {
				node.Wrap(func(real http.Handler) http.Handler {
					return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						real.ServeHTTP(w, r)
						if r.Method == http.MethodGet {
							asked <- struct{}{}
						}
					})
				})
			}
			s := newSender(t.Context(), setOf(agents), quiet())
			dir := t.TempDir()
			write(t, dir, map[string]string{"requirements.txt": tc.requirements})
			manifest, err := tree.Scan(t.Context(), dir, nil)
			if err != nil {
				t.Fatal(err)
			}
			digest, err := RequirementsDigest(dir, "requirements.txt", manifest.Hash())
			if err != nil {
				t.Fatal(err)
			}
			source := git.Source{URL: SentURL(manifest.Hash(), digest), Revision: "c0ffee-dirty"}
			needs := requirements{name: "requirements.txt", program: agents[0].Config.Program, venvs: t.TempDir(), timeout: timeForPip}
			type end struct {
				result Result
				err    error
			}
			came := make(chan end, 1)
			go func() {
				result, err := s.await(t.Context(), source, needs, nil)
				came <- end{result, err}
			}()
			// With two nodes, the third request is the second request of a node.
			for range 3 {
				select {
				case <-asked:
				case end := <-came:
					t.Fatalf("it ended with %v before the tree was complete", end.err)
				}
			}
			if err := Upload(t.Context(), quiet(), s.nodes, dir, manifest); err != nil {
				t.Fatal(err)
			}
			got := <-came
			if tc.want != "" {
				if fail.ReasonOf(got.err) != tc.want {
					t.Errorf("got %v, want %s", got.err, tc.want)
				}
				return
			}
			if got.err != nil || got.result != (Result{Commit: "c0ffee-dirty", Tree: manifest.Hash()}) {
				t.Fatalf("got %+v, %v", got.result, got.err)
			}
			for _, client := range s.nodes {
				state, err := client.CurrentTree(t.Context())
				if want := filepath.Join(needs.venvs, string(digest)); err != nil || state.Hash != manifest.Hash() || state.Venv != want {
					t.Errorf("node %d is at %s with %s, %v; want the tree with %s", client.Node(), state.Hash, state.Venv, err, want)
				}
			}
		})
	}
}

func TestSentURL(t *testing.T) {
	a, b := tree.Digest(strings.Repeat("a", 64)), tree.Digest(strings.Repeat("b", 64))
	for _, want := range []tree.Digest{"", b} {
		if hash, requirements, err := readSentURL(SentURL(a, want)); err != nil || hash != a || requirements != want {
			t.Errorf("got %s, %s, %v; want %s, %s", hash, requirements, err, a, want)
		}
	}
	for _, url := range []string{"folder:", "folder:" + string(a) + "/", "folder:" + string(a) + "/../x", "folder:abc"} {
		if hash, requirements, err := readSentURL(url); err == nil {
			t.Errorf("%s: got %s, %s, want an error", url, hash, requirements)
		}
	}
}

// TestAwaitOutlastsAnAgent: an agent that restarts while the step waits does not end the wait.
func TestAwaitOutlastsAnAgent(t *testing.T) {
	agents := agenttest.Start(t, 1)
	dir := t.TempDir()
	write(t, dir, map[string]string{"train.py": "print(1)"})
	hash, err := sendDir(t.Context(), quiet(), setOf(agents), dir)
	if err != nil {
		t.Fatal(err)
	}
	var requests atomic.Int64
	agents[0].Wrap(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if requests.Add(1) == 1 {
				panic(http.ErrAbortHandler)
			}
			next.ServeHTTP(w, r)
		})
	})
	const timeUntilTheTreeArrives, timeForNoTree = time.Minute, time.Nanosecond
	s := newSender(t.Context(), setOf(agents), quiet())
	if err := s.awaitTree(t.Context(), hash, timeUntilTheTreeArrives, nil); err != nil || requests.Load() < 2 {
		t.Errorf("got %v after %d requests, want the tree at the second", err, requests.Load())
	}
	if err := s.awaitTree(t.Context(), tree.Digest(strings.Repeat("0", 64)), timeForNoTree, nil); fail.ReasonOf(err) != fail.SyncFailed {
		t.Errorf("a tree that does not come: %v, want reason SyncFailed", err)
	}
}

// TestSenderIsGone: nodes do not wait for a program that was killed.
func TestSenderIsGone(t *testing.T) {
	s := newSender(t.Context(), setOf(agenttest.Start(t, 1)), quiet())
	err := s.awaitTree(t.Context(), tree.Digest(strings.Repeat("0", 64)), time.Hour, func(context.Context) bool { return true })
	if fail.ReasonOf(err) != fail.SyncFailed || !strings.Contains(err.Error(), "has shown no sign of life for 1m0s") {
		t.Errorf("got %v, want SyncFailed because of the sender", err)
	}
}

func TestCheck(t *testing.T) {
	a, b := tree.Digest(strings.Repeat("a", 64)), tree.Digest(strings.Repeat("b", 64))
	for _, test := range []struct {
		url, requirements, want string
	}{
		{"https://git.example/model", "requirements.txt", ""},
		{"", "", "--repo-url is missing"},
		{SentURL(a, ""), "", ""},
		{SentURL(a, b), "requirements.txt", ""},
		{SentURL(a, ""), "requirements.txt", "has a digest of requirements"},
		{SentURL(a, b), "", "has a digest of requirements"},
		{"folder:abc", "", "64 lower-case hex digits"},
	} {
		o := Options{Requirements: test.requirements}
		o.Source.URL = test.url
		err := o.Check()
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q with requirements %q: got %v, want %q", test.url, test.requirements, err, test.want)
		}
	}
}
