// SPDX-License-Identifier: Apache-2.0

package connlimit

import (
	"net"
	"testing"
)

// queue is a listener. A test holds the other ends of its connections.
type queue chan net.Conn

func (q queue) Accept() (net.Conn, error) { return <-q, nil }
func (q queue) Close() error              { return nil }
func (q queue) Addr() net.Addr            { return nil }

func TestOldestUnprovenConnectionIsClosed(t *testing.T) {
	const mostUnproven = 3
	q := make(queue, 1)
	listener := New(q, mostUnproven)
	var ours, theirs []net.Conn
	connect := func() {
		t.Helper()
		near, far := net.Pipe()
		q <- near
		accepted, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		ours, theirs = append(ours, accepted), append(theirs, far)
	}
	open := func(i int) bool {
		go func() { _, _ = ours[i].Write([]byte("x")) }()
		_, err := theirs[i].Read(make([]byte, 1))
		return err == nil
	}
	connect()
	Prove(ours[0])
	connect() // 1
	connect() // 2
	ours[2].Close()
	for range mostUnproven { // 3 to 5
		connect()
	}
	want := []bool{true, false, false, true, true, true}
	for i, wanted := range want {
		if got := open(i); got != wanted {
			t.Errorf("connection %d is open: %t, want %t", i, got, wanted)
		}
	}
	if len(listener.unproven) != mostUnproven {
		t.Errorf("%d connections are counted, want %d", len(listener.unproven), mostUnproven)
	}
}
