// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"syscall"
	"testing"
	"time"
)

type transport func(*http.Request) (*http.Response, error)

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

// A request is sent again only if the API server cannot have done it already.
func TestPatient(t *testing.T) {
	var refused error = &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	reset := &net.OpError{Op: "read", Err: syscall.ECONNRESET}
	for name, test := range map[string]struct {
		method string
		err    error
		most   time.Duration
		// status is the status of the answers if err is nil.
		status int
		want   int
		// outside is true for a command of a person.
		outside bool
	}{
		"never sent":           {http.MethodPost, refused, time.Minute, 0, 3, false},
		"perhaps done":         {http.MethodPost, reset, time.Minute, 0, 1, false},
		"only read":            {http.MethodGet, reset, time.Minute, 0, 3, false},
		"another error":        {http.MethodGet, errors.New("the certificate is wrong"), time.Minute, 0, 1, false},
		"away for too long":    {http.MethodGet, refused, -time.Minute, 0, 1, false},
		"a role not known yet": {http.MethodPost, nil, time.Minute, http.StatusForbidden, 3, false},
		"not done yet":         {http.MethodGet, nil, time.Minute, http.StatusServiceUnavailable, 3, false},
		"perhaps done yet":     {http.MethodPost, nil, time.Minute, http.StatusInternalServerError, 1, false},
		"not done at all":      {http.MethodPost, nil, time.Minute, http.StatusTooManyRequests, 3, false},
		"never sent, outside":  {http.MethodGet, refused, time.Minute, 0, 1, true},
		"only read, outside":   {http.MethodGet, reset, time.Minute, 0, 3, true},
	} {
		t.Run(name, func(t *testing.T) {
			bodies := []string{}
			state := &retrierState{}
			if test.status != 0 {
				state.away.Store(time.Now().UnixNano())
			}
			state.there.Store(!test.outside)
			p := retrier{most: test.most, young: time.Minute, state: state,
				next: transport(func(r *http.Request) (*http.Response, error) {
					body, err := io.ReadAll(r.Body)
					if err != nil {
						t.Error(err)
					}
					if errors.Is(test.err, reset) {
						httptrace.ContextClientTrace(r.Context()).GotConn(httptrace.GotConnInfo{})
					}
					status := http.StatusOK
					if bodies = append(bodies, string(body)); len(bodies) < 3 {
						if test.err != nil {
							return nil, test.err
						}
						status = test.status
					}
					return &http.Response{StatusCode: status, Body: http.NoBody}, nil
				})}
			request, err := http.NewRequestWithContext(t.Context(), test.method, "https://172.30.0.1", strings.NewReader("the object"))
			if err != nil {
				t.Fatal(err)
			}
			response, err := p.RoundTrip(request)
			good := err == nil && response.StatusCode == http.StatusOK
			if response != nil {
				response.Body.Close()
			}
			if len(bodies) != test.want || good != (test.want == 3) || strings.Join(bodies, "") != strings.Repeat("the object", test.want) {
				t.Errorf("sent %q: %v; want %d times", bodies, err, test.want)
			}
		})
	}
}

// A command waits for an API server that has answered before, and may be starting again.
func TestStartsAgain(t *testing.T) {
	tries := 0
	p := retrying(false)(transport(func(*http.Request) (*http.Response, error) {
		if tries++; tries == 1 || tries == 4 {
			return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
		}
		return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	}))
	for range 2 {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://172.30.0.1", strings.NewReader("the object"))
		if err != nil {
			t.Fatal(err)
		}
		response, err := p.RoundTrip(request)
		if err != nil {
			t.Fatalf("try %d: %v", tries, err)
		}
		response.Body.Close()
	}
	if tries != 4 {
		t.Errorf("%d tries, want 4", tries)
	}
}
