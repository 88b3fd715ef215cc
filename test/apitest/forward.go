// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/apimachinery/pkg/util/httpstream/spdy"
	"k8s.io/client-go/tools/portforward"
)

// forward connects a client with a port of a pod, at the address in the pod's status. It refuses WebSockets, as older API servers do.
func (s *Server) forward(w http.ResponseWriter, r *http.Request) {
	status, _ := s.Get(strings.TrimSuffix(r.URL.Path, "/portforward"))["status"].(Object)
	address, running := status["podIP"].(string)
	if r.Method != http.MethodPost || !running {
		http.Error(w, "unable to upgrade", http.StatusBadRequest)
		return
	}
	if _, err := httpstream.Handshake(r, w, []string{portforward.PortForwardProtocolV1Name}); err != nil {
		return
	}
	streams := make(chan httpstream.Stream, 2)
	client := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(stream httpstream.Stream, _ <-chan struct{}) error {
		streams <- stream
		return nil
	})
	if client == nil {
		return
	}
	defer client.Close()
	next := func() httpstream.Stream {
		select {
		case stream := <-streams:
			return stream
		case <-client.CloseChan():
			return nil
		}
	}
	problems, data := next(), next()
	if data == nil {
		return
	}
	conn, err := net.Dial("tcp", net.JoinHostPort(address, data.Headers().Get(corev1.PortHeader)))
	if err != nil {
		_, _ = fmt.Fprint(problems, err)
		_ = problems.Close()
		return
	}
	defer conn.Close()
	go func() {
		_, _ = io.Copy(conn, data)
		_ = conn.(*net.TCPConn).CloseWrite()
	}()
	_, _ = io.Copy(data, conn)
	_ = data.Close()
	_ = problems.Close()
	<-client.CloseChan()
}
