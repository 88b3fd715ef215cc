package kube

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// patient waits for an API server that is away for a while, as control planes are when they are updated. In a step, which
// has nobody who could try again, a request should not fail for that.
type patient struct {
	next http.RoundTripper
	// pause is between two attempts, most the time from the first one in which another is made.
	pause, most time.Duration
}

// Patience is how long a request of a step waits for the API server.
const Patience = 2 * time.Minute

func inPod(next http.RoundTripper) http.RoundTripper {
	return patient{next: next, pause: 2 * time.Second, most: Patience}
}

// RoundTrip sends the request again if that cannot do anything twice.
func (p patient) RoundTrip(request *http.Request) (*http.Response, error) {
	ctx, end := request.Context(), time.Now().Add(p.most)
	for warned := false; ; {
		response, err := p.next.RoundTrip(request)
		if err == nil || ctx.Err() != nil || time.Now().Add(p.pause).After(end) || !unsent(err) && (request.Method != http.MethodGet || !Transient(err)) {
			return response, err
		}
		if !warned {
			slog.WarnContext(ctx, fmt.Sprintf("The API server does not answer; trying again for at most %s. (%v)", p.most, err), "seconds", p.most.Seconds(), "error", err)
			warned = true
		}
		select {
		case <-ctx.Done():
			return nil, err
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

// unsent reports whether there was no connection to send the request on.
func unsent(err error) bool {
	var connecting *net.OpError
	return errors.As(err, &connecting) && connecting.Op == "dial"
}
