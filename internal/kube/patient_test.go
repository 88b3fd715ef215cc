package kube

import (
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

type transport func(*http.Request) (*http.Response, error)

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

// A request is sent again only if the API server cannot have done it already.
func TestPatient(t *testing.T) {
	refused := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	reset := &net.OpError{Op: "read", Err: syscall.ECONNRESET}
	for name, test := range map[string]struct {
		method string
		err    error
		most   time.Duration
		want   int
	}{
		"never sent":        {http.MethodPost, refused, time.Minute, 3},
		"perhaps done":      {http.MethodPost, reset, time.Minute, 1},
		"only read":         {http.MethodGet, reset, time.Minute, 3},
		"another error":     {http.MethodGet, errors.New("the certificate is wrong"), time.Minute, 1},
		"away for too long": {http.MethodGet, refused, -time.Minute, 1},
	} {
		t.Run(name, func(t *testing.T) {
			bodies := []string{}
			p := patient{most: test.most, next: transport(func(r *http.Request) (*http.Response, error) {
				body, err := io.ReadAll(r.Body)
				if err != nil {
					t.Error(err)
				}
				if bodies = append(bodies, string(body)); len(bodies) < 3 {
					return nil, test.err
				}
				return &http.Response{StatusCode: http.StatusOK}, nil
			})}
			request, err := http.NewRequestWithContext(t.Context(), test.method, "https://172.30.0.1", strings.NewReader("the object"))
			if err != nil {
				t.Fatal(err)
			}
			response, err := p.RoundTrip(request)
			if response != nil && response.Body != nil {
				response.Body.Close()
			}
			if len(bodies) != test.want || (err == nil) != (test.want == 3) || strings.Join(bodies, "") != strings.Repeat("the object", test.want) {
				t.Errorf("sent %q: %v; want %d times", bodies, err, test.want)
			}
		})
	}
}
