// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"k8s.io/client-go/rest"
)

// Proxy starts a proxy before an API server that fails about one of every requests, by a seed, each verb of a path once at most. It
// returns the proxy's address, and how many requests it has failed. Whoever reaches the address has the rights of config.
func Proxy(t testing.TB, config *rest.Config, seed uint64, every int) (address string, failed func() int) {
	t.Helper()
	transport, err := rest.TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	server, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		t.Fatal(err)
	}
	faulty := &seeded{next: transport, random: rand.New(rand.NewPCG(seed, seed)), every: every, seen: map[string]bool{}}
	return front(t, &url.URL{Scheme: server.Scheme, Host: server.Host}, faulty), faulty.count
}

// Kubeconfig returns the file of a kubeconfig for the server, for programs that make their clients themselves. wrap, which may be nil,
// stands between them and the server.
func (s *Server) Kubeconfig(wrap func(http.RoundTripper) http.RoundTripper) (path string) {
	s.t.Helper()
	address := s.http.URL
	if wrap != nil {
		server, err := url.Parse(address)
		if err != nil {
			s.t.Fatal(err)
		}
		address = front(s.t, server, wrap(http.DefaultTransport))
	}
	path = filepath.Join(s.t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, []byte(Kubeconfig(address)), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return path
}

// front starts a proxy before a server, with this transport between them, and returns its address.
func front(t testing.TB, server *url.URL, transport http.RoundTripper) string {
	t.Helper()
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(server) },
		Transport:     transport,
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0),
		// The client sees a connection that breaks.
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	listening := httptest.NewUnstartedServer(proxy)
	listening.Config.ErrorLog = log.New(io.Discard, "", 0)
	listening.Start()
	t.Cleanup(func() {
		listening.CloseClientConnections()
		listening.Close()
	})
	return listening.URL
}

// seeded fails requests at random.
type seeded struct {
	next  http.RoundTripper
	every int

	mu     sync.Mutex
	random *rand.Rand
	seen   map[string]bool
	failed int
}

func (s *seeded) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// RoundTrip implements http.RoundTripper.
func (s *seeded) RoundTrip(request *http.Request) (*http.Response, error) {
	if fault := s.choose(request); fault != "" {
		return fault.inject(request, s.next)
	}
	return s.next.RoundTrip(request)
}

// choose returns the fault of a request, "" for none. Streams, and requests that nobody can repeat, have none.
func (s *seeded) choose(request *http.Request) Fault {
	call := request.Method + " " + request.URL.Path
	s.mu.Lock()
	defer s.mu.Unlock()
	if request.Header.Get("Upgrade") != "" || request.URL.Query().Get("watch") != "" || s.seen[call] || s.random.IntN(s.every) != 0 {
		return ""
	}
	faults := Faults()
	fault := faults[s.random.IntN(len(faults))]
	if !Writes(call) && (fault == Conflict || fault == Webhook) {
		return ""
	}
	s.seen[call] = true
	s.failed++
	return fault
}

// Kubeconfig returns a kubeconfig for the address of a proxy.
func Kubeconfig(address string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: proxy, cluster: {server: %q}}]
contexts: [{name: proxy, context: {cluster: proxy}}]
current-context: proxy
`, address)
}
