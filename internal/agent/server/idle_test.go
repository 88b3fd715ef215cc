package server

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
)

func TestUntilIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, handler := untilIdle(t.Context(), time.Minute, http.NotFoundHandler())
		began := time.Now()
		for range 3 {
			time.Sleep(40 * time.Second)
			handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
		}
		<-ctx.Done()
		if got, want := time.Since(began), 3*time.Minute; got != want {
			t.Errorf("asked until 2m0s it ended after %s, want %s", got, want)
		}
	})
}
