// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"net/http"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// clock is the API server's. Decisions about objects of others depend on it, because this machine's clock may be hours off.
type clock struct {
	mu sync.Mutex
	// server is the API server's time at the moment local; both are zero before its first answer.
	server, local time.Time
}

// Now returns the API server's time as of its last answer about a Lease, a core object or a run, and this machine's time before the
// first one. Read the object first and call Now then.
func (c *Clients) Now() time.Time {
	if c.clock == nil {
		return time.Now()
	}
	return c.clock.now()
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.local.IsZero() {
		return time.Now()
	}
	return c.server.Add(time.Since(c.local)) // by the monotonic clock: nobody can set it
}

// watch reads the time in the answers that next gets.
func (c *clock) watch(next http.RoundTripper) http.RoundTripper { return timekeeper{c, next} }

type timekeeper struct {
	clock *clock
	next  http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t timekeeper) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := t.next.RoundTrip(request)
	if err == nil && ofAPIServer(request.URL.Path) {
		t.clock.set(response.Header.Get("Date"))
	}
	return response, err
}

// ofAPIServer reports whether the API server itself answers requests for the path, and not a server behind it or a pod.
func ofAPIServer(path string) bool {
	for _, own := range []string{"/api/v1/", "/apis/coordination.k8s.io/", "/apis/tekton.dev/"} {
		if strings.Contains(path, own) && !strings.Contains(path, "/proxy") {
			return true
		}
	}
	return false
}

// set keeps this machine's time if the date, which has whole seconds, does not contradict it: two trainings of one second keep their order.
func (c *clock) set(date string) {
	at, err := http.ParseTime(date)
	if err != nil {
		return // an answer without its time, as of a connection that is upgraded
	}
	local := time.Now()
	if late := local.Sub(at); late >= 0 && late < 2*time.Second { // of which a second is for the answer's way
		at = local
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.server, c.local = at, local
}

// Changed returns when an object changed last, by the API server's clock; zero if it does not contain that.
func Changed(object metav1.Object) (at time.Time) {
	for _, change := range object.GetManagedFields() {
		if change.Time != nil && change.Time.After(at) {
			at = change.Time.Time
		}
	}
	return at
}
