// SPDX-License-Identifier: Apache-2.0

package program

import (
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// If the server stops sending one file, the download still gets the other file.
func TestDownloadFromAServerThatFallsSilent(t *testing.T) {
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "4")
		_, _ = io.WriteString(w, "ab")
		if r.URL.Path == "/silent" {
			w.(http.Flusher).Flush()
			<-release
		}
		_, _ = io.WriteString(w, "cd")
	}))
	defer server.Close()
	defer close(release)
	var out strings.Builder
	const timeForTheNextByte = 2 * time.Second
	wanted := []agent.Download{{URL: server.URL + "/silent", Path: "a"}, {URL: server.URL + "/whole", Path: "b"}}
	err := download(t.Context(), t.TempDir(), wanted, timeForTheNextByte, &out)
	if err == nil || !strings.Contains(err.Error(), "sent nothing for 2s") {
		t.Errorf("got %v, want an error that the server fell silent", err)
	}
	if !strings.Contains(out.String(), "  b, 4 ") {
		t.Errorf("got %q, want the file behind it", out.String())
	}
}

// TestDownloadDoesNotBlock: a FIFO in the place of a file, or of the half of one, is an error; the other files arrive.
func TestDownloadDoesNotBlock(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "abcd") }))
	defer server.Close()
	dir := t.TempDir()
	for _, name := range []string{"a", tree.Partial + "b"} {
		if err := syscall.Mkfifo(filepath.Join(dir, name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	content := tree.Digest(strings.Repeat("0", 64))
	wanted := []agent.Download{
		{URL: server.URL, Path: "a", Content: content}, {URL: server.URL, Path: "b", Content: content}, {URL: server.URL, Path: "c"},
	}
	const timeForAnError = time.Minute // in which only a call that blocks returns none
	ended := make(chan error, 1)
	var out strings.Builder
	go func() { ended <- download(t.Context(), dir, wanted, time.Minute, &out) }()
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(out.String(), "  c, 4 ") {
			t.Errorf("got %v and %q, want errors for two files and the third one", err, out.String())
		}
	case <-time.After(timeForAnError):
		t.Error("it blocks")
	}
}
