// SPDX-License-Identifier: Apache-2.0

package program

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// TestWaits is no test: it is the process of a transfer whose connection broke, which another test starts.
func TestWaits(t *testing.T) {
	if os.Getenv("UPLOAD_WAITS") == "" {
		t.Skip("only as a process of its own")
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// An upload that continues ends the process that the broken connection left, which may still write.
func TestEndOthers(t *testing.T) {
	dir := t.TempDir()
	waits := func(dir string) (*exec.Cmd, io.Closer) {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestWaits$", "files", "continue", dir)
		cmd.Env = append(os.Environ(), "UPLOAD_WAITS=1")
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err == nil {
			_, err = io.ReadFull(out, make([]byte, len("ready\n")))
		}
		if err != nil {
			t.Fatal(err)
		}
		return cmd, in
	}
	old, in := waits(dir)
	defer in.Close()
	other, otherIn := waits(filepath.Join(dir, "deep"))
	var out bytes.Buffer
	if err := Files([]string{"parts", dir}, strings.NewReader("{}"), &out); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := old.Wait(); !errors.As(err, &exit) || exit.ExitCode() != -1 {
		t.Errorf("the old process: %v, want it killed", err)
	}
	otherIn.Close()
	if err := other.Wait(); err != nil {
		t.Errorf("the process of another folder: %v, want it to end by itself", err)
	}
}

// A content that is damaged is named, and what came before it stays.
func TestContinueDamaged(t *testing.T) {
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "new")
	write(t, from, map[string]string{"a": "first", "b": "second"})
	m, err := tree.Scan(t.Context(), from, nil)
	if err != nil {
		t.Fatal(err)
	}
	first, second := m.Entries[0].Content, m.Entries[1].Content
	send := func(missing ...tree.Digest) (result agent.UploadResult, err error) {
		header, err := json.Marshal(agent.UploadRequest{Manifest: m})
		if err != nil {
			t.Fatal(err)
		}
		in, out := bytes.NewBuffer(append(header, '\n')), &bytes.Buffer{}
		if err := tree.WriteRest(t.Context(), in, from, m, missing, nil); err != nil {
			t.Fatal(err)
		}
		if err := Files([]string{"continue", to}, in, out); err != nil {
			return result, err
		}
		return result, json.Unmarshal(out.Bytes(), &result)
	}
	if result, err := send(first); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("without the second content: %+v, %v; want %v", result, err, io.ErrUnexpectedEOF)
	}
	part := filepath.Join(to, tree.Partial+string(second))
	if err := os.WriteFile(part, []byte("other!"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	request, err := json.Marshal(agent.UploadRequest{Manifest: m, Seconds: 1})
	if err == nil {
		err = Files([]string{"parts", to}, bytes.NewReader(request), &out)
	}
	var found agent.UploadParts
	if err = errors.Join(err, json.Unmarshal(out.Bytes(), &found)); err != nil || !found.All || found.Parts[second].Size != 6 {
		t.Fatalf("got %+v, %v; want a part of 6 bytes", found, err)
	}
	request, err = json.Marshal(agent.UploadRequest{Manifest: m, Parts: found.Parts})
	if err != nil {
		t.Fatal(err)
	}
	in := bytes.NewBuffer(append(request, '\n'))
	if err := tree.WriteRest(t.Context(), in, from, m, []tree.Digest{second}, map[tree.Digest]int64{second: 6}); err != nil {
		t.Fatal(err)
	}
	out.Reset()
	if err := Files([]string{"continue", to}, in, &out); err != nil || !strings.Contains(out.String(), string(second)) {
		t.Errorf("got %q, %v; want the damaged content %s", out.String(), err, second)
	}
	if result, err := send(first, second); err != nil || result.Damaged != "" {
		t.Errorf("again: %+v, %v", result, err)
	}
	if diff := cmp.Diff(map[string]string{"a": "first", "b": "second"}, read(t, to)); diff != "" {
		t.Errorf("the folder (-want +got):\n%s", diff)
	}
}
