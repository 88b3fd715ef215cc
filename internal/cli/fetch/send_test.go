// SPDX-License-Identifier: Apache-2.0

package fetch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	agentprogram "github.com/ml-dev-env/ml-dev-env/internal/agent/program"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// filled is a pod that runs the agent's file commands on a folder, behind a balancer that cuts every connection after so many bytes of
// its input.
type filled struct {
	claim string
	most  int
	// passed counts the bytes that came, connections those that brought contents.
	passed, connections int
	// before is called before each of those.
	before func(connection int)
	// loses has the answers lost of connections that are complete.
	loses bool
}

func (f *filled) pod() *pod { return &pod{name: "pod", run: f.run} }

func (f *filled) run(_ context.Context, stdin io.Reader, stdout io.Writer, args ...string) error {
	at := args[len(args)-1]
	local := slices.Concat(args[:len(args)-1], []string{filepath.Join(f.claim, strings.TrimPrefix(at, agent.Workspace))})
	cut := &cutInput{from: stdin, left: f.most}
	sends := args[0] == "land" || args[0] == "continue"
	if sends {
		if f.connections++; f.before != nil {
			f.before(f.connections)
		}
	} else {
		cut.left = 1 << 30
	}
	err := agentprogram.Files(local, cut, stdout)
	if sends {
		f.passed += cut.passed
	}
	switch {
	case cut.over:
		return errCut
	case err != nil:
		return errors.Join(err, &kube.ExitError{Code: 1})
	case sends && f.loses:
		f.loses = false
		return errCut
	}
	return nil
}

// cutInput ends after so many bytes.
type cutInput struct {
	from         io.Reader
	left, passed int
	over         bool
}

func (c *cutInput) Read(p []byte) (int, error) {
	if c.left == 0 {
		c.over = true
		return 0, io.EOF
	}
	n, err := c.from.Read(p[:min(len(p), c.left)])
	c.left -= n
	c.passed += n
	return n, err
}

// longest is a name that leaves no room for a prefix.
var longest = strings.Repeat("n", 255)

// dataset makes a folder with two large files, a small one, one with a long name, a link and an empty folder.
func dataset(t *testing.T) (dir string, size int) {
	t.Helper()
	dir = t.TempDir()
	random := rand.NewChaCha8([32]byte{2})
	for _, name := range []string{"a.bin", longest, "deep/b.bin", "deep/same.bin", "small"} {
		content := make([]byte, 4<<20)
		_, _ = random.Read(content)
		switch name {
		case "deep/same.bin":
			content, _ = os.ReadFile(filepath.Join(dir, "deep/b.bin"))
		case "small":
			content = []byte("small")
		default:
			size += len(content)
		}
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink("a.bin", filepath.Join(dir, "link")), os.Mkdir(filepath.Join(dir, "empty"), 0o755)); err != nil {
		t.Fatal(err)
	}
	return dir, size
}

func uploaded(ctx context.Context, t *testing.T, p *pod, dir string) (Upload, error) {
	t.Helper()
	m, err := tree.Scan(t.Context(), dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	return p.upload(ctx, dir, m, "to", func(sent, all int64) {
		const overhead = 64 << 10
		if sent > all+overhead {
			t.Errorf("%d bytes of %d are sent", sent, all)
		}
	})
}

func compare(t *testing.T, dir, claim string) {
	t.Helper()
	want, err := tree.Scan(t.Context(), dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	got, err := tree.Scan(t.Context(), filepath.Join(claim, "to"), nil)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v, the claim (-want +got):\n%s", err, diff)
	}
}

// Several files arrive through a balancer with a time limit, each byte about once, and a second upload continues the first.
func TestUploadEndsBehindABalancer(t *testing.T) {
	dir, size := dataset(t)
	ctx, interrupt := context.WithCancel(t.Context())
	f := &filled{claim: t.TempDir(), most: 3 << 20}
	f.before = func(connection int) {
		if connection == 3 {
			interrupt() // the user closes the laptop
		}
	}
	if _, err := uploaded(ctx, t, f.pod(), dir); err == nil {
		t.Fatal("the upload ended, want an interruption")
	}
	if _, err := os.Stat(filepath.Join(f.claim, "to", longest)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an incomplete file has its name: %v", err)
	}
	f.before, f.loses = nil, true
	upload, err := uploaded(t.Context(), t, f.pod(), dir)
	if err != nil || upload.Files != 5 {
		t.Fatalf("got %+v, %v", upload, err)
	}
	if f.passed > size+f.most {
		t.Errorf("%d bytes passed for files of %d", f.passed, size)
	}
	compare(t, dir, f.claim)
	const bytesWithoutAFile = 10 << 10
	before := f.passed
	if upload, err := uploaded(t.Context(), t, f.pod(), dir); err != nil || upload.Sent != 0 || f.passed-before > bytesWithoutAFile {
		t.Errorf("again: %+v, %v, %d bytes", upload, err, f.passed-before)
	}
}

// A file that changes while it is sent is not put together from two versions, and the next upload sends the new one.
func TestUploadNoticesAChange(t *testing.T) {
	dir, _ := dataset(t)
	f := &filled{claim: t.TempDir(), most: 3 << 20}
	f.before = func(connection int) {
		if connection == 2 {
			file, err := os.OpenFile(filepath.Join(dir, "a.bin"), os.O_WRONLY, 0)
			if err == nil {
				_, err = file.WriteAt([]byte("another version"), 4<<20-1000) // what has not been sent yet
				err = errors.Join(err, file.Close())
			}
			if err != nil {
				t.Error(err)
			}
		}
	}
	if _, err := uploaded(t.Context(), t, f.pod(), dir); fail.ReasonOf(err) != fail.SyncFailed || !strings.Contains(err.Error(), "a.bin") {
		t.Errorf("got %v, want SyncFailed with the file", err)
	}
	if _, err := os.Stat(filepath.Join(f.claim, "to", "a.bin")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file of two versions has its name: %v", err)
	}
	if _, err := uploaded(t.Context(), t, f.pod(), dir); err != nil {
		t.Error(err)
	}
	if got, err := os.ReadFile(filepath.Join(f.claim, "to", "a.bin")); err != nil || !strings.Contains(string(got), "another version") {
		t.Errorf("the claim has %d bytes, %v; want the new version", len(got), err)
	}
}

// A connection that passes nothing ends the upload at last.
func TestUploadGivesUp(t *testing.T) {
	dir, _ := dataset(t)
	f := &filled{claim: t.TempDir()}
	if _, err := uploaded(t.Context(), t, f.pod(), dir); !errors.Is(err, errCut) {
		t.Errorf("got %v, want %v", err, errCut)
	}
	if f.connections < 2 || f.connections > attempts+1 {
		t.Errorf("%d attempts, want about %d", f.connections, attempts)
	}
}

// Downloads by the pod continue after a broken connection, and each file is reported once.
func TestDownloadsGoOn(t *testing.T) {
	calls := 0
	p := &pod{name: "pod", run: func(_ context.Context, _ io.Reader, stdout io.Writer, args ...string) error {
		if calls++; args[0] != "download" {
			t.Errorf("command %q", args)
		}
		if calls < attempts+2 {
			_, _ = io.WriteString(stdout, strings.Repeat("x", min(calls, 2))+"\nin the mid")
			return errCut
		}
		_, _ = io.WriteString(stdout, "x\nxx\nxxx\n")
		return nil
	}}
	var out strings.Builder
	err := p.download(t.Context(), []agent.Download{{URL: "https://example.com/x"}}, "to", &out)
	if err != nil || out.String() != "x\nxx\nxxx\n" {
		t.Errorf("got %q, %v", out.String(), err)
	}
	p.run = func(context.Context, io.Reader, io.Writer, ...string) error { calls++; return errCut }
	calls = 0
	if err := p.download(t.Context(), nil, "to", io.Discard); !errors.Is(err, errCut) || calls != attempts {
		t.Errorf("got %v after %d attempts, want %v after %d", err, calls, errCut, attempts)
	}
}

// The pod of an older installation begins at 0.
func TestUploadToAnOlderAgent(t *testing.T) {
	dir, _ := dataset(t)
	f := &filled{claim: t.TempDir(), most: 1 << 30}
	p := f.pod()
	p.run = func(ctx context.Context, stdin io.Reader, stdout io.Writer, args ...string) error {
		if args[0] == "parts" || args[0] == "continue" {
			return errors.Join(errors.New(`files ["parts"]: want hold, list DIR PATH..., remove DIR PATH...`), &kube.ExitError{Code: 1})
		}
		return f.run(ctx, stdin, stdout, args...)
	}
	if upload, err := uploaded(t.Context(), t, p, dir); err != nil || upload.Sent != 5 {
		t.Errorf("got %+v, %v", upload, err)
	}
	compare(t, dir, f.claim)
}

// Another version on the claim, which the upload replaces, is read once, however often the connection breaks.
func TestUploadReplaces(t *testing.T) {
	dir, claim := t.TempDir(), t.TempDir()
	content := make([]byte, tree.LargeFile)
	_, _ = rand.NewChaCha8([32]byte{4}).Read(content)
	err := errors.Join(os.Mkdir(filepath.Join(claim, "to"), 0o755), os.WriteFile(filepath.Join(dir, "model"), content, 0o600),
		os.WriteFile(filepath.Join(claim, "to", "model"), make([]byte, tree.LargeFile), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	f := &filled{claim: claim, most: 9 << 20}
	p, known := f.pod(), 0
	p.run = func(ctx context.Context, stdin io.Reader, stdout io.Writer, args ...string) error {
		if args[0] != "page" {
			return f.run(ctx, stdin, stdout, args...)
		}
		var request agent.PageRequest
		content, err := io.ReadAll(stdin)
		if err = errors.Join(err, json.Unmarshal(content, &request)); err != nil {
			t.Error(err)
		}
		known = len(request.From.Known)
		return f.run(ctx, bytes.NewReader(content), stdout, args...)
	}
	if _, err := uploaded(t.Context(), t, p, dir); err != nil || f.connections < 2 || known != 1 {
		t.Errorf("%v after %d connections; %d files were known at the last one, want the one in its place", err, f.connections, known)
	}
	compare(t, dir, claim)
}
