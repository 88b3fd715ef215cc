package server

import (
	"context"
	"net/http"
	"time"
)

// untilIdle returns a context that ends where no request has begun for bound. One that
// began earlier and still lasts does not count: of a peer that is gone without a word
// nothing is ever heard again.
func untilIdle(ctx context.Context, bound time.Duration, next http.Handler) (context.Context, http.Handler) {
	ctx, cancel := context.WithCancel(ctx)
	timer := time.AfterFunc(bound, cancel)
	context.AfterFunc(ctx, func() { timer.Stop() })
	return ctx, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		timer.Reset(bound)
		next.ServeHTTP(w, r)
	})
}
