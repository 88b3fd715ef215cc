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
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: server.Scheme, Host: server.Host}) },
		Transport:     faulty,
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0),
		// The client sees a connection that breaks.
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	front := httptest.NewUnstartedServer(proxy)
	front.Config.ErrorLog = log.New(io.Discard, "", 0)
	front.Start()
	t.Cleanup(func() {
		front.CloseClientConnections()
		front.Close()
	})
	return front.URL, faulty.count
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
