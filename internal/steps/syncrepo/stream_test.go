// SPDX-License-Identifier: Apache-2.0

package syncrepo

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
)

// A node that refuses a tree does not read its contents. It must not keep the others waiting.
func TestRefusalStopsNobody(t *testing.T) {
	agents := agenttest.Start(t, 2)
	dir := t.TempDir()
	write(t, dir, map[string]string{"a": big(), "b": big() + "b", "c": big() + "c", "d": big() + "d"})
	count(agents[1], refuse("no space left on device"))
	ended := make(chan error, 1)
	go func() {
		_, err := sendDir(t.Context(), quiet(), setOf(agents), dir)
		ended <- err
	}()
	const timeUntilTheTransferEnds = time.Minute
	select {
	case err := <-ended:
		if fail.ReasonOf(err) != fail.SyncFailed || !strings.Contains(err.Error(), "node 1: no space left on device") {
			t.Errorf("got %v", err)
		}
	case <-time.After(timeUntilTheTransferEnds):
		t.Fatalf("it still sends after %s", timeUntilTheTransferEnds)
	}
}

func TestFanOutToNobody(t *testing.T) {
	if n, err := (&fanOut{}).Write([]byte("abc")); n != 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("got %d, %v; want 0, %v", n, err, context.Canceled)
	}
}
