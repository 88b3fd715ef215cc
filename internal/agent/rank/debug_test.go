// SPDX-License-Identifier: Apache-2.0

package rank

import (
	"context"
	"net"
	"testing"
)

func TestWaitListening(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	if !waitListening(t.Context(), port) {
		t.Error("a port with a listener is not found")
	}
	listener.Close()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if waitListening(ended, port) {
		t.Error("a port without a listener is found")
	}
}

func TestListens(t *testing.T) {
	const table = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0
   1: 0100007F:162E 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 2 1 0 100 0 0 10 0
   2: 0100007F:22B8 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 3 1 0 100 0 0 10 0
`
	for port, want := range map[int]bool{8888: true, 8080: false, 5678: false} {
		if got := listens([]byte(table), port); got != want {
			t.Errorf("port %d of loopback is listened on: %t, want %t", port, got, want)
		}
	}
}
