// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
)

// asAgent returns a client with the certificate of the nodes.
func asAgent(t *testing.T, node *agenttest.Node) *agent.Client {
	t.Helper()
	made := node.Certificates()
	return clientOf(t, node, made.ServerCert, made.ServerKey)
}

// clientOf returns a client of the node with a certificate and its key.
func clientOf(t *testing.T, node *agenttest.Node, certificate, key []byte) *agent.Client {
	t.Helper()
	credentials, err := agent.ParseCredentials(node.Certificates().CA, certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	client := agent.NewClient(node.Config.Node, node.Config.Host(node.Config.Node), credentials, node.Dial)
	t.Cleanup(client.Close)
	return client
}

// putTree puts a tree with a large content on a node.
func putTree(t *testing.T, node *agenttest.Node) (hash, content tree.Digest) {
	t.Helper()
	dir, data := t.TempDir(), make([]byte, 8<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(data)
	if err := os.WriteFile(filepath.Join(dir, "big"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := tree.Scan(t.Context(), dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := node.Client.PlanTree(t.Context(), m.Hash(), manifest, func(tree.Digest) error { return nil }); err != nil {
		t.Fatal(err)
	}
	var stream bytes.Buffer
	if err := tree.WriteContents(t.Context(), &stream, dir, m, []tree.Digest{m.Entries[0].Content}, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := node.Client.SendTree(t.Context(), m.Hash(), 0, &stream); err != nil {
		t.Fatal(err)
	}
	return m.Hash(), m.Entries[0].Content
}

// refusals returns requests that only steps may send.
func refusals(client *agent.Client, hash tree.Digest) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"health":      func(ctx context.Context) error { _, err := client.Health(ctx); return err },
		"facts":       func(ctx context.Context) error { _, err := client.Facts(ctx); return err },
		"start a job": func(ctx context.Context) error { _, err := client.StartJob(ctx, "job", agent.JobSpec{}); return err },
		"stop a job":  func(ctx context.Context) error { return client.StopJob(ctx, "job", agent.Stop{}) },
		"read a log":  func(ctx context.Context) error { _, err := client.Log(ctx, "job", "rank-0.log", 0, false); return err },
		"set network": func(ctx context.Context) error { _, err := client.SetNetwork(ctx, agent.Network{}); return err },
		"list a tree": func(ctx context.Context) error { _, err := client.Tree(ctx, hash); return err },
		"send a tree": func(ctx context.Context) error {
			_, err := client.SendTree(ctx, hash, 0, strings.NewReader(""))
			return err
		},
		"have it pull": func(ctx context.Context) error { _, err := client.PullTree(ctx, hash, 1); return err },
		"switch":       func(ctx context.Context) error { _, err := client.SwitchTree(ctx, hash, agent.Switch{}); return err },
		"write":        func(ctx context.Context) error { return client.WriteRecord(ctx, "job", agent.FabricReport, nil) },
		"read record": func(ctx context.Context) error {
			_, err := client.ReadRecord(ctx, "job", agent.FabricReport)
			return err
		},
		"keep a shell": func(ctx context.Context) error { return client.KeepShell(ctx, "shell") },
	}
}

// TestAgentsMayOnlyReadTrees: with a node's certificate a client may request only one path of the other nodes.
func TestAgentsMayOnlyReadTrees(t *testing.T) {
	node := agenttest.Start(t, 2)[0]
	hash, content := putTree(t, node)
	other := asAgent(t, node)
	body, err := other.TreeContents(t.Context(), hash, []tree.Digest{content}, 0)
	if err != nil {
		t.Fatal(err)
	}
	got := 0
	none := func(tree.Digest) tree.Begun { return tree.Begun{Sum: sha256.New()} }
	err = tree.ReadContents(t.Context(), body, map[tree.Digest]int64{content: 8 << 20}, none, func(tree.Digest, io.Reader) error {
		got++
		return nil
	})
	if err = errors.Join(err, body.Close()); err != nil || got != 1 {
		t.Errorf("reading a tree: %d contents, %v", got, err)
	}
	if _, err := other.TreeContents(t.Context(), tree.Digest(strings.Repeat("a", 64)), nil, 0); fail.ReasonOf(err) != fail.SyncFailed {
		t.Errorf("reading an unknown tree: %v, want SyncFailed", err)
	}
	if _, err := other.TreeContents(t.Context(), hash, slices.Repeat([]tree.Digest{content}, 10), 0); fail.ReasonOf(err) != fail.InvalidInput {
		t.Errorf("reading more contents than the tree has: %v, want InvalidInput", err)
	}
	if _, err := other.TreeContents(t.Context(), "../../runs", nil, 0); err == nil {
		t.Error("reading a folder that is no tree succeeded")
	}
	for what, call := range refusals(other, hash) {
		if err := call(t.Context()); fail.ReasonOf(err) != fail.PermissionDenied {
			t.Errorf("%s: %v, want PermissionDenied", what, err)
		}
	}
}

// TestReadersOfTreesAreBounded: a fifth agent that reads at the same time is refused.
func TestReadersOfTreesAreBounded(t *testing.T) {
	node := agenttest.Start(t, 1)[0]
	hash, content := putTree(t, node)
	for range 4 { // none of them reads its answer to the end
		body, err := asAgent(t, node).TreeContents(t.Context(), hash, []tree.Digest{content}, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer body.Close()
	}
	if _, err := asAgent(t, node).TreeContents(t.Context(), hash, []tree.Digest{content}, 0); fail.ReasonOf(err) != fail.SyncFailed {
		t.Errorf("the fifth: %v, want SyncFailed", err)
	}
}

func TestPullOnlyFromOthers(t *testing.T) {
	node := agenttest.Start(t, 2)[0]
	hash, _ := putTree(t, node)
	for _, from := range []int{-1, 0, 2} {
		if _, err := node.Client.PullTree(t.Context(), hash, from); fail.ReasonOf(err) != fail.InvalidInput {
			t.Errorf("from node %d: %v, want InvalidInput", from, err)
		}
	}
}
