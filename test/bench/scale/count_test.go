// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// counter counts what the product's clients ask of the API server.
type counter struct {
	next http.RoundTripper

	mu    sync.Mutex
	kinds map[string]*traffic
}

// traffic is about all requests of one verb and resource.
type traffic struct {
	requests, sent, received, events int
}

// wrap puts the counter in front of the network.
func (c *counter) wrap(next http.RoundTripper) http.RoundTripper {
	c.next = next
	return c
}

// take returns the counts so far, and starts again.
func (c *counter) take() map[string]traffic {
	c.mu.Lock()
	defer c.mu.Unlock()
	taken := map[string]traffic{}
	for kind, t := range c.kinds {
		if *t != (traffic{}) {
			taken[kind] = *t
			*t = traffic{} // a watch that is open counts on
		}
	}
	return taken
}

func (c *counter) of(kind string) *traffic {
	if c.kinds == nil {
		c.kinds = map[string]*traffic{}
	}
	if c.kinds[kind] == nil {
		c.kinds[kind] = &traffic{}
	}
	return c.kinds[kind]
}

// RoundTrip implements http.RoundTripper.
func (c *counter) RoundTrip(request *http.Request) (*http.Response, error) {
	kind := kindOf(request)
	c.mu.Lock()
	t := c.of(kind)
	t.requests++
	t.sent += int(max(0, request.ContentLength))
	c.mu.Unlock()
	response, err := c.next.RoundTrip(request)
	if err == nil {
		response.Body = &counted{response.Body, c, t, strings.HasPrefix(kind, "watch ")}
	}
	return response, err
}

type counted struct {
	io.ReadCloser
	counter *counter
	t       *traffic
	watch   bool
}

// Read implements io.Reader. Each event of a watch is a line.
func (r *counted) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	r.counter.mu.Lock()
	defer r.counter.mu.Unlock()
	r.t.received += n
	if r.watch {
		r.t.events += bytes.Count(p[:n], []byte("\n"))
	}
	return n, err
}

// kindOf returns a request's verb and resource, as the API server counts them.
func kindOf(request *http.Request) string {
	parts := strings.Split(strings.Trim(request.URL.Path, "/"), "/")
	skip := 2 // api, v1
	if parts[0] == "apis" {
		skip = 3
	}
	if len(parts) <= skip {
		return "get " + request.URL.Path
	}
	parts = parts[skip:]
	if parts[0] == "namespaces" && len(parts) > 2 {
		parts = parts[2:]
	}
	resource, verb := parts[0], map[string]string{http.MethodPost: "create", http.MethodPut: "update", http.MethodDelete: "delete",
		http.MethodPatch: "patch"}[request.Method]
	switch {
	case verb != "":
	case request.URL.Query().Get("watch") != "":
		verb = "watch"
	case len(parts) > 1:
		verb = "get"
	default:
		verb = "list"
	}
	if len(parts) > 2 {
		resource += "/" + parts[2]
	}
	return verb + " " + resource
}

// sum adds up all kinds of requests.
func sum(all map[string]traffic) (s traffic) {
	for _, t := range all {
		s.requests, s.sent, s.received, s.events = s.requests+t.requests, s.sent+t.sent, s.received+t.received, s.events+t.events
	}
	return s
}

// listing returns the kinds of requests with most bytes first, as "3 list pods (1.2 MiB)".
func listing(all map[string]traffic) string {
	var texts []string
	for _, kind := range slices.SortedFunc(maps.Keys(all), func(a, b string) int {
		return cmp.Or(cmp.Compare(all[b].received, all[a].received), cmp.Compare(a, b))
	}) {
		t := all[kind]
		text := fmt.Sprintf("%d %s", t.requests, kind)
		if t.events > 0 {
			text += fmt.Sprintf(", %d events", t.events)
		}
		const worthIt = 64 << 10
		if t.received > worthIt {
			text += fmt.Sprintf(" (%s MiB)", number(float64(t.received)/(1<<20)))
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, "; ")
}
