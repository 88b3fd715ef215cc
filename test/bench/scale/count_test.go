// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// counter counts what the product's clients ask of the API server, and the TLS handshakes of all their connections.
type counter struct {
	next http.RoundTripper

	mu         sync.Mutex
	kinds      map[string]*traffic
	handshakes handshakes
}

// traffic is about all requests of one verb and resource.
type traffic struct {
	requests, sent, received, events int
}

// handshakes is about the TLS handshakes of a phase.
type handshakes struct {
	// now is how many are in progress, most how many were at once.
	now, most, all, failed int
	// first is the first one's start, last the latest one's end.
	first, last time.Time
}

// trace returns a context in which the counter counts the handshakes of new connections.
func (c *counter) trace(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		TLSHandshakeStart: func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			h := &c.handshakes
			if h.all++; h.all == 1 {
				h.first = time.Now()
			}
			h.now++
			h.most = max(h.most, h.now)
		},
		TLSHandshakeDone: func(_ tls.ConnectionState, err error) {
			c.mu.Lock()
			defer c.mu.Unlock()
			h := &c.handshakes
			h.now--
			h.last = time.Now()
			if err != nil && !errors.Is(err, context.Canceled) {
				h.failed++
			}
		},
	})
}

// wrap puts the counter in front of the network.
func (c *counter) wrap(next http.RoundTripper) http.RoundTripper {
	c.next = next
	return c
}

// take returns the counts so far, and starts again.
func (c *counter) take() (map[string]traffic, handshakes) {
	c.mu.Lock()
	defer c.mu.Unlock()
	taken := map[string]traffic{}
	for kind, t := range c.kinds {
		if *t != (traffic{}) {
			taken[kind] = *t
			*t = traffic{} // a watch that is open counts on
		}
	}
	shaken := c.handshakes
	c.handshakes = handshakes{now: shaken.now}
	return taken, shaken
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

// requestTable returns a table with the requests of the phases that have any: a row for each verb and resource, those with most bytes
// first, and one for all rare ones.
func requestTable(head string, phases []phase) [][]string {
	phases = slices.DeleteFunc(phases, func(p phase) bool { return len(p.requests) == 0 })
	heads := []string{head}
	whole := map[string]traffic{}
	for _, phase := range phases {
		heads = append(heads, phase.name)
		for kind, t := range phase.requests {
			whole[kind] = whole[kind].plus(t)
		}
	}
	rare := func(kind string) bool { return whole[kind].requests < 3 && whole[kind].received < worthIt }
	kinds := slices.SortedFunc(maps.Keys(whole), func(a, b string) int {
		return cmp.Or(cmp.Compare(whole[b].received, whole[a].received), cmp.Compare(a, b))
	})
	table := [][]string{heads}
	add := func(name string, of func(phase) traffic) {
		row := []string{name}
		for _, phase := range phases {
			row = append(row, of(phase).String())
		}
		table = append(table, row)
	}
	for _, kind := range kinds {
		if !rare(kind) {
			add(kind, func(p phase) traffic { return p.requests[kind] })
		}
	}
	add("others", func(p phase) (sum traffic) {
		for kind, t := range p.requests {
			if rare(kind) {
				sum = sum.plus(t)
			}
		}
		return sum
	})
	return table
}

func (t traffic) plus(u traffic) traffic {
	return traffic{t.requests + u.requests, t.sent + u.sent, t.received + u.received, t.events + u.events}
}

// worthIt is how many bytes a table shows.
const worthIt = 64 << 10

// String returns a cell of a table, as in "3 (1.2 MiB)".
func (t traffic) String() string {
	var cell string
	if t != (traffic{}) {
		cell = strconv.Itoa(t.requests)
	}
	if t.events > 0 {
		cell += fmt.Sprintf(", %d events", t.events)
	}
	if t.received > worthIt {
		cell += fmt.Sprintf(" (%s MiB)", number(float64(t.received)/(1<<20)))
	}
	return cell
}
