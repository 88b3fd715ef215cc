// SPDX-License-Identifier: Apache-2.0

package live

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/metrics"
)

// hostile is text that a training may write.
const hostile = `<script>alert("x")</script>`

func examplePage() Page {
	history := metrics.History{}
	for step := range 3 {
		history.Add(map[string]any{"step": float64(step + 1), "loss": 3.5 - float64(step), "time": 1790000000.0 + float64(step)})
	}
	state := State{Environment: "env",
		Jobs: []Job{{ID: "job-1", Run: hostile, Step: 3, Steps: 10, Loss: hostile, Fabric: "Fabric: pass", Curve: history.Curve(),
			Ranks: []Rank{{Rank: 0, Node: 0, State: "running"}, {Rank: 1, Node: 1, State: "exited with 1"}}}},
		Nodes: []Node{{Node: 0, KubernetesNode: "node-a"}, {Node: 1, Problem: hostile}}}
	return Page{Environment: "env", State: func(context.Context) (State, error) { return state, nil },
		Log: func(_ context.Context, job string, node, rank int) (io.ReadCloser, error) {
			if job != "job-1" || node != 1 || rank != 3 {
				return nil, errors.New("no such rank")
			}
			return io.NopCloser(strings.NewReader("line 1\n" + hostile + "\n")), nil
		}}
}

func get(handler http.Handler, host, path string) *httptest.ResponseRecorder {
	request := httptest.NewRequest(http.MethodGet, path, nil)
	request.Host = host
	answer := httptest.NewRecorder()
	handler.ServeHTTP(answer, request)
	return answer
}

func TestPage(t *testing.T) {
	handler := examplePage().Handler("127.0.0.1:8000", "token")
	for _, tc := range []struct {
		name, host, path string
		code             int
		contentType      string
		want             []string
	}{
		{"the page", "127.0.0.1:8000", "/token/", 200, "text/html", []string{"Environment env", `fetch("state")`}},
		{"its changing part", "127.0.0.1:8000", "/token/state", 200, "text/html", []string{`<progress max="10" value="3">`, "Loss by step",
			"Fabric: pass",
			"exited with 1", `href="log/job-1/1/1"`, "node-a", "node 1: &lt;script&gt;"}},
		{"a log", "127.0.0.1:8000", "/token/log/job-1/1/3", 200, "text/plain", []string{"line 1\n" + hostile}},
		{"a rank that is missing", "127.0.0.1:8000", "/token/log/job-1/1/9", 502, "text/plain", []string{"no such rank"}},
		{"no number", "127.0.0.1:8000", "/token/log/job-1/1/x", 400, "text/plain", []string{`"x"`}},
		{"another token", "127.0.0.1:8000", "/tokem/state", 404, "", nil},
		{"no token", "127.0.0.1:8000", "/", 404, "", nil},
		{"another host, as after DNS rebinding", "evil.example:8000", "/token/state", 404, "", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			answer := get(handler, tc.host, tc.path)
			body := answer.Body.String()
			if answer.Code != tc.code || !strings.HasPrefix(answer.Header().Get("Content-Type"), tc.contentType) {
				t.Errorf("got %d, %s: %s", answer.Code, answer.Header().Get("Content-Type"), body)
			}
			for _, want := range tc.want {
				if !strings.Contains(body, want) {
					t.Errorf("%q is missing in:\n%s", want, body)
				}
			}
			if tc.contentType == "text/html" && strings.Contains(body, hostile) {
				t.Errorf("text of the training is markup:\n%s", body)
			}
			if tc.code == 200 && answer.Header().Get("X-Content-Type-Options") != "nosniff" {
				t.Errorf("the headers are %v", answer.Header())
			}
		})
	}
	gone := Page{State: func(context.Context) (State, error) { return State{}, errors.New("the environment is gone") }}
	if answer := get(gone.Handler("h", "t"), "h", "/t/state"); answer.Code != 502 || !strings.Contains(answer.Body.String(), "gone") {
		t.Errorf("without an environment: %d, %s", answer.Code, answer.Body)
	}
}

// The address works until ctx ends.
func TestServe(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	reader, writer := io.Pipe()
	served := make(chan error, 1)
	go func() { served <- serve(ctx, writer, examplePage()) }()
	line := make([]byte, 1000)
	n, err := reader.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	url, _, _ := bytes.Cut(line[:n], []byte(" "))
	if !bytes.HasPrefix(url, []byte("http://127.0.0.1:")) {
		t.Errorf("printed %q", line[:n])
	}
	answer, err := http.Get(string(url) + "state")
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		t.Errorf("got %s", answer.Status)
	}
	interrupt()
	if err := <-served; err != nil {
		t.Errorf("Ctrl-C: %v", err)
	}
}
