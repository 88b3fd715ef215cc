// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"sync/atomic"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// retrier sends requests again while the API server is away or overloaded, or fails for a cause that passes. All clients of steps
// and commands use it, so that no caller has to:
//
//   - A request that was surely not carried out is sent again, whatever it is.
//   - A request that may have been carried out, because its answer was lost or the API server does not know it, is sent again only
//     if repeatable reports that this changes nothing. The answer to the repetition may only show that the first one was carried
//     out, such as AlreadyExists: settle turns it into the answer that was lost.
//   - A conflict is the caller's, who reads the object again, unless settle finds that there is none.
type retrier struct {
	next http.RoundTripper
	// pause is the time before the second try. It doubles up to longest.
	pause, longest time.Duration
	// most is the time after the first try in which it tries again. young is how long after its absence the API server may
	// refuse what it will allow: it answers before it knows all roles.
	most, young time.Duration
	state       *retrierState
}

// retrierState is shared by all requests of the clients.
type retrierState struct {
	// away is when a request failed last, told when a line was logged, in Unix nanoseconds.
	away, told atomic.Int64
	// there is true if the API server is known to exist: one that no connection reaches is then waited for too.
	there atomic.Bool
}

// Patience is how long a request of a step waits for the API server.
const Patience = 2 * time.Minute

const (
	// firstPause is the pause before the first repetition of a request. Each pause is twice as long as the one before.
	firstPause = 100 * time.Millisecond
	// longestPause bounds the pause between two tries of a request.
	longestPause = 2 * time.Second
	// personsRetryTime is how long a request of a command waits for an API server that answers with errors.
	personsRetryTime = 30 * time.Second
	// mostConflicts bounds the repetitions after conflicts without a cause.
	mostConflicts = 5
)

// retrying returns the retrier for all clients of a configuration. Steps wait longer, because no user is there to try again. A user who has
// named a wrong cluster, or is offline, gets the error at once.
func retrying(inPod bool) func(http.RoundTripper) http.RoundTripper {
	p := retrier{pause: firstPause, longest: longestPause, most: personsRetryTime, young: 30 * time.Second, state: &retrierState{}}
	if inPod {
		p.most = Patience
		p.state.there.Store(true)
	}
	return func(next http.RoundTripper) http.RoundTripper {
		of := p
		of.next = next
		return of
	}
}

// try is what one try of a request has brought: an answer or an error.
type try struct {
	response *http.Response
	err      error
	// sent reports that a connection got the request.
	sent bool
}

// RoundTrip sends the request again if that cannot do anything twice.
func (p retrier) RoundTrip(request *http.Request) (*http.Response, error) {
	ctx, end := request.Context(), time.Now().Add(p.most)
	open, conflicts, pause := false, 0, p.pause
	for {
		a := p.send(request)
		problem, maybe := p.transient(request, a)
		if problem == nil && a.err == nil {
			var spurious bool
			if a.response, spurious = p.settle(request, a.response, open); spurious && conflicts < mostConflicts {
				conflicts++
				problem = fmt.Errorf("it answered %s", a.response.Status)
			}
		}
		open = open || maybe
		if problem == nil || ctx.Err() != nil || !renewable(request) || open && !repeatable(request) {
			return a.response, a.err
		}
		wait := max(pause, retryAfter(a.response))
		if time.Now().Add(wait).After(end) {
			if a.response != nil {
				a.response.Header.Del("Retry-After") // client-go would begin again
			}
			return a.response, a.err
		}
		p.logRetry(ctx, problem)
		if a.response != nil {
			a.response.Body.Close()
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", context.Cause(ctx), problem)
		case <-time.After(wait):
		}
		pause = min(2*pause, p.longest)
		var err error
		if request, err = renewed(request); err != nil {
			return nil, err
		}
	}
}

// send sends the request once, and reads its whole answer unless that is a stream: an answer that breaks off is lost.
func (p retrier) send(request *http.Request) (a try) {
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { a.sent = true }}
	//nolint:bodyclose // the caller closes the body of the answer that it does not return
	a.response, a.err = p.next.RoundTrip(request.WithContext(httptrace.WithClientTrace(request.Context(), trace)))
	if isUpgrade(request) { // its transport does not report connections
		a.sent = !utilnet.IsConnectionRefused(a.err)
	}
	if a.err == nil && !streams(request, a.response) {
		if _, a.err = bufferBody(a.response); a.err != nil {
			a.response = nil
		}
	}
	return a
}

// transient returns why the same request may succeed later, nil if it may not. maybe reports that it may have been carried out.
func (p retrier) transient(request *http.Request, a try) (problem error, maybe bool) {
	if a.err != nil {
		if !Transient(a.err) || !a.sent && !p.state.there.Load() {
			return nil, false
		}
		p.state.away.Store(time.Now().UnixNano())
		return a.err, a.sent
	}
	p.state.there.Store(true)
	problem = fmt.Errorf("it answered %s", a.response.Status)
	reads := request.Method == http.MethodGet
	switch code := a.response.StatusCode; {
	case code == http.StatusTooManyRequests:
		return problem, false
	case p.tooYoung(request, a.response):
		return problem, code >= http.StatusInternalServerError
	case code == http.StatusServiceUnavailable, code == http.StatusGatewayTimeout:
		if reads && isOptional(request.URL.Path) {
			return nil, false
		}
		return problem, true
	case code == http.StatusInternalServerError:
		text, err := bufferBody(a.response)
		if err == nil && (passing.Match(text) || a.response.Header.Get("Retry-After") != "") {
			return fmt.Errorf("%w: %s", problem, messageOf(text)), !webhookFailed.Match(text)
		}
	}
	return nil, false
}

// tooYoung reports whether the answer may be another one when the API server has run for a while.
func (p retrier) tooYoung(request *http.Request, response *http.Response) bool {
	if time.Since(time.Unix(0, p.state.away.Load())) > p.young {
		return false
	}
	switch response.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden: // nothing was done
		return true
	default:
		return response.StatusCode >= http.StatusInternalServerError && request.Method == http.MethodGet
	}
}

// logRetry logs that requests are tried again, once for all requests that fail in the same time.
func (p retrier) logRetry(ctx context.Context, problem error) {
	now, told := time.Now(), p.state.told.Load()
	if now.Sub(time.Unix(0, told)) < p.most || !p.state.told.CompareAndSwap(told, now.UnixNano()) {
		return
	}
	slog.WarnContext(ctx, fmt.Sprintf("The API server does not answer; trying again for at most %s. (%v)", p.most, problem), "seconds",
		p.most.Seconds(), "error", problem)
}

// renewed returns the request with a body that was not read yet.
func renewed(request *http.Request) (_ *http.Request, err error) {
	request = request.Clone(request.Context())
	if request.GetBody != nil {
		request.Body, err = request.GetBody()
	}
	return request, err
}

// retryAfter returns how long the API server asks to wait, 0 if it does not.
func retryAfter(response *http.Response) time.Duration {
	if response == nil {
		return 0
	}
	seconds, err := strconv.Atoi(cmp.Or(response.Header.Get("Retry-After"), "0"))
	if err != nil {
		return 0
	}
	return time.Duration(max(0, seconds)) * time.Second
}
