package agenttest

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/spf13/pflag"

	"github.com/ml-dev-env/ml-dev-env/internal/step/notify"
)

// Receiver starts a server of notifications. It returns a Sender to it, and a function that waits for the sent events and
// returns them in no order, each as "KIND ATTEMPT VERDICT REASON".
func Receiver(t testing.TB) (*notify.Sender, func() []string) {
	t.Helper()
	var mu sync.Mutex
	var got []string
	server := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var e notify.Event
		err := json.NewDecoder(r.Body).Decode(&e)
		mu.Lock()
		defer mu.Unlock()
		if got = append(got, strings.TrimSpace(fmt.Sprint(e.Kind, " ", e.Attempt, " ", e.Verdict, " ", e.Reason))); err != nil {
			t.Errorf("reading a notification: %v", err)
		}
	}))
	t.Cleanup(server.Close)
	secret, ca := t.TempDir(), filepath.Join(t.TempDir(), "ca.crt")
	for path, content := range map[string][]byte{
		filepath.Join(secret, "url"): []byte(server.URL), ca: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
	} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var f notify.Flags
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	f.AddTo(flags)
	if err := flags.Parse([]string{"--notify-dir=" + secret, "--ca-file=" + ca}); err != nil {
		t.Fatal(err)
	}
	sender := f.Open(slog.Default(), notify.Event{Run: "run", Namespace: "ns"}, "uid")
	return sender, func() []string {
		sender.Wait()
		mu.Lock()
		defer mu.Unlock()
		slices.Sort(got)
		return got
	}
}
