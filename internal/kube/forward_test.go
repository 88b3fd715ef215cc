// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/apimachinery/pkg/util/httpstream/spdy"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// apiServer forwards as an API server did before WebSockets: it refuses the GET that would upgrade to them. serve gets the
// two streams of a connection.
func apiServer(t *testing.T, serve func(data, problems httpstream.Stream)) *Clients {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/namespaces/ns/pods/env-1/portforward" || r.Method != http.MethodPost {
			http.Error(w, "unable to upgrade", http.StatusBadRequest)
			return
		}
		if _, err := httpstream.Handshake(r, w, []string{portforward.PortForwardProtocolV1Name}); err != nil {
			return
		}
		streams := make(chan httpstream.Stream, 2)
		conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, _ <-chan struct{}) error {
			if s.Headers().Get(corev1.PortHeader) != "7443" {
				return errors.New("another port")
			}
			streams <- s
			return nil
		})
		if conn == nil {
			return
		}
		defer conn.Close()
		problems, data := <-streams, <-streams
		serve(data, problems)
		<-conn.CloseChan()
	}))
	t.Cleanup(server.Close)
	config := &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return &Clients{Kube: client, Config: config}
}

func TestDialPodCarriesBothWays(t *testing.T) {
	var served sync.WaitGroup
	served.Add(1)
	clients := apiServer(t, func(data, problems httpstream.Stream) {
		defer served.Done()
		_, _ = io.Copy(data, data)
		data.Close()
		problems.Close()
	})
	conn, err := DialPod(t.Context(), clients, "ns", "env-1", 7443)
	if err != nil {
		t.Fatal(err)
	}
	sent := strings.Repeat("0123456789abcdef", 1<<16)
	go func() { _, _ = io.WriteString(conn, sent) }()
	got := make([]byte, len(sent))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != sent {
		t.Errorf("echo of %d bytes differs: %v", len(sent), err)
	}

	const timeForNoBytes = time.Millisecond
	if err := conn.SetReadDeadline(time.Now().Add(timeForNoBytes)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(got); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read after its deadline: got %v", err)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	// The far end sees the end of the data.
	served.Wait()
	if _, err := conn.Read(got); err == nil {
		t.Error("read after Close: want an error")
	}
}

func TestDialPodSaysWhatThePodSaid(t *testing.T) {
	clients := apiServer(t, func(data, problems httpstream.Stream) {
		_, _ = io.WriteString(problems, "failed to connect to localhost:7443: connection refused")
		problems.Close()
		data.Close()
	})
	conn, err := DialPod(t.Context(), clients, "ns", "env-1", 7443)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Read(make([]byte, 1)); err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("got %v, want the pod's own message", err)
	}
}

func TestDialPodErrors(t *testing.T) {
	refused := `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":` +
		`"pods \"env-1\" is forbidden: User \"h-kim\" cannot create resource \"pods/portforward\" in API group \"\" in the namespace \"ns\""}`
	for _, tc := range []struct {
		name    string
		handler http.HandlerFunc
		want    fail.Reason
	}{
		{"permission", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, refused)
		}, fail.PermissionDenied},
		{"no such pod", func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, `pods "env-1" not found`, http.StatusNotFound)
		}, fail.AgentUnreachable},
	} {
		t.Run(tc.name, func(t *testing.T) {
			server := httptest.NewServer(tc.handler)
			defer server.Close()
			config := &rest.Config{Host: server.URL}
			_, err := DialPod(t.Context(), &Clients{Kube: kubernetes.NewForConfigOrDie(config), Config: config}, "ns", "env-1", 7443)
			if got := fail.ReasonOf(err); got != tc.want {
				t.Errorf("got %s (%v), want %s", got, err, tc.want)
			}
		})
	}
}

func TestOpenInTime(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	near, far := net.Pipe()
	release := make(chan struct{})
	cancel()
	_, err := openInTime(ctx, func() (net.Conn, error) { <-release; return near, nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the end of the context", err)
	}
	close(release)
	// The client closes a connection that arrives too late: the far end sees it.
	if _, err := far.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("far end: got %v, want EOF", err)
	}
}
