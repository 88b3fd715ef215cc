// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/apimachinery/pkg/util/httpstream/spdy"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// execServer runs commands over SPDY only, and answers a WebSocket request as refuse does. The command repeats its stdin
// and exits with 3.
func execServer(t *testing.T, refuse http.HandlerFunc) *Clients {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			refuse(w, r)
			return
		}
		if _, err := httpstream.Handshake(r, w, []string{remotecommand.StreamProtocolV4Name}); err != nil {
			return
		}
		accepted := make(chan httpstream.Stream, 3)
		conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, _ <-chan struct{}) error {
			accepted <- s
			return nil
		})
		if conn == nil {
			return
		}
		defer conn.Close()
		streams := map[string]httpstream.Stream{}
		for range 3 {
			stream := <-accepted
			streams[stream.Headers().Get(corev1.StreamType)] = stream
		}
		_, _ = io.Copy(streams[corev1.StreamTypeStdout], streams[corev1.StreamTypeStdin])
		streams[corev1.StreamTypeStdout].Close()
		_, _ = io.WriteString(streams[corev1.StreamTypeError],
			`{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"3"}]}}`)
		streams[corev1.StreamTypeError].Close()
		<-conn.CloseChan()
	}))
	t.Cleanup(server.Close)
	config := &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	return &Clients{Kube: kubernetes.NewForConfigOrDie(config), Config: config}
}

func TestExecFallsBackToSPDY(t *testing.T) {
	for _, status := range []int{http.StatusBadRequest, http.StatusForbidden} {
		t.Run(http.StatusText(status), func(t *testing.T) {
			clients := execServer(t, func(w http.ResponseWriter, _ *http.Request) {
				http.Error(w, "unable to upgrade", status)
			})
			var stdout bytes.Buffer
			err := Exec{
				Namespace: "ns", Pod: "env-0", Container: "train", Command: []string{"cat"},
				Stdin: strings.NewReader("repeat this"), Stdout: &stdout,
			}.Run(t.Context(), clients)
			if exited := new(ExitError); !errors.As(err, &exited) || exited.Code != 3 {
				t.Errorf("got %v, want exit code 3", err)
			}
			if got := stdout.String(); got != "repeat this" {
				t.Errorf("stdout: got %q", got)
			}
		})
	}
}

func TestExecWithoutPermission(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":`+
			`"pods \"env-0\" is forbidden: User \"h-kim\" cannot create resource \"pods/exec\" in API group \"\" in the namespace \"ns\""}`)
	}))
	defer server.Close()
	config := &rest.Config{Host: server.URL}
	err := Exec{Namespace: "ns", Pod: "env-0", Command: []string{"true"}, Stdout: io.Discard}.
		Run(t.Context(), &Clients{Kube: kubernetes.NewForConfigOrDie(config), Config: config})
	if got := fail.ReasonOf(err); got != fail.PermissionDenied {
		t.Errorf("got %s (%v), want PermissionDenied", got, err)
	}
}
