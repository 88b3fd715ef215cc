package program

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
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
