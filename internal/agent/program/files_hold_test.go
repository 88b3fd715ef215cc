package program

import (
	"context"
	"testing"
	"time"
)

func TestHoldEndsWhenNobodyAsks(t *testing.T) {
	looks := make(chan time.Time)
	asked, ended := 0, make(chan error, 1)
	go func() {
		ended <- hold(t.Context(), looks, func() bool {
			asked++
			return asked != holdFor // somebody asks once
		})
	}()
	for range 2 * holdFor {
		select {
		case err := <-ended:
			t.Fatalf("it ended after %d looks, %v; want %d", asked, err, 2*holdFor)
		case looks <- time.Time{}:
		}
	}
	if err := <-ended; err != nil || asked != 2*holdFor {
		t.Errorf("it ended after %d looks, %v; want %d", asked, err, 2*holdFor)
	}
}

func TestHoldEndsWhenTold(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := hold(ctx, nil, func() bool { return false }); err != nil {
		t.Error(err)
	}
}
