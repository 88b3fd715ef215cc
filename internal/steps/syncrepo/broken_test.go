// SPDX-License-Identifier: Apache-2.0

package syncrepo

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
)

// passes is how many bytes pass over a connection before it breaks.
const passes = 3 << 20

// checkpoint returns a content of several connections that does not compress.
func checkpoint() string {
	content := make([]byte, 5*passes)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(content)
	return string(content)
}

// balanced is a connection that ends after so many written bytes. The server does not notice the end of a silent one.
type balanced struct {
	net.Conn
	left   int
	silent bool
	sent   *atomic.Int64
}

func (b *balanced) Close() error {
	if b.silent {
		return b.SetDeadline(time.Unix(1, 0))
	}
	return b.Conn.Close()
}

func (b *balanced) Write(p []byte) (int, error) {
	n, err := b.Conn.Write(p[:min(len(p), b.left)])
	b.left -= n
	b.sent.Add(int64(n))
	if err == nil && n < len(p) {
		err = errors.Join(net.ErrClosed, b.Close())
	}
	return n, err
}

// behindABalancer returns a client of the node whose connections break, and counts the bytes that it sends.
func behindABalancer(t *testing.T, node *agenttest.Node, left int, silent bool) (*agent.Client, *atomic.Int64) {
	t.Helper()
	made, sent := node.Certificates(), &atomic.Int64{}
	credentials, err := agent.ParseCredentials(made.CA, made.ClientCert, made.ClientKey)
	if err != nil {
		t.Fatal(err)
	}
	client := agent.NewClient(node.Config.Node, node.Config.Host(node.Config.Node), credentials,
		func(ctx context.Context, ordinal int) (net.Conn, error) {
			conn, err := node.Dial(ctx, ordinal)
			if err != nil {
				return nil, err
			}
			if silent {
				t.Cleanup(func() { conn.Close() })
			}
			// Between this machine and itself megabytes can be on their way, and are lost if a busy node did not read them in time.
			if err := conn.(*net.TCPConn).SetWriteBuffer(128 << 10); err != nil {
				return nil, err
			}
			return &balanced{conn, left, silent, sent}, nil
		})
	t.Cleanup(client.Close)
	return client, sent
}

// A large file arrives over connections that break, each byte about once, and in another call that continues the first.
func TestReceiveEndsBehindABalancer(t *testing.T) {
	t.Run("it closes connections", func(t *testing.T) { endsBehindABalancer(t, false) })
	t.Run("it drops packets", func(t *testing.T) { endsBehindABalancer(t, true) })
}

func endsBehindABalancer(t *testing.T, silent bool) {
	node := agenttest.Start(t, 1)[0]
	dir, content := t.TempDir(), checkpoint()
	write(t, dir, map[string]string{"a.py": "1", "model.bin": content, "z.py": "1"})
	ctx, interrupt := context.WithCancel(t.Context())
	client, before := behindABalancer(t, node, passes, silent)
	var uploads atomic.Int64
	third := make(chan struct{})
	node.Wrap(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPut && uploads.Add(1) == 3 && !silent {
				interrupt() // the user closes the laptop
				defer close(third)
			}
			next.ServeHTTP(w, r)
		})
	})
	if _, err := sendDir(ctx, quiet(), nodes.Set{client}, dir); (err == nil) != silent {
		t.Fatalf("got %v, want an interruption: %t", err, !silent)
	}
	sent := before.Load()
	if !silent {
		<-third
		write(t, dir, map[string]string{"a.py": "2"}) // another tree, whose first content is another one
		client, after := behindABalancer(t, node, passes, false)
		if _, err := sendDir(t.Context(), quiet(), nodes.Set{client}, dir); err != nil {
			t.Fatal(err)
		}
		sent += after.Load()
	}
	const overhead = 2 * passes // what was on its way when a connection broke
	if sent > int64(len(content)+overhead) || uploads.Load() < 5 {
		t.Errorf("%d bytes were sent for a file of %d in %d uploads", sent, len(content), uploads.Load())
	}
	if got, err := os.ReadFile(onNode(node, "model.bin")); err != nil || string(got) != content {
		t.Errorf("the node has %d bytes, %v", len(got), err)
	}
	if left, err := os.ReadDir(node.Config.Paths.Workspace + "/.mlenv/trees/.contents"); err != nil || len(left) > 0 {
		t.Errorf("the node keeps %v, %v", left, err)
	}
}

// A connection over which nothing passes ends the step at last.
func TestReceiveGivesUp(t *testing.T) {
	node := agenttest.Start(t, 1)[0]
	dir := t.TempDir()
	write(t, dir, map[string]string{"model.bin": checkpoint()})
	client, _ := behindABalancer(t, node, 64<<10, false)
	counted := count(node, nil)
	_, err := sendDir(t.Context(), quiet(), nodes.Set{client}, dir)
	if uploads, _ := counted.take(); fail.ReasonOf(err) != fail.SyncFailed || uploads > 5 {
		t.Errorf("got %v after %d uploads, want SyncFailed after at most 5", err, uploads)
	}
}

// cut breaks an answer off after so many bytes.
type cut struct {
	http.ResponseWriter
	left int
	sent *atomic.Int64
}

func (c *cut) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p[:min(len(p), c.left)])
	c.left -= n
	c.sent.Add(int64(n))
	if err == nil && n < len(p) {
		err = errors.Join(net.ErrClosed, http.NewResponseController(c.ResponseWriter).Flush())
	}
	return n, err
}

// Unwrap is for http.ResponseController.
func (c *cut) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// Nodes pass a large file on over connections that break; the step does not have to send it.
func TestPassingEndsBehindABalancer(t *testing.T) {
	var passed atomic.Int64
	agents, uploads := startMany(t, 10, map[string]func(*agenttest.Node) handle{
		"contents": answeredBy(func(int) bool { return true }, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			next.ServeHTTP(&cut{w, passes, &passed}, r)
		})})
	dir, content := t.TempDir(), checkpoint()
	write(t, dir, map[string]string{"a.py": "1", "model.bin": content})
	var log bytes.Buffer
	if _, err := sendDir(t.Context(), command.TextLog(&log), setOf(agents), dir); err != nil {
		t.Fatal(err)
	}
	if uploads.Load() != firstHolders || !strings.Contains(log.String(), "to 6 of them") {
		t.Errorf("%d uploads, want %d:\n%s", uploads.Load(), firstHolders, log.String())
	}
	if bytesForSixNodes := int64(6 * (len(content) + passes)); passed.Load() > bytesForSixNodes {
		t.Errorf("%d bytes passed, want at most %d", passed.Load(), bytesForSixNodes)
	}
	for i, node := range agents {
		if got, err := os.ReadFile(onNode(node, "model.bin")); err != nil || string(got) != content {
			t.Errorf("node %d has %d bytes, %v", i, len(got), err)
		}
	}
}

// A part with wrong bytes costs one transfer: it is thrown away, and the content is sent from its first byte.
func TestWrongPartIsThrownAway(t *testing.T) {
	node := agenttest.Start(t, 1)[0]
	dir, content := t.TempDir(), checkpoint()
	write(t, dir, map[string]string{"model.bin": content})
	m := scanned(t, dir)
	part := node.Config.Paths.Workspace + "/.mlenv/trees/.contents/" + string(m.Entries[0].Content)
	for name, wrong := range map[string]string{
		"other bytes": strings.Repeat("x", passes), "all bytes and wrong": strings.Repeat("x", len(content)), "more": content + "x", "none": "",
	} {
		if err := os.WriteFile(part, []byte(wrong), 0o644); err != nil {
			t.Fatal(err)
		}
		var uploads int
		counted := count(node, nil)
		hash, err := sendDir(t.Context(), quiet(), nodes.Set{node.Client}, dir)
		if uploads, _ = counted.take(); err != nil || uploads > 2 {
			t.Fatalf("%s: %v after %d uploads", name, err, uploads)
		}
		if got, err := os.ReadFile(onNode(node, "model.bin")); err != nil || string(got) != content {
			t.Errorf("%s: the node has %d bytes, %v", name, len(got), err)
		}
		if _, err := os.Lstat(part); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: the part stays: %v", name, err)
		}
		forget(t, node, hash)
	}
}

// forget deletes the tree of a node.
func forget(t *testing.T, node *agenttest.Node, hash tree.Digest) {
	t.Helper()
	top := node.Config.Paths.Workspace + "/.mlenv/trees/" + string(hash)
	for _, path := range []string{top + ".index", top} {
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
	}
}
