// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// ClientHeader has a random name of the client, by which the agent recognizes it after a broken connection.
const ClientHeader = "Mlenv-Client"

// Client talks to one node's agent. All requests share one connection.
type Client struct {
	node  int
	id    string
	http  *http.Client
	clock clock
}

// NewClient makes the client of one node; serverName is the name in the node's certificate.
func NewClient(node int, serverName string, credentials Credentials, dial Dialer) *Client {
	transport := &http.Transport{
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx, node) },
		ForceAttemptHTTP2: true,
		TLSClientConfig: &tls.Config{
			MinVersion:   tls.VersionTLS13,
			ServerName:   serverName,
			RootCAs:      credentials.CA,
			Certificates: []tls.Certificate{credentials.Certificate},
		},
		TLSHandshakeTimeout: 10 * time.Second,
		// A step that talks to hundreds of nodes cannot hold 4 MiB, Go's default, of the unread answer of each. A quarter of that, in frames
		// larger than the usual 16 KiB, is enough for a log to arrive as fast as from a larger buffer.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 10 * time.Second, PingTimeout: 10 * time.Second, MaxReadFrameSize: 128 << 10,
			MaxReceiveBufferPerStream: 1 << 20},
	}
	// An agent redirects nowhere.
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &Client{node: node, id: rand.Text(), http: &http.Client{Transport: transport, CheckRedirect: stay}}
}

// Node returns the ordinal of the node.
func (c *Client) Node() int { return c.node }

// Close drops idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Health asks whether the agent answers. An agent of another protocol is fail.AgentVersion.
func (c *Client) Health(ctx context.Context) (Health, error) {
	h, err := requestJSON[Health](ctx, c, http.MethodGet, "/v1/health", nil)
	return h, cmp.Or(err, c.sameProtocol(h))
}

func (c *Client) sameProtocol(h Health) error {
	if h.Protocol == Protocol {
		return nil
	}
	return fail.Advise(fail.Becausef(fail.AgentVersion, "talking to the agent of node %d: it speaks protocol %d (mlenv %s), want %d",
		c.node, h.Protocol, shorten(h.Version), Protocol),
		"create the environment anew: mlenv down, then mlenv up or another run; or use mlenv %s", shorten(h.Version))
}

// IsNotFound reports whether err is an agent's answer that a job, log or tree does not exist.
func IsNotFound(err error) bool {
	var s *statusError
	return errors.As(err, &s) && s.code == http.StatusNotFound
}

// IgnoreNotFound returns nil for an error of IsNotFound, and err for any other.
func IgnoreNotFound(err error) error {
	if IsNotFound(err) {
		return nil
	}
	return err
}

// statusError is an answer other than 2xx.
type statusError struct {
	code    int
	message string
}

func (e *statusError) Error() string { return e.message }

func requestJSON[T any](ctx context.Context, c *Client, method, path string, in any) (out T, err error) {
	err = c.send(ctx, method, path, in, &out)
	return out, err
}

// send sends a request, and reads the answer into out unless that is nil.
func (c *Client) send(ctx context.Context, method, path string, in, out any) error {
	body, err := c.stream(ctx, method, path, in)
	if err != nil {
		return err
	}
	defer body.Close()
	if out == nil {
		_, err := io.Copy(io.Discard, io.LimitReader(body, maxAnswer))
		return err
	}
	answer := &limitedReader{from: body}
	if err := json.NewDecoder(answer.allow(maxBytes(out))).Decode(out); err != nil {
		return c.unreachable(fmt.Errorf("reading the answer to %s %s: %w", method, path, err))
	}
	return nil
}

// stream sends a request, whose body is a reader, or what to send in JSON, or nil for none. It returns the body of the answer.
func (c *Client) stream(ctx context.Context, method, path string, in any) (io.ReadCloser, error) {
	body, streamed := in.(io.Reader)
	if in != nil && !streamed {
		content, err := json.Marshal(in)
		if err != nil {
			return nil, fmt.Errorf("encoding a request to the agent: %w", err)
		}
		body = bytes.NewReader(content)
	}
	request, err := http.NewRequestWithContext(ctx, method, "https://agent"+path, body)
	if err != nil {
		return nil, err
	}
	StampClock(request.Header)
	request.Header.Set(ClientHeader, c.id)
	sent := time.Now()
	response, err := c.http.Do(request)
	if err != nil {
		if errors.Is(ctx.Err(), context.Canceled) {
			return nil, ctx.Err()
		}
		// The URL of a url.Error names no real host.
		return nil, c.unreachable(cmp.Or(ctx.Err(), errors.Unwrap(err)))
	}
	c.clock.observe(sent, time.Now(), response.Header)
	if response.StatusCode/100 == 2 {
		return response.Body, nil
	}
	defer response.Body.Close()
	var problem Problem
	if err := json.NewDecoder(io.LimitReader(response.Body, 1<<20)).Decode(&problem); err != nil {
		problem.Message = fmt.Sprintf("%s %s: the agent answered %s", method, path, response.Status)
	}
	failure := error(&statusError{code: response.StatusCode, message: fmt.Sprintf("node %d: %s", c.node, problem.Message)})
	if problem.Reason != "" {
		failure = fail.Because(problem.Reason, failure)
	}
	if problem.Next != "" {
		failure = fail.Advise(failure, "%s", problem.Next)
	}
	return nil, failure
}

// unreachable marks an error of the connection, after which the caller may retry.
func (c *Client) unreachable(err error) error {
	return fail.Because(fail.AgentUnreachable, fmt.Errorf("talking to the agent of node %d: %w", c.node, err))
}
