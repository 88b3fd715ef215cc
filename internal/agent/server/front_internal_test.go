// SPDX-License-Identifier: Apache-2.0

package server

import (
	"log/slog"
	"testing"
)

// The server closes a silent connection.
func TestSilentConnectionsEnd(t *testing.T) {
	front := (&Server{log: slog.Default()}).front(nil, nil)
	if front.IdleTimeout == 0 || front.ReadHeaderTimeout == 0 {
		t.Errorf("timeouts %s and %s, want both", front.IdleTimeout, front.ReadHeaderTimeout)
	}
}
