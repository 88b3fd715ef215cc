// SPDX-License-Identifier: Apache-2.0

package services

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

// healthTime bounds the question to code-server, which is on the same node.
const healthTime = 2 * time.Second

// InUse reports whether a browser is connected to code-server, which has no gate. It answers that itself, without its password: since
// 3.8 this question does not count as use.
func (m *Manager) InUse(ctx context.Context) bool {
	m.mu.Lock()
	s := m.live[agent.CodeServer]
	m.mu.Unlock()
	if s == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, healthTime)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.listens+"/healthz", nil)
	if err != nil {
		return false
	}
	// No proxy leads to the node's own loopback.
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return false
	}
	defer response.Body.Close()
	var health struct {
		Status string `json:"status"`
	}
	const most = 4 << 10
	err = json.NewDecoder(io.LimitReader(response.Body, most)).Decode(&health)
	return err == nil && health.Status == "alive"
}

// noting is the writer of an answer. It calls note for every read from a client that has switched to another protocol: an open page
// of Jupyter sends over a WebSocket, and the connection of a laptop that sleeps stays open for a while and sends nothing.
type noting struct {
	http.ResponseWriter
	note func()
}

// Unwrap is for http.ResponseController.
func (w *noting) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Hijack implements http.Hijacker.
func (w *noting) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffer, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	return &notingConn{conn, w.note}, buffer, nil
}

type notingConn struct {
	net.Conn
	note func()
}

// Read implements net.Conn.
func (c *notingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.note()
	}
	return n, err
}
