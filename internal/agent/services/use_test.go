// SPDX-License-Identifier: Apache-2.0

package services

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

// TestGateNotesUse: what the program gets is use, and each message over a WebSocket; a client without the token uses nothing.
func TestGateNotesUse(t *testing.T) {
	back := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			return
		}
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", "websocket")
		w.WriteHeader(http.StatusSwitchingProtocols)
		conn, buffer, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = io.Copy(conn, buffer) // until the client is gone
	}))
	defer back.Close()
	service, _ := agent.FindService(agent.Jupyter)
	var used atomic.Int64
	g := newGate(service, token, back.Listener.Addr().String(), "")
	g.used = func() { used.Add(1) }
	front := httptest.NewServer(g.handler())
	defer front.Close()

	visit(t, browser(t), front.URL+"/lab")
	visit(t, browser(t), front.URL+"/lab?token=wrong")
	if n := used.Load(); n != 0 {
		t.Errorf("without the token: used %d times", n)
	}
	conn, err := net.Dial("tcp", front.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET /api HTTP/1.1\r\nHost: x\r\nAuthorization: token %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", token)
	reader := bufio.NewReader(conn)
	answer, err := http.ReadResponse(reader, nil)
	if err != nil || answer.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("got %v, %v", answer, err)
	}
	defer answer.Body.Close()
	before := used.Load()
	if before == 0 {
		t.Error("the request was not noted")
	}
	for i := range 2 {
		fmt.Fprint(conn, "hello")
		if _, err := io.ReadFull(reader, make([]byte, len("hello"))); err != nil {
			t.Fatal(err)
		}
		if now := used.Load(); now <= before {
			t.Errorf("message %d was not noted", i)
		} else {
			before = now
		}
	}
}

// TestCodeServerInUse: code-server itself reports whether a browser is connected.
func TestCodeServerInUse(t *testing.T) {
	for answer, want := range map[string]bool{
		`{"status":"alive","lastHeartbeat":1790000000000}`: true, `{"status":"expired","lastHeartbeat":0}`: false, "not found": false, "": false,
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/healthz" {
				t.Errorf("asked for %s", r.URL)
			}
			fmt.Fprint(w, answer)
		}))
		m := New(Options{}, slog.New(slog.DiscardHandler))
		if m.InUse(t.Context()) {
			t.Error("in use without code-server")
		}
		m.live[agent.CodeServer] = &service{program: program{listens: server.Listener.Addr().String()}}
		if got := m.InUse(t.Context()); got != want {
			t.Errorf("%s: %t, want %t", answer, got, want)
		}
		server.Close()
		if m.InUse(t.Context()) {
			t.Error("in use although it does not answer")
		}
	}
}
