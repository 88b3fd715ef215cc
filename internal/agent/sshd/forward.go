// SPDX-License-Identifier: Apache-2.0

package sshd

import (
	"cmp"
	"io"
	"net"
	"strconv"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

const dialTime = 10 * time.Second // bounds a connection to a port of the node itself

// forward connects a channel with a port of the node's own loopback, which is what the API server forwards too: a key leads to this
// node and does not make it a way into the pod network.
func (s *Server) forward(offered ssh.NewChannel) {
	var to struct {
		Host     string
		Port     uint32
		From     string
		FromPort uint32
	}
	if err := ssh.Unmarshal(offered.ExtraData(), &to); err != nil {
		_ = offered.Reject(ssh.ConnectionFailed, err.Error()) // the client is gone
		return
	}
	hosts := []string{to.Host}
	if to.Host == "localhost" {
		hosts = []string{"127.0.0.1", "::1"}
	} else if !net.ParseIP(to.Host).IsLoopback() {
		_ = offered.Reject(ssh.Prohibited, "want a port of localhost: this leads to the node itself, and to no other host")
		return
	}
	conn, err := dial(hosts, int(to.Port))
	if err != nil {
		_ = offered.Reject(ssh.ConnectionFailed, err.Error())
		return
	}
	defer conn.Close()
	channel, requests, err := offered.Accept()
	if err != nil {
		return
	}
	defer channel.Close()
	go func() {
		ssh.DiscardRequests(requests) // until the channel is closed
		conn.Close()
	}()
	var both sync.WaitGroup
	both.Go(func() {
		_, _ = io.Copy(channel, conn)
		_ = channel.CloseWrite()
	})
	_, _ = io.Copy(conn, channel)
	_ = conn.(*net.TCPConn).CloseWrite()
	both.Wait()
}

// dial connects to the first of the addresses that answers.
func dial(hosts []string, port int) (conn net.Conn, err error) {
	for _, host := range hosts {
		var failed error
		if conn, failed = net.DialTimeout("tcp", net.JoinHostPort(host, strconv.Itoa(port)), dialTime); failed == nil {
			return conn, nil
		}
		err = cmp.Or(err, failed)
	}
	return nil, err
}
