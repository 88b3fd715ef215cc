// SPDX-License-Identifier: Apache-2.0

package sshd

import (
	"crypto/ed25519"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

// newServer returns a server that listens nowhere, with a host key, and a key that it allows.
func newServer(t *testing.T) (s *Server, allowed ssh.Signer) {
	t.Helper()
	signer := func() ssh.Signer {
		_, secret, err := ed25519.GenerateKey(nil)
		if err != nil {
			t.Fatal(err)
		}
		signer, err := ssh.NewSignerFromKey(secret)
		if err != nil {
			t.Fatal(err)
		}
		return signer
	}
	s, allowed = New(Options{Log: slog.New(slog.DiscardHandler)}), signer()
	s.config.AddHostKey(signer())
	s.keys[string(allowed.PublicKey().Marshal())] = time.Now().Add(keyTime)
	return s, allowed
}

// deafConn is a connection on which nothing arrives any more once it is deaf, as if the machine were gone. Its writes do not wait for
// the other side, which also begins by writing.
type deafConn struct {
	net.Conn
	deaf atomic.Bool
	sent chan []byte
	over chan struct{}
}

func (c *deafConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.deaf.Load() {
		<-c.over
		return 0, io.EOF
	}
	return n, err
}

func (c *deafConn) Write(p []byte) (int, error) {
	select {
	case c.sent <- slices.Clone(p):
		return len(p), nil
	case <-c.over:
		return 0, io.ErrClosedPipe
	}
}

// carry writes what was sent.
func (c *deafConn) carry() {
	for {
		select {
		case p := <-c.sent:
			_, _ = c.Conn.Write(p) // the next read has the error, too
		case <-c.over:
			return
		}
	}
}

// connect serves a client, and returns it with its connection. served is closed at the end.
func connect(t *testing.T, s *Server, key ssh.Signer) (client ssh.Conn, conn *deafConn, served chan struct{}) {
	t.Helper()
	near, far := net.Pipe()
	conn, served = &deafConn{Conn: near, sent: make(chan []byte), over: make(chan struct{})}, make(chan struct{})
	go conn.carry()
	go func() {
		defer close(served)
		s.serve(far)
	}()
	client, channels, requests, err := ssh.NewClientConn(conn, "node", &ssh.ClientConfig{
		Auth: []ssh.AuthMethod{ssh.PublicKeys(key)}, HostKeyCallback: ssh.InsecureIgnoreHostKey(),
	})
	if err != nil {
		t.Fatal(err)
	}
	go ssh.DiscardRequests(requests)
	go func() {
		for channel := range channels {
			_ = channel.Reject(ssh.Prohibited, "")
		}
	}()
	return client, conn, served
}

func TestKeysExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, key := newServer(t)
		time.Sleep(keyTime)
		if !s.allowed(key.PublicKey()) {
			t.Error("a key is refused before its time is over")
		}
		time.Sleep(time.Second)
		if s.allowed(key.PublicKey()) || len(s.keys) != 0 {
			t.Errorf("a key is allowed after its time: %d keys", len(s.keys))
		}
	})
}

// A client that is gone without notice does not keep its shells for longer than mlenv shell does. One that answers stays.
func TestSilentClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, key := newServer(t)
		client, conn, served := connect(t, s, key)
		time.Sleep(time.Hour)
		if _, _, err := client.SendRequest("ping", true, nil); err != nil {
			t.Fatalf("a client that was idle for an hour: %v", err)
		}
		silent := time.Now()
		conn.deaf.Store(true)
		<-served
		if took := time.Since(silent); took > agent.ShellPatience {
			t.Errorf("a client that is gone was served for %s, want at most %s", took, agent.ShellPatience)
		}
		if len(s.live) != 0 {
			t.Errorf("%d connections are counted after the end", len(s.live))
		}
		close(conn.over)
		_ = client.Close() // the server may have closed it
		synctest.Wait()
	})
}

func TestConnectionsWithoutAProof(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := newServer(t)
		near, far := net.Pipe()
		defer near.Close()
		began := time.Now()
		s.serve(far)
		if took := time.Since(began); took != handshakeTime {
			t.Errorf("a connection that proves nothing was open for %s, want %s", took, handshakeTime)
		}
	})
}

func TestChannelsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, key := newServer(t)
		client, conn, served := connect(t, s, key)
		open := func() (ssh.Channel, error) {
			channel, requests, err := client.OpenChannel("session", nil)
			if err == nil {
				go ssh.DiscardRequests(requests)
			}
			return channel, err
		}
		var last ssh.Channel
		for range mostChannels {
			channel, err := open()
			if err != nil {
				t.Fatal(err)
			}
			last = channel
		}
		var refused *ssh.OpenChannelError
		if _, err := open(); !errors.As(err, &refused) || refused.Reason != ssh.ResourceShortage {
			t.Errorf("one channel too many: %v", err)
		}
		if err := last.Close(); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if _, err := open(); err != nil {
			t.Errorf("after one was closed: %v", err)
		}
		_ = client.Close() // the server may have closed it
		close(conn.over)
		<-served
		synctest.Wait()
	})
}

func TestConnectionsAreBounded(t *testing.T) {
	s, _ := newServer(t)
	for range mostConnections {
		near, far := net.Pipe()
		defer near.Close()
		if !s.admit(far) {
			t.Fatalf("connection %d is refused", len(s.live)+1)
		}
	}
	if _, far := net.Pipe(); s.admit(far) {
		t.Error("one connection too many is served")
	}
	s.Close()
	for conn := range s.live {
		if _, err := conn.Write([]byte("x")); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("after the end: %v", err)
		}
	}
}
