// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// hangUpAfter bounds the time in which a closed connection sends what was written to it.
const hangUpAfter = 5 * time.Second

// DialPod connects to a port of a pod through the API server's port-forward, over WebSockets, or over SPDY if the API server
// or a proxy on the way refuses WebSockets. If no process listens on the port, the first Read returns that error. Errors:
// AgentUnreachable, PermissionDenied.
//
// It does not use client-go's PortForwarder, which sends all connections over one request, so that an unread stream stops
// the others and one error closes all; which prints the pod's errors; and which listens on a port for every local user.
func DialPod(ctx context.Context, clients *Clients, namespace, pod string, port int) (net.Conn, error) {
	target := clients.Kube.CoreV1().RESTClient().Post().Resource("pods").
		Namespace(namespace).Name(pod).SubResource("portforward").URL()
	conn, err := openInTime(ctx, func() (net.Conn, error) {
		return forward(clients.Config, target, port)
	})
	switch {
	case err == nil:
		return conn, nil
	case refusedRequest.MatchString(err.Error()):
		return nil, denied(fmt.Errorf("forwarding to pod %s/%s: %w", namespace, pod, err))
	}
	return nil, Unreachable(namespace, pod, err)
}

// openInTime is open until the end of ctx, because the upgrade takes no context.
func openInTime(ctx context.Context, open func() (net.Conn, error)) (net.Conn, error) {
	type outcome struct {
		conn net.Conn
		err  error
	}
	result := make(chan outcome, 1)
	go func() {
		conn, err := open()
		result <- outcome{conn, err}
	}()
	select {
	case got := <-result:
		return got.conn, got.err
	case <-ctx.Done():
		go func() {
			if late := <-result; late.conn != nil {
				late.conn.Close()
			}
		}()
		return nil, context.Cause(ctx)
	}
}

func forward(config *rest.Config, target *url.URL, port int) (_ net.Conn, err error) {
	transport, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		return nil, err
	}
	overSPDY := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, target)
	overWebSocket, err := portforward.NewSPDYOverWebsocketDialer(target, config)
	if err != nil {
		return nil, err
	}
	// If both fail, the second one's error is better: it decodes the API server's answer.
	dialer := portforward.NewFallbackDialer(overWebSocket, overSPDY, func(error) bool { return true })
	upgraded, protocol, err := dialer.Dial(portforward.PortForwardProtocolV1Name)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, upgraded.Close())
		}
	}()
	if protocol != portforward.PortForwardProtocolV1Name {
		return nil, fmt.Errorf("forwarding speaks %q: want %q", protocol, portforward.PortForwardProtocolV1Name)
	}
	headers := http.Header{}
	headers.Set(corev1.PortHeader, strconv.Itoa(port))
	headers.Set(corev1.PortForwardRequestIDHeader, "0")
	headers.Set(corev1.StreamType, corev1.StreamTypeError)
	errorStream, err := upgraded.CreateStream(headers)
	if err == nil {
		err = errorStream.Close() // this end writes nothing to it
	}
	if err != nil {
		return nil, fmt.Errorf("opening the error stream: %w", err)
	}
	headers.Set(corev1.StreamType, corev1.StreamTypeData)
	dataStream, err := upgraded.CreateStream(headers)
	if err != nil {
		return nil, fmt.Errorf("opening the data stream: %w", err)
	}
	return newStreamConn(dataStream, errorStream, upgraded.Close), nil
}

// streamConn is a net.Conn over a data stream. A stream has no deadlines, but a pipe has: the caller has one end of a pipe and
// the stream the other.
type streamConn struct {
	net.Conn
	// hangUp ends the streams, once.
	hangUp func()
	// written is closed when the stream has all that was written.
	written chan struct{}

	mu sync.Mutex
	// failed is the far end's error.
	failed error
}

func newStreamConn(data io.ReadWriteCloser, problems io.Reader, closeAll func() error) *streamConn {
	user, stream := net.Pipe()
	f := &streamConn{Conn: user, written: make(chan struct{})}
	f.hangUp = sync.OnceFunc(func() {
		// The peer may have closed already.
		_ = closeAll()
		stream.Close()
	})
	problem := make(chan error, 1)
	go func() {
		message, err := io.ReadAll(problems)
		if err == nil && len(message) > 0 {
			err = errors.New(string(message))
		}
		problem <- err
	}()
	go func() {
		// The data stream ends before the error stream has its error, which the caller must see.
		_, err := io.Copy(stream, data)
		select {
		case said := <-problem:
			err = errors.Join(said, err)
		case <-f.written:
		case <-time.After(hangUpAfter):
		}
		f.mu.Lock()
		f.failed = err
		f.mu.Unlock()
		f.hangUp()
	}()
	go func() {
		_, err := io.Copy(data, stream)
		if err == nil {
			err = data.Close()
		}
		close(f.written)
		// The caller's next Write fails by itself, its Read ends with the streams.
		if err != nil {
			f.hangUp()
		}
	}()
	return f
}

// Read returns the far end's error at the end.
func (f *streamConn) Read(p []byte) (int, error) {
	n, err := f.Conn.Read(p)
	if errors.Is(err, io.EOF) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.failed != nil {
			return n, fmt.Errorf("forwarding: %w", f.failed)
		}
	}
	return n, err
}

// Close sends what was written and ends the request.
func (f *streamConn) Close() error {
	err := f.Conn.Close()
	go func() {
		select {
		case <-f.written:
		case <-time.After(hangUpAfter):
		}
		f.hangUp()
	}()
	return err
}

// Unreachable returns the error of a pod whose agent does not answer.
func Unreachable(namespace, pod string, err error) error {
	return fail.Advise(fail.Because(fail.AgentUnreachable, fmt.Errorf("connecting to the agent of pod %s/%s: %w", namespace, pod, err)),
		"oc get pod %s -n %s -o wide", pod, namespace)
}
