// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"io"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/httpstream"
)

// The kubelet pairs the streams of a connection by their type, port and number.
func TestStreamsOfAConnection(t *testing.T) {
	types := make(chan [2]string, 1)
	clients := apiServer(t, func(data, problems httpstream.Stream) {
		types <- [2]string{problems.Headers().Get(corev1.StreamType), data.Headers().Get(corev1.StreamType)}
		if data.Headers().Get(corev1.PortForwardRequestIDHeader) != problems.Headers().Get(corev1.PortForwardRequestIDHeader) {
			t.Error("the streams have different numbers")
		}
		problems.Close()
		data.Close()
	})
	conn, err := DialPod(t.Context(), clients, "ns", "env-1", 7443)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.ReadAll(conn)
	if got, want := <-types, [2]string{corev1.StreamTypeError, corev1.StreamTypeData}; got != want {
		t.Errorf("got streams %q, want %q", got, want)
	}
}
