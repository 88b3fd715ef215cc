// SPDX-License-Identifier: Apache-2.0

// Package sshd serves ssh on a node's loopback, so that editors, scp, sftp and rsync reach a node whose image has no sshd.
package sshd

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/connlimit"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

const (
	// keyTime is how long a key may begin connections. mlenv repeats the request before each one, so that a user who lost the right
	// to the environment, or only the key, is refused.
	keyTime = time.Minute
	// handshakeTime bounds a connection until its key is proven.
	handshakeTime = 20 * time.Second
	// mostTries is how many keys a connection may try.
	mostTries = 3
	// mostConnections and mostChannels bound the connections of users, and the channels of each.
	mostConnections, mostChannels = 64, 128
	// aliveEvery is the interval of questions to the client. A connection ends, with its shells, after ShellPatience without an answer.
	aliveEvery, aliveTime = agent.ShellPatience / 3, agent.ShellPatience * 2 / 3
)

// Options describe the node to the server.
type Options struct {
	// Loopback is the address on which the server listens.
	Loopback string
	// Shell returns the folder and the variables of a new shell.
	Shell func() (dir string, variables map[string]string)
	// HangUp hangs up the session that a process leads.
	HangUp func(leader int)
	// Program is the agent's own, which serves sftp.
	Program string
	Log     *slog.Logger
}

// Server serves ssh from the first key on. Its keys are in memory alone: the processes of a node run as one user, so that they could
// change every file.
type Server struct {
	options Options
	config  *ssh.ServerConfig

	mu       sync.Mutex
	keys     map[string]time.Time // until when, by the key on the wire
	listener net.Listener         // nil before the first key
	hostKey  string
	live     map[net.Conn]bool
	closed   bool
}

// New returns a server that does not listen yet.
func New(o Options) *Server {
	s := &Server{options: o, keys: map[string]time.Time{}, live: map[net.Conn]bool{}}
	s.config = &ssh.ServerConfig{
		ServerVersion: "SSH-2.0-mlenv", MaxAuthTries: mostTries, PublicKeyAuthAlgorithms: []string{ssh.KeyAlgoED25519},
		PublicKeyCallback: func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			if !s.allowed(key) {
				return nil, errors.New("the key is not allowed")
			}
			return &ssh.Permissions{Extensions: map[string]string{"key": ssh.FingerprintSHA256(key)}}, nil
		},
	}
	return s
}

// Allow lets the owner of an Ed25519 key connect during the next minute. Errors: InvalidInput.
func (s *Server) Allow(authorized string) (agent.SSHServer, error) {
	key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(authorized))
	if err != nil || key.Type() != ssh.KeyAlgoED25519 {
		return agent.SSHServer{}, fail.Becausef(fail.InvalidInput, "reading a key for ssh: %.40q: want ssh-ed25519 and the key", authorized)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.listen(); err != nil {
		return agent.SSHServer{}, err
	}
	s.keys[string(key.Marshal())] = time.Now().Add(keyTime)
	return agent.SSHServer{Port: s.listener.Addr().(*net.TCPAddr).Port, HostKey: s.hostKey}, nil
}

func (s *Server) allowed(key ssh.PublicKey) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for known, until := range s.keys {
		if time.Now().After(until) {
			delete(s.keys, known)
		}
	}
	_, ok := s.keys[string(key.Marshal())]
	return ok
}

// listen starts the server on a free port, which no other process of the node can have taken before, with a new host key.
func (s *Server) listen() error {
	switch {
	case s.closed:
		return errors.New("serving ssh: the container is ending")
	case s.listener != nil:
		return nil
	}
	_, secret, err := ed25519.GenerateKey(nil)
	if err != nil {
		return fmt.Errorf("creating a host key: %w", err)
	}
	signer, err := ssh.NewSignerFromKey(secret)
	if err != nil {
		return fmt.Errorf("creating a host key: %w", err)
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(s.options.Loopback, "0"))
	if err != nil {
		return fmt.Errorf("serving ssh: %w", err)
	}
	s.config.AddHostKey(signer)
	s.hostKey = strings.TrimSpace(string(ssh.MarshalAuthorizedKey(signer.PublicKey())))
	s.listener = connlimit.New(listener, connlimit.Unproven)
	go s.accept()
	return nil
}

func (s *Server) accept() {
	for {
		conn, err := s.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		} else if err != nil { // too many open files
			time.Sleep(time.Second)
			continue
		}
		go s.serve(conn)
	}
}

// Close ends all connections. Their shells end with the container.
func (s *Server) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.listener != nil {
		s.listener.Close()
	}
	for conn := range s.live {
		conn.Close()
	}
}

// admit counts a connection until its end, and reports whether there may be one more.
func (s *Server) admit(conn net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.live) >= mostConnections {
		return false
	}
	s.live[conn] = true
	return true
}

// Connected reports whether a client is connected that has proven its key.
func (s *Server) Connected() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.live) > 0
}

func (s *Server) serve(conn net.Conn) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(handshakeTime)) // it has failed if the connection is over
	client, channels, requests, err := ssh.NewServerConn(conn, s.config)
	if err != nil {
		s.options.Log.Debug("An ssh connection was refused.", "error", err)
		return
	}
	connlimit.Prove(conn)
	if !s.admit(conn) {
		s.options.Log.Warn("An ssh connection was refused: there are too many.", "most", mostConnections)
		return
	}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.live, conn)
	}()
	_ = conn.SetDeadline(time.Time{})
	s.options.Log.Info("An ssh connection began.", "key", client.Permissions.Extensions["key"])
	alive, over := context.WithCancel(context.Background())
	defer over()
	go keepAlive(alive, client)
	go ssh.DiscardRequests(requests) // also those for ports of this side
	s.channels(channels)
}

// channels serves the channels of a connection until it ends.
func (s *Server) channels(offered <-chan ssh.NewChannel) {
	free := make(chan struct{}, mostChannels)
	for channel := range offered {
		select {
		case free <- struct{}{}:
		default:
			_ = channel.Reject(ssh.ResourceShortage, fmt.Sprintf("a connection has at most %d channels", mostChannels)) // the client is gone
			continue
		}
		go func() {
			defer func() { <-free }()
			switch channel.ChannelType() {
			case "session":
				s.session(channel)
			case "direct-tcpip":
				s.forward(channel)
			default:
				_ = channel.Reject(ssh.UnknownChannelType, "want a session, or a forwarded port") // the client is gone
			}
		}()
	}
}

// keepAlive closes the connection of a client that does not answer any more.
func keepAlive(ctx context.Context, client *ssh.ServerConn) {
	ticker := time.NewTicker(aliveEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		silent := time.AfterFunc(aliveTime, func() { _ = client.Close() }) // it may have ended
		_, _, err := client.SendRequest("keepalive@openssh.com", true, nil)
		silent.Stop()
		if err != nil {
			return
		}
	}
}
