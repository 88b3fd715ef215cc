// SPDX-License-Identifier: Apache-2.0

package program

import (
	"context"
	"testing"
	"time"
)

func TestHoldEndsWhenNobodyAsks(t *testing.T) {
	looks := make(chan time.Time)
	asked, ended := 0, make(chan struct{})
	go func() {
		hold(t.Context(), looks, func() bool {
			asked++
			return asked != holdFor // a client asks once
		})
		close(ended)
	}()
	for range 2 * holdFor {
		select {
		case <-ended:
			t.Fatalf("it ended after %d looks; want %d", asked, 2*holdFor)
		case looks <- time.Time{}:
		}
	}
	if <-ended; asked != 2*holdFor {
		t.Errorf("it ended after %d looks; want %d", asked, 2*holdFor)
	}
}

func TestHoldEndsWhenTold(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	hold(ctx, nil, func() bool { return false })
}
