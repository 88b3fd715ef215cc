// SPDX-License-Identifier: Apache-2.0

package syncrepo

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/source/git"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
)

func TestMain(m *testing.M) {
	git.Helper()
	agenttest.Main(m)
}

// write creates files, and links for contents that begin with "-> ".
func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		path := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if target, ok := strings.CutPrefix(content, "-> "); ok && err == nil {
			err = os.Symlink(target, path)
		} else if err == nil {
			err = os.WriteFile(path, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// big returns a content that does not compress.
func big() string {
	content := make([]byte, 1<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(content)
	return string(content)
}

func setOf(agents []*agenttest.Node) (set nodes.Set) {
	for _, node := range agents {
		set = append(set, node.Client)
	}
	return set
}

// sendDir sends a folder without the files that its .mlenvignore names.
func sendDir(ctx context.Context, log *slog.Logger, set nodes.Set, dir string) (tree.Digest, error) {
	ignore, err := tree.LoadIgnore(dir)
	if err != nil {
		return "", err
	}
	return SendFolder(ctx, log, set, Folder{Dir: dir, Ignore: ignore})
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// traffic counts the uploads to a node and their bytes.
type traffic struct {
	mu      sync.Mutex
	uploads int
	bytes   int64
}

func (c *traffic) take() (uploads int, bytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	uploads, bytes = c.uploads, c.bytes
	c.uploads, c.bytes = 0, 0
	return uploads, bytes
}

// count counts the uploads to a node. It calls before with the number of each upload.
func count(node *agenttest.Node, before func(w http.ResponseWriter, upload int) (answered bool)) *traffic {
	c := &traffic{}
	node.Wrap(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodPut || !strings.HasSuffix(r.URL.Path, "/content") {
				next.ServeHTTP(w, r)
				return
			}
			c.mu.Lock()
			c.uploads++
			upload := c.uploads
			c.mu.Unlock()
			if before != nil && before(w, upload) {
				return
			}
			r.Body = &countedBody{ReadCloser: r.Body, to: c}
			next.ServeHTTP(w, r)
		})
	})
	return c
}

type countedBody struct {
	io.ReadCloser
	to *traffic
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.to.mu.Lock()
	defer b.to.mu.Unlock()
	b.to.bytes += int64(n)
	return n, err
}

func current(t *testing.T, node *agenttest.Node) tree.Digest {
	t.Helper()
	state, err := node.Client.CurrentTree(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return state.Hash
}

func onNode(node *agenttest.Node, name string) string {
	return filepath.Join(node.Config.Paths.Workspace, "repo", name)
}

func TestSendGoesToAllNodesAndOnlyWhatChanged(t *testing.T) {
	agents := agenttest.Start(t, 3)
	var counted []*traffic
	for _, node := range agents {
		counted = append(counted, count(node, nil))
	}
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"data/big": big(), "train.py": "print(1)", "data/nowhere": "-> ../not-there-yet", "build/left-out": big()[:1000],
		".mlenvignore": "build/\n",
	})
	first, err := sendDir(t.Context(), quiet(), setOf(agents), dir)
	if err != nil {
		t.Fatal(err)
	}
	const bytesOfTheWholeTree, bytesForOneFile = 1 << 20, 1000
	for i, node := range agents {
		if uploads, bytes := counted[i].take(); uploads != 1 || bytes < bytesOfTheWholeTree {
			t.Errorf("node %d got %d uploads of %d bytes, want one of the whole tree", i, uploads, bytes)
		}
		if got := current(t, node); got != first {
			t.Errorf("node %d has tree %s, want %s", i, got, first)
		}
		if content, err := os.ReadFile(onNode(node, "train.py")); err != nil || string(content) != "print(1)" {
			t.Errorf("node %d: train.py is %q, %v", i, content, err)
		}
		if target, err := os.Readlink(onNode(node, "data/nowhere")); err != nil || target != "../not-there-yet" {
			t.Errorf("node %d: the link to nowhere leads to %q, %v", i, target, err)
		}
		if _, err := os.Lstat(onNode(node, "build")); !os.IsNotExist(err) {
			t.Errorf("node %d has what .mlenvignore names: %v", i, err)
		}
	}

	write(t, dir, map[string]string{"train.py": "print(2)"})
	second, err := sendDir(t.Context(), quiet(), setOf(agents), dir)
	if err != nil {
		t.Fatal(err)
	}
	for i, node := range agents {
		if uploads, bytes := counted[i].take(); uploads != 1 || bytes > bytesForOneFile {
			t.Errorf("node %d got %d uploads of %d bytes for one changed file", i, uploads, bytes)
		}
		if content, err := os.ReadFile(onNode(node, "train.py")); err != nil || string(content) != "print(2)" {
			t.Errorf("node %d: train.py is %q, %v", i, content, err)
		}
	}
	write(t, dir, map[string]string{"train.py": "print(1)"})
	if back, err := sendDir(t.Context(), quiet(), setOf(agents), dir); err != nil || back != first || back == second {
		t.Errorf("back to the first tree: %s, %v; want %s", back, err, first)
	}
	for i, node := range agents {
		if uploads, _ := counted[i].take(); uploads != 0 || current(t, node) != first {
			t.Errorf("node %d got %d uploads for a tree that it has, and is at %s", i, uploads, current(t, node))
		}
	}
}

func TestSharedStorageGetsItOnce(t *testing.T) {
	agents := agenttest.StartWith(t, 3, agenttest.Options{Shared: true})
	uploads := 0
	var counted []*traffic
	for _, node := range agents {
		counted = append(counted, count(node, nil))
	}
	dir := t.TempDir()
	write(t, dir, map[string]string{"train.py": "print(1)"})
	hash, err := sendDir(t.Context(), quiet(), setOf(agents), dir)
	if err != nil {
		t.Fatal(err)
	}
	for i, node := range agents {
		n, _ := counted[i].take()
		uploads += n
		if got := current(t, node); got != hash {
			t.Errorf("node %d has tree %s, want %s", i, got, hash)
		}
	}
	if uploads != 1 {
		t.Errorf("%d uploads to one shared volume, want 1", uploads)
	}
}

// otherHash makes a node report that it received another tree than the one that was sent.
func otherHash(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPut {
			next.ServeHTTP(w, r)
			return
		}
		recorded := httptest.NewRecorder()
		next.ServeHTTP(recorded, r)
		var state agent.TreeState
		_ = json.Unmarshal(recorded.Body.Bytes(), &state)
		state.Hash = tree.Digest(strings.Repeat("f", 64))
		_ = json.NewEncoder(w).Encode(state)
	})
}

func TestNothingIsSwitchedUnlessAllNodesHoldIt(t *testing.T) {
	for _, tc := range []struct {
		name   string
		second func(*agenttest.Node) // the fault of the second node
		tree   map[string]string
		want   fail.Reason
		words  string
	}{
		{"another hash", func(n *agenttest.Node) { n.Wrap(otherHash) }, nil, fail.SyncFailed, "node 1 holds ffff"},
		{"no room", func(n *agenttest.Node) { count(n, refuse("no space left on device")) }, nil, fail.SyncFailed,
			"node 1: no space left on device"},
		{"gone", func(n *agenttest.Node) { n.End() }, nil, fail.AgentUnreachable, "the agent of node 1"},
		{"a link that leads out", func(*agenttest.Node) {}, map[string]string{"passwords": "-> /etc/passwd"}, fail.UnsafeTree, "passwords"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			agents := agenttest.Start(t, 2)
			dir := t.TempDir()
			write(t, dir, map[string]string{"train.py": "print(1)"})
			before, err := sendDir(t.Context(), quiet(), setOf(agents), dir)
			if err != nil {
				t.Fatal(err)
			}
			tc.second(agents[1])
			write(t, dir, map[string]string{"train.py": "print(2)"})
			write(t, dir, tc.tree)
			timeForTheNodesToAnswer := time.Minute
			if tc.want == fail.AgentUnreachable {
				timeForTheNodesToAnswer = 3 * time.Second // the step would wait longer for a node that is gone
			}
			ctx, cancel := context.WithTimeout(t.Context(), timeForTheNodesToAnswer)
			defer cancel()
			_, err = sendDir(ctx, quiet(), setOf(agents), dir)
			if got := fail.ReasonOf(err); got != tc.want || !strings.Contains(err.Error(), tc.words) {
				t.Errorf("got %s: %v; want %s with %q", got, err, tc.want, tc.words)
			}
			if got := current(t, agents[0]); got != before {
				t.Errorf("node 0 was switched to %s, want %s still", got, before)
			}
		})
	}
}

// refuse answers every upload like an agent that cannot store it.
func refuse(message string) func(http.ResponseWriter, int) bool {
	return func(w http.ResponseWriter, _ int) bool {
		w.WriteHeader(http.StatusUnprocessableEntity)
		_ = json.NewEncoder(w).Encode(agent.Problem{Reason: fail.SyncFailed, Message: message})
		return true
	}
}

func TestSendingAgain(t *testing.T) {
	for _, tc := range []struct {
		name string
		// before is called before an upload; earlier is a folder on the node with a tree that it reports to have.
		before  func(w http.ResponseWriter, upload int, earlier string) bool
		uploads int
		want    fail.Reason // "" for success
	}{
		{"the connection breaks", func(_ http.ResponseWriter, upload int, _ string) bool {
			if upload < 3 {
				panic(http.ErrAbortHandler)
			}
			return false
		}, 3, ""},
		{"the connection breaks always", func(http.ResponseWriter, int, string) bool { panic(http.ErrAbortHandler) }, 5, fail.SyncFailed},
		{"what it had is not there any more", func(_ http.ResponseWriter, upload int, earlier string) bool {
			if upload == 1 {
				_ = os.RemoveAll(earlier)
			}
			return false
		}, 2, ""},
		{"it loses a file during each try", func(_ http.ResponseWriter, upload int, earlier string) bool {
			if lost := []string{"big", "small", ""}; upload < len(lost) {
				_ = os.Remove(filepath.Join(earlier, lost[upload-1]))
			}
			return false
		}, 2, fail.SyncFailed},
		{"it misses nothing else and fails", func(w http.ResponseWriter, upload int, _ string) bool { return refuse("no")(w, upload) }, 1,
			fail.SyncFailed},
	} {
		t.Run(tc.name, func(t *testing.T) {
			agents := agenttest.Start(t, 1)
			dir, content := t.TempDir(), big()
			write(t, dir, map[string]string{"big": content, "small": "small"})
			first, err := sendDir(t.Context(), quiet(), setOf(agents), dir)
			if err != nil {
				t.Fatal(err)
			}
			earlier := filepath.Join(agents[0].Config.Paths.Workspace, ".mlenv", "trees", string(first))
			counted := count(agents[0], func(w http.ResponseWriter, upload int) bool { return tc.before(w, upload, earlier) })
			write(t, dir, map[string]string{"new": "new"})
			hash, err := sendDir(t.Context(), quiet(), setOf(agents), dir)
			if uploads, _ := counted.take(); uploads != tc.uploads {
				t.Errorf("%d uploads, want %d", uploads, tc.uploads)
			}
			if tc.want != "" {
				if fail.ReasonOf(err) != tc.want || current(t, agents[0]) != first {
					t.Errorf("got %v at %s; want %s and no switch", err, current(t, agents[0]), tc.want)
				}
				return
			}
			if err != nil || current(t, agents[0]) != hash {
				t.Fatalf("got %v at %s", err, current(t, agents[0]))
			}
			got, err := os.ReadFile(onNode(agents[0], "big"))
			if err != nil || !bytes.Equal(got, []byte(content)) {
				t.Errorf("the file that was lost meanwhile has %d bytes, %v", len(got), err)
			}
		})
	}
}

func TestReadRequirements(t *testing.T) {
	outside, dir := t.TempDir(), t.TempDir()
	write(t, outside, map[string]string{"token": "secret"})
	write(t, dir, map[string]string{
		"requirements.txt": "einops\n", "deploy/gpu.txt": "flash-attn\n", "link.txt": "-> deploy/gpu.txt",
		"out.txt": "-> " + filepath.Join(outside, "token"), "up.txt": "-> ../" + filepath.Base(outside) + "/token", "nowhere.txt": "-> not-there",
		"folder":         "-> " + outside,
		"all.txt":        "-r deploy/all.txt\n--requirement=https://example.com/r.txt\n",
		"deploy/all.txt": "  -r gpu.txt # here\n-c ../requirements.txt\n-r all.txt\n",
	})
	for name, want := range map[string]string{
		"requirements.txt": "einops\n", "./deploy//gpu.txt": "flash-attn\n", "link.txt": "flash-attn\n",
		"all.txt": "-r deploy/all.txt\n--requirement=https://example.com/r.txt\n  -r gpu.txt # here\n-c ../requirements.txt\n-r " +
			"all.txt\nflash-attn\neinops\n",
		"out.txt": "", "up.txt": "", "nowhere.txt": "", "folder/token": "", "deploy": "", "none.txt": "", "../" + filepath.Base(outside) +
			"/token": "",
	} {
		content, err := readRequirements(dir, name)
		if want == "" && (fail.ReasonOf(err) != fail.RequirementsFailed || fail.NextOf(err) == "" || !strings.Contains(err.Error(), name)) {
			t.Errorf("%s: got %q, %v; want RequirementsFailed with its name and advice", name, content, err)
		}
		if diff := cmp.Diff(want, string(content)); diff != "" {
			t.Errorf("%s (-want +got):\n%s%v", name, diff, err)
		}
	}
}

// Traffic would distort the measurements of check-fabric, which runs at the same time.
func TestSendWaitsForItsTurn(t *testing.T) {
	agents := agenttest.Start(t, 2)
	asked := make(chan struct{}, 10)
	uploads := count(agents[1], nil)
	agents[0].Wrap(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/v1/turn" {
				asked <- struct{}{}
			}
			next.ServeHTTP(w, r)
		})
	})
	dir := t.TempDir()
	write(t, dir, map[string]string{"train.py": "print()"})
	const timeToGetTheTurn = time.Minute
	release, err := agents[0].Client.WaitForTurn(t.Context(), timeToGetTheTurn)
	if err != nil {
		t.Fatal(err)
	}
	<-asked
	sent := make(chan error, 1)
	go func() {
		_, err := sendDir(t.Context(), quiet(), setOf(agents), dir)
		sent <- err
	}()
	<-asked
	if got, _ := uploads.take(); got != 0 {
		t.Errorf("%d uploads during the measurement, want none", got)
	}
	release()
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	if _, err := sendDir(t.Context(), quiet(), setOf(agents), dir); err != nil {
		t.Fatal(err)
	}
	if len(asked) > 0 {
		t.Error("sending a tree that the nodes have requested a turn, want no request")
	}
}
