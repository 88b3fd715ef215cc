// SPDX-License-Identifier: Apache-2.0

package fetch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// errCut is the error of a connection whose time is over.
var errCut = errors.New("websocket: close 1006 (abnormal closure)")

// balanced is a pod behind a balancer that cuts every connection after so many bytes. It does what the agent in the pod does.
type balanced struct {
	claim string
	most  int
	// commands counts the commands, passed the bytes of send.
	commands map[string]int
	passed   int
	// enough ends a page.
	enough func() bool
}

func (b *balanced) pod() *pod { return &pod{name: "pod", run: b.run} }

func (b *balanced) run(ctx context.Context, stdin io.Reader, stdout io.Writer, args ...string) error {
	b.commands[args[0]]++
	switch args[0] {
	case "page":
		var request agent.PageRequest
		if err := json.NewDecoder(stdin).Decode(&request); err != nil {
			return err
		}
		page, err := tree.ScanPage(ctx, b.claim, tree.OnlyPaths(request.Paths), request.From, b.enough)
		if err != nil {
			return fmt.Errorf("%w: %w", err, &kube.ExitError{Code: 1})
		}
		return json.NewEncoder(stdout).Encode(agent.FilePage{Page: page})
	case "send":
		var request agent.FileRequest
		if err := json.NewDecoder(stdin).Decode(&request); err != nil {
			return err
		}
		var all bytes.Buffer
		if err := tree.WriteContents(ctx, &all, b.claim, request.Manifest, request.Missing, request.From); err != nil {
			return fmt.Errorf("%w: %w", err, &kube.ExitError{Code: 1})
		}
		n := min(b.most, all.Len())
		b.passed += n
		if _, err := stdout.Write(all.Bytes()[:n]); err != nil {
			return err
		}
		if n < all.Len() {
			return errCut
		}
		return nil
	}
	return &kube.ExitError{Code: 1}
}

// checkpoint makes a claim with a large file, a small one, and one with a long name.
func checkpoint(t *testing.T) (claim string, size int) {
	t.Helper()
	claim = t.TempDir()
	content := make([]byte, tree.LargeFile+1000)
	if _, err := rand.NewChaCha8([32]byte{1}).Read(content); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{"model.bin": content, "config.json": []byte("{}"), strings.Repeat("n", 255): []byte("long")} {
		if err := os.WriteFile(filepath.Join(claim, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return claim, len(content)
}

func always() bool { return true }

// A checkpoint arrives through a balancer with a time limit, each byte about once, and a second fetch continues the first.
func TestFetchEndsBehindABalancer(t *testing.T) {
	claim, size := checkpoint(t)
	to := filepath.Join(t.TempDir(), "to")
	b := &balanced{claim: claim, most: 3 << 20, commands: map[string]int{}, enough: always}
	ctx, interrupt := context.WithCancel(t.Context())
	p := b.pod()
	p.run = func(c context.Context, stdin io.Reader, stdout io.Writer, args ...string) error {
		if b.commands["send"] == 2 {
			interrupt() // the user closes the laptop
			return c.Err()
		}
		return b.run(c, stdin, stdout, args...)
	}
	if _, err := p.fetch(ctx, everything, moved, to, openMemory(to, "claim")); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v, want the interruption", err)
	}
	pages := b.commands["page"]
	if _, err := os.Stat(filepath.Join(to, "model.bin")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an incomplete file has its name: %v", err)
	}
	result, err := b.pod().fetch(t.Context(), everything, moved, to, openMemory(to, "claim"))
	if err != nil || result.Files != 3 {
		t.Fatalf("got %+v, %v", result, err)
	}
	if again := b.commands["page"] - pages; again >= pages {
		t.Errorf("%d parts of the list after %d: the large file was read again", again, pages)
	}
	if b.passed > size+b.most {
		t.Errorf("%d bytes passed for a file of %d", b.passed, size)
	}
	want, err := tree.Scan(t.Context(), claim, nil)
	if err != nil {
		t.Fatal(err)
	}
	got, err := tree.Scan(t.Context(), to, nil)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v, the folder (-want +got):\n%s", err, diff)
	}
}

// A file that changes between two connections is not put together from two versions.
func TestFetchNoticesAChange(t *testing.T) {
	claim, _ := checkpoint(t)
	to := t.TempDir()
	b := &balanced{claim: claim, most: 3 << 20, commands: map[string]int{}, enough: func() bool { return false }}
	p := b.pod()
	p.run = func(ctx context.Context, stdin io.Reader, stdout io.Writer, args ...string) error {
		if b.commands["send"] == 1 {
			file, err := os.OpenFile(filepath.Join(claim, "model.bin"), os.O_WRONLY, 0)
			if err == nil {
				_, err = file.WriteAt([]byte("another step"), tree.LargeFile) // what has not come yet
				file.Close()
			}
			if err != nil {
				t.Error(err)
			}
		}
		return b.run(ctx, stdin, stdout, args...)
	}
	if _, err := p.fetch(t.Context(), everything, moved, to, openMemory(to, "claim")); !errors.Is(err, tree.ErrDamaged) {
		t.Errorf("got %v, want %v", err, tree.ErrDamaged)
	}
	if _, err := b.pod().fetch(t.Context(), everything, moved, to, openMemory(to, "claim")); err != nil {
		t.Error(err)
	}
}

// A connection that passes nothing ends the fetch at last.
func TestFetchGivesUp(t *testing.T) {
	claim, _ := checkpoint(t)
	b := &balanced{claim: claim, commands: map[string]int{}, enough: always}
	if _, err := b.pod().fetch(t.Context(), everything, moved, t.TempDir(), &memory{path: filepath.Join(t.TempDir(), "files")}); !errors.Is(
		err, errCut) {
		t.Errorf("got %v, want %v", err, errCut)
	}
	if b.commands["send"] != attempts {
		t.Errorf("%d attempts, want %d", b.commands["send"], attempts)
	}
}

// everything is the whole claim, and moved the place of its record.
var (
	everything = []Path{{Name: ".", Places: []string{"."}}}
	moved      = map[string]string{"record": "logs"}
)

// A file that goes to a stream continues too, each byte once.
func TestStreamContinues(t *testing.T) {
	claim, _ := checkpoint(t)
	b := &balanced{claim: claim, most: 5 << 20, commands: map[string]int{}, enough: always}
	manifest, err := b.pod().listFiles(t.Context(), []string{"model.bin"}, &memory{})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := b.pod().receive(t.Context(), manifest.Manifest, newStream(manifest.Manifest.Entries[0].Content, &out)); err != nil {
		t.Fatal(err)
	}
	if want, err := os.ReadFile(filepath.Join(claim, "model.bin")); err != nil || !bytes.Equal(out.Bytes(), want) {
		t.Errorf("%d bytes, %v; want the file's %d", out.Len(), err, len(want))
	}
}
