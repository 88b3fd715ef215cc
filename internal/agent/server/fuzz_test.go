// SPDX-License-Identifier: Apache-2.0

package server

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

// FuzzRequests sends any body to the handlers that accept one and start no process. The answer is a success, or it blames
// the caller and has a message.
func FuzzRequests(f *testing.F) {
	hash := strings.Repeat("a", 64)
	targets := []string{
		"PUT /v1/network", "POST /v1/trees/" + hash, "POST /v1/trees/" + hash + "/switch", "POST /v1/trees/" + hash + "/contents",
		"POST /v1/trees/" + hash + "/pull", "PUT /v1/trees/" + hash + "/content",
		"POST /v1/jobs/job/stop", "PUT /v1/records/job/fabric.json", "POST /v1/trees/short", "PUT /v1/records/../fabric.json",
		"POST /v1/checkpoints",
	}
	for i, body := range []string{`{"mode":"tcp","set":{"A":"1"}}`, `{"entries":[]}`, `{"venv":"/x"}`, "\x28\xb5\x2f\xfd", `{"reason":"x"}`,
		"{}", "null", `[1]`, "", `{"folder":"/etc"}`} {
		f.Add(i, []byte(body))
	}
	dir := f.TempDir()
	s, err := New(Config{
		Name: "env", Suffix: "env-headless.ns.svc", Nodes: 1, GPUs: 1, PodIP: "127.0.0.1", Program: "/nonexistent",
		Paths: Paths{Workspace: filepath.Join(dir, "workspace"), Datasets: dir, Home: filepath.Join(dir, "home"), Sys: dir},
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		f.Fatal(err)
	}
	handler := s.Handler()
	step := &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}}}
	f.Fuzz(func(t *testing.T, target int, body []byte) {
		if target < 0 || target >= len(targets) {
			return
		}
		method, path, _ := strings.Cut(targets[target], " ")
		recorder := httptest.NewRecorder()
		request := httptest.NewRequest(method, path, strings.NewReader(string(body)))
		request.TLS = step
		handler.ServeHTTP(recorder, request)
		switch code := recorder.Code; {
		case code/100 == 2, code/100 == 3:
		case code == http.StatusNotFound, code == http.StatusUnprocessableEntity:
			var problem agent.Problem
			if err := json.Unmarshal(recorder.Body.Bytes(), &problem); err != nil || problem.Message == "" {
				t.Errorf("%s: %d with %q, want a message", targets[target], code, recorder.Body)
			}
		default:
			t.Errorf("%s with %q: %d %s", targets[target], body, code, recorder.Body)
		}
	})
}
