package kube

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"
)

// retrier retries requests while the API server is away, as during an update of the control plane. A step needs this, because no
// user is there to try again.
type retrier struct {
	next http.RoundTripper
	// pause is the time between two attempts, and most the time after the first one in which it tries again. young is how long
	// after its absence the API server may refuse what it will allow: it answers before it knows all roles.
	pause, most, young time.Duration
	// away is when a request failed last, in Unix nanoseconds.
	away *atomic.Int64
}

// Patience is how long a request of a step waits for the API server.
const Patience = 2 * time.Minute

func inPod(next http.RoundTripper) http.RoundTripper {
	return retrier{next: next, pause: 2 * time.Second, most: Patience, young: 30 * time.Second, away: &atomic.Int64{}}
}

// RoundTrip sends the request again if that cannot do anything twice.
func (p retrier) RoundTrip(request *http.Request) (*http.Response, error) {
	ctx, end := request.Context(), time.Now().Add(p.most)
	for warned := false; ; {
		sent := false
		traced := request.WithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { sent = true }}))
		response, err := p.next.RoundTrip(traced)
		problem := err
		switch {
		case err == nil && !p.tooYoung(request, response):
			return response, nil
		case err == nil:
			problem = fmt.Errorf("it answered %s", response.Status)
		case ctx.Err() != nil || !Transient(err) || sent && request.Method != http.MethodGet:
			return nil, err
		default:
			p.away.Store(time.Now().UnixNano())
		}
		if time.Now().Add(p.pause).After(end) {
			return response, err
		}
		if err == nil {
			_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 1<<20))
			response.Body.Close()
		}
		if !warned {
			slog.WarnContext(ctx, fmt.Sprintf("The API server does not answer; trying again for at most %s. (%v)", p.most, problem), "seconds", p.most.Seconds(), "error", problem)
			warned = true
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", context.Cause(ctx), problem)
		case <-time.After(p.pause):
		}
		request = request.Clone(ctx)
		if request.GetBody != nil {
			if request.Body, err = request.GetBody(); err != nil {
				return nil, err
			}
		}
	}
}

// tooYoung reports whether the answer may be another one when the API server has run for a while.
func (p retrier) tooYoung(request *http.Request, response *http.Response) bool {
	if time.Since(time.Unix(0, p.away.Load())) > p.young {
		return false
	}
	switch response.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden: // nothing was done
		return true
	default:
		return response.StatusCode >= http.StatusInternalServerError && request.Method == http.MethodGet
	}
}
