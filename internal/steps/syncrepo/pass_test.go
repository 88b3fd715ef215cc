// SPDX-License-Identifier: Apache-2.0

package syncrepo

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
)

// handle is a node's handler for a request. next is the handler that it replaces.
type handle func(w http.ResponseWriter, r *http.Request, next http.Handler)

// startMany starts agents, and counts the uploads to them. answers replaces the handlers of requests by the end of their
// path.
func startMany(t *testing.T, count int, answers map[string]func(node *agenttest.Node) handle) (
	agents []*agenttest.Node, uploads *atomic.Int64) {
	t.Helper()
	agents, uploads = agenttest.Start(t, count), &atomic.Int64{}
	for _, node := range agents {
		handles := map[string]handle{}
		for name, answer := range answers {
			handles[name] = answer(node)
		}
		node.Wrap(func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				name := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
				if name == "content" {
					uploads.Add(1)
				}
				if handle := handles[name]; handle != nil {
					handle(w, r, next)
				} else {
					next.ServeHTTP(w, r)
				}
			})
		})
	}
	return agents, uploads
}

// answeredBy makes the nodes that it selects answer with h.
func answeredBy(nodes func(node int) bool, h handle) func(*agenttest.Node) handle {
	return func(node *agenttest.Node) handle {
		if nodes(node.Config.Node) {
			return h
		}
		return nil
	}
}

// damaged passes on a tree with one wrong byte.
func damaged(w http.ResponseWriter, r *http.Request, next http.Handler) {
	recorded := httptest.NewRecorder()
	next.ServeHTTP(recorded, r)
	body := recorded.Body.Bytes()
	body[len(body)/2] ^= 1
	_, _ = w.Write(body)
}

// otherContent passes on a content that is not in the tree.
func otherContent(t *testing.T) handle {
	dir := t.TempDir()
	write(t, dir, map[string]string{"other": "other"})
	m := scanned(t, dir)
	return func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
		_ = tree.WriteContents(r.Context(), w, dir, m, []tree.Digest{m.Entries[0].Content}, nil)
	}
}

func scanned(t *testing.T, dir string) tree.Manifest {
	t.Helper()
	m, err := tree.Scan(t.Context(), dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestNodesPassTheTreeOn(t *testing.T) {
	all := func(int) bool { return true }
	for _, tc := range []struct {
		name    string
		answers map[string]func(*agenttest.Node) handle
		// uploads is the number of times that the step sends the tree.
		uploads int64
		log     string
	}{
		{"all answer", nil, firstHolders, "nodes passed the tree on to 16 of them"},
		{"one sends a wrong byte", map[string]func(*agenttest.Node) handle{
			"contents": answeredBy(func(node int) bool { return node == 0 }, damaged)}, firstHolders, "did not get the tree from node 0"},
		{"one sends what was not asked for",
			map[string]func(*agenttest.Node) handle{"contents": answeredBy(func(node int) bool { return node == 1 }, otherContent(t))}, firstHolders,
			"did not get the tree from node 1"},
		{"all that had it first send wrong bytes", map[string]func(*agenttest.Node) handle{"contents": answeredBy(all, damaged)}, 20,
			"to 20 volumes."},
	} {
		t.Run(tc.name, func(t *testing.T) {
			agents, uploads := startMany(t, 20, tc.answers)
			dir, content := t.TempDir(), big()
			write(t, dir, map[string]string{"big": content, "small": "small", "again": content, "link": "-> big"})
			var log bytes.Buffer
			hash, err := sendDir(t.Context(), command.TextLog(&log), setOf(agents), dir)
			if err != nil {
				t.Fatal(err)
			}
			if got := uploads.Load(); got != tc.uploads || !strings.Contains(log.String(), tc.log) {
				t.Errorf("%d uploads, want %d, and a line with %q:\n%s", got, tc.uploads, tc.log, log.String())
			}
			for i, node := range agents {
				if got := current(t, node); got != hash {
					t.Errorf("node %d has tree %s, want %s", i, got, hash)
				}
				for name, want := range map[string]string{"big": content, "again": content, "small": "small"} {
					if got, err := os.ReadFile(onNode(node, name)); err != nil || string(got) != want {
						t.Errorf("node %d: %s has %d bytes, %v", i, name, len(got), err)
					}
				}
			}
			// The step sends a small change to all nodes directly.
			uploads.Store(0)
			write(t, dir, map[string]string{"small": "changed"})
			if _, err := sendDir(t.Context(), quiet(), setOf(agents), dir); err != nil || uploads.Load() != 20 {
				t.Errorf("one small file: %d uploads, %v; want 20", uploads.Load(), err)
			}
		})
	}
}

// TestHolderDies: a node ends while another node pulls the tree from it.
func TestHolderDies(t *testing.T) {
	var once sync.Once
	dead := make(chan struct{})
	agents, uploads := startMany(t, 12, map[string]func(*agenttest.Node) handle{"contents": func(node *agenttest.Node) handle {
		if node.Config.Node != 0 {
			return nil
		}
		return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			recorded := httptest.NewRecorder()
			next.ServeHTTP(recorded, r)
			_, _ = w.Write(recorded.Body.Bytes()[:recorded.Body.Len()/2])
			once.Do(func() {
				go func() {
					node.End()
					close(dead)
				}()
			})
			<-r.Context().Done()
		}
	}})
	dir := t.TempDir()
	write(t, dir, map[string]string{"big": big()})
	m := scanned(t, dir)
	if err := Upload(t.Context(), quiet(), setOf(agents), dir, m); err != nil {
		t.Fatal(err)
	}
	<-dead
	if got := uploads.Load(); got != firstHolders {
		t.Errorf("%d uploads, want %d: other nodes hold the tree", got, firstHolders)
	}
	for i, node := range agents[1:] {
		if state, err := node.Client.Tree(t.Context(), m.Hash()); err != nil || state.Hash != m.Hash() {
			t.Errorf("node %d holds %+v, %v", i+1, state, err)
		}
	}
}

// TestNodesThatHoldItPassItOn: nodes that were replaced get the tree from other nodes.
func TestNodesThatHoldItPassItOn(t *testing.T) {
	agents, uploads := startMany(t, 14, nil)
	dir := t.TempDir()
	write(t, dir, map[string]string{"big": big()})
	m := scanned(t, dir)
	if err := Upload(t.Context(), quiet(), setOf(agents[:2]), dir, m); err != nil {
		t.Fatal(err)
	}
	uploads.Store(0)
	var late agent.TreeState
	err := Upload(t.Context(), quiet(), setOf(agents), dir, m)
	if err == nil {
		late, err = agents[13].Client.Tree(t.Context(), m.Hash())
	}
	if err != nil || late.Hash != m.Hash() || uploads.Load() != firstHolders {
		t.Errorf("%d uploads, node 13 holds %+v, %v", uploads.Load(), late, err)
	}
}
