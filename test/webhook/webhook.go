// SPDX-License-Identifier: Apache-2.0

// Package webhook receives the events that programs post in tests.
package webhook

import (
	"encoding/json"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/pflag"

	"github.com/ml-dev-env/ml-dev-env/internal/notify"
)

// Receive makes the flags of a program name a server of the test, and returns what arrives there.
func Receive(t *testing.T, to *notify.Flags) <-chan notify.Event {
	t.Helper()
	const most = 10
	posted := make(chan notify.Event, most)
	server := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var e notify.Event
		if err := json.NewDecoder(r.Body).Decode(&e); err != nil {
			t.Error(err)
		}
		posted <- e
	}))
	t.Cleanup(server.Close)
	secret, ca := filepath.Join(t.TempDir(), "slack"), filepath.Join(t.TempDir(), "ca")
	bundle := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	to.AddTo(flags)
	if err := errors.Join(os.Mkdir(secret, 0o755), os.WriteFile(filepath.Join(secret, "url"), []byte(server.URL), 0o600),
		os.WriteFile(ca, bundle, 0o600), flags.Parse([]string{"--notify-dir=" + secret, "--ca-file=" + ca})); err != nil {
		t.Fatal(err)
	}
	return posted
}
