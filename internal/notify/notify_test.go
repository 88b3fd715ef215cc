// SPDX-License-Identifier: Apache-2.0

package notify

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
)

// secretPath must not be in any log.
const secretPath = "/services/T0/B0/hush"

// open returns a Sender to the server, and its log.
func open(t *testing.T, server *httptest.Server) (*Sender, *bytes.Buffer) {
	t.Helper()
	dir, log := t.TempDir(), &bytes.Buffer{}
	bundle := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	for name, content := range map[string]string{"slack/url": server.URL + secretPath + "\n", "ca": string(bundle)} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var f Flags
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	f.AddTo(flags)
	if err := flags.Parse([]string{"--notify-dir=" + filepath.Join(dir, "slack"), "--ca-file=" + filepath.Join(dir, "ca")}); err != nil {
		t.Fatal(err)
	}
	s := f.Open(command.TextLog(log), Event{Run: "train-1", Namespace: "ml", Environment: "env"}, "uid-1")
	if s == nil {
		t.Fatalf("the Secret was refused: %s", log)
	}
	s.pause = time.Millisecond
	return s, log
}

func TestSend(t *testing.T) {
	var ids []string
	var body []byte
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ids = append(ids,
			strings.Join([]string{r.Method, r.URL.Path, r.Header.Get("Content-Type"), r.Header.Get("ce-specversion"), r.Header.Get("ce-id"),
				r.Header.Get("ce-source"), r.Header.Get("ce-type")}, " "))
		body, _ = io.ReadAll(r.Body)
		w.WriteHeader([]int{http.StatusServiceUnavailable, http.StatusTooManyRequests, http.StatusNoContent}[len(ids)-1])
	}))
	defer server.Close()
	s, log := open(t, server)
	s.Send(Event{Kind: Restart, Attempt: 1, Nodes: 2, Reason: "RankFailed", Message: "rank 1 printed\n<!channel>", Seconds: 61})
	s.Wait()
	want := "POST " + secretPath + " application/json 1.0 uid-1-restart-1 /namespaces/ml/pipelineruns/train-1 io.github.ml-dev-env.run.restart"
	if diff := cmp.Diff([]string{want, want, want}, ids); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	var got map[string]any
	if err := json.Unmarshal(body, &got); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	delete(got, "time")
	if diff := cmp.Diff(map[string]any{
		"text": "Run train-1 in namespace ml: attempt 1 failed after 1m1s: RankFailed: rank 1 printed &lt;!channel&gt;. Attempt 2 starts when " +
			"all nodes answer.", "event": "restart", "run": "train-1",
		"namespace": "ml", "environment": "env", "reason": "RankFailed", "message": "rank 1 printed\n<!channel>", "attempt": 1.0, "nodes": 2.0,
		"seconds": 61.0,
	}, got); diff != "" {
		t.Errorf("body (-want +got):\n%s", diff)
	}
	if log.Len() > 0 {
		t.Errorf("the log has %q, want nothing", log)
	}
}

func TestText(t *testing.T) {
	for want, e := range map[string]Event{
		"Run r in namespace ml trains on 2 nodes.":                          {Kind: Start, Nodes: 2, Run: "r"},
		"The training on environment env in namespace ml trains on 1 node.": {Kind: Start, Nodes: 1},
		"Run r in namespace ml hangs: Hang: rank 3 waits": {Kind: Hang, Run: "r", Reason: "Hang",
			Message: "rank 3 waits"},
		"Run r in namespace ml: Succeeded after 2h0m": {Kind: End, Run: "r", Verdict: "Succeeded", Seconds: 7200},
		"Run r in namespace ml: Failed after 2.0 s: QuotaExceeded: no GPU is left": {Kind: End, Run: "r", Verdict: "Failed", Seconds: 2,
			Reason: "QuotaExceeded", Message: "no GPU\nis left"},
	} {
		e.Namespace, e.Environment = "ml", "env"
		if got := e.text(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestReceiversAreBounded: any receiver costs a bounded time and gets only its own URL, and the log shows nothing of the
// URL except its host.
func TestReceiversAreBounded(t *testing.T) {
	other := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("request to another host: %s", r.URL)
	}))
	defer other.Close()
	closed := make(chan struct{})
	defer close(closed)
	for _, tc := range []struct {
		name   string
		answer http.HandlerFunc
		tries  int
		says   string
	}{
		{"refuses", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, secretPath, http.StatusNotFound) }, 1, "it answered 404"},
		{"is broken", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }, tries, "it answered 502"},
		{"redirects", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL+secretPath, http.StatusTemporaryRedirect)
		}, 1, "it answered 307"},
		// It may not end with its request either: an answer of the server's own, 200, could overtake the end of the client's time. On a
		// busy machine even the handshake may be too slow.
		{"is silent", func(http.ResponseWriter, *http.Request) { <-closed }, 0, "Client.Timeout exceeded"},
		{"is no HTTP server", func(w http.ResponseWriter, r *http.Request) {
			connection, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				_, _ = io.WriteString(connection, r.URL.Path+"\r\n\r\n")
				_ = connection.Close()
			}
		}, tries, "malformed HTTP"},
	} {
		asked := make(chan struct{}, 100)
		server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked <- struct{}{}
			_, _ = io.Copy(io.Discard, r.Body)
			tc.answer(w, r)
		}))
		t.Cleanup(server.Close)
		s, log := open(t, server)
		if tc.name == "is silent" {
			const timeThatPasses = 50 * time.Millisecond
			s.client.Timeout = timeThatPasses
		}
		s.Send(Event{Kind: Start})
		s.Wait()
		if got := log.String(); !strings.HasPrefix(got, "warning: The event start was not sent to 127.0.0.1: ") ||
			!strings.Contains(got, tc.says) || strings.Contains(got, "hush") {
			t.Errorf("a receiver that %s: the log has %q, want %q", tc.name, got, tc.says)
		}
		if tc.tries > 0 && len(asked) != tc.tries {
			t.Errorf("a receiver that %s got %d requests, want %d", tc.name, len(asked), tc.tries)
		}
	}
}

func TestSecret(t *testing.T) {
	for _, tc := range []struct{ url, want string }{
		{"https://hooks.slack.com/services/hush", ""},
		{"http://relay.ml.svc/hush", ""},
		{"http://relay.ml.svc.cluster.local:8080", ""},
		{"http://hooks.slack.com/hush", "want an https:// URL"},
		{"http://relay.ml.svc.evil.example/hush", "want an https:// URL"},
		{"https:///hush", "want an https:// URL"},
		{"hush\x00://", "want an https:// URL"},
		{"", "it does not exist in this namespace, or has no keys"},
	} {
		dir, log := filepath.Join(t.TempDir(), "slack"), &bytes.Buffer{}
		if tc.url != "" {
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "url"), []byte(tc.url), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		s := Flags{secretDir: dir}.Open(command.TextLog(log), Event{}, "")
		if (s != nil) != (tc.want == "") || !strings.Contains(log.String(), tc.want) || strings.Contains(log.String(), "hush") {
			t.Errorf("%q: the log has %q, want %q without the URL", tc.url, log, tc.want)
		}
	}
	for _, dir := range []string{"", "/etc/mlenv/notify/none"} {
		if s := (Flags{secretDir: dir}).Open(nil, Event{}, ""); s != nil {
			t.Errorf("%q: events are sent", dir)
		}
	}
	var nobody *Sender
	nobody.Send(Event{Kind: End})
	nobody.Wait()
}
