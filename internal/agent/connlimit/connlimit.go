// SPDX-License-Identifier: Apache-2.0

// Package connlimit bounds the connections of peers that have not proven who they are.
package connlimit

import (
	"context"
	"net"
	"net/http"
	"slices"
	"sync"
)

// Unproven is how many such connections agents and gates hold open.
const Unproven = 128

// Listener accepts every connection, and closes the oldest unproven one when there are more than the limit: a peer with the
// right key proves itself at once, so it gets through while others hold connections open.
type Listener struct {
	net.Listener
	limit int

	mu       sync.Mutex
	unproven []*conn
}

// New limits the unproven connections of a listener.
func New(l net.Listener, limit int) *Listener { return &Listener{Listener: l, limit: limit} }

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: accepted, listener: l}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unproven = append(l.unproven, c)
	if len(l.unproven) > l.limit {
		l.unproven[0].Conn.Close()
		l.unproven = l.unproven[1:]
	}
	return c, nil
}

type conn struct {
	net.Conn
	listener *Listener
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.prove()
	return c.Conn.Close()
}

func (c *conn) prove() {
	c.listener.mu.Lock()
	defer c.listener.mu.Unlock()
	c.listener.unproven = slices.DeleteFunc(c.listener.unproven, func(other *conn) bool { return other == c })
}

// Prove takes a connection of a Listener, or one of TLS over it, out of the count.
func Prove(c net.Conn) {
	if secure, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = secure.NetConn()
	}
	if limited, ok := c.(*conn); ok {
		limited.prove()
	}
}

// AfterTLS is an http.Server's ConnState: a request follows the handshake, which verified the client's certificate.
func AfterTLS(c net.Conn, state http.ConnState) {
	if state == http.StateActive {
		Prove(c)
	}
}

type connKey struct{}

// WithConn is an http.Server's ConnContext, for ProveRequest.
func WithConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// ProveRequest is Prove for the connection of a request.
func ProveRequest(r *http.Request) {
	if c, ok := r.Context().Value(connKey{}).(net.Conn); ok {
		Prove(c)
	}
}
