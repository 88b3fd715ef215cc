package nodes

import (
	"net"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

func TestPodDialer(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	port := listener.Addr().(*net.TCPAddr).Port
	with := func(name, ip string, phase corev1.PodPhase) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
		p.Status.PodIP, p.Status.Phase = ip, phase
		return p
	}
	client := fake.NewClientset(
		with("env-0", "127.0.0.1", corev1.PodRunning),
		with("env-1", "", corev1.PodPending),
		with("env-2", "127.0.0.1", corev1.PodFailed),
	)
	dial := PodDialer(client, "ns", "env", port)
	for node, want := range []string{"", "no address yet", "has ended", "not found"} {
		conn, err := dial(t.Context(), node)
		if err == nil {
			conn.Close()
		}
		switch {
		case want == "" && err != nil:
			t.Errorf("node %d: %v", node, err)
		case want != "" && (fail.ReasonOf(err) != fail.AgentUnreachable || !strings.Contains(err.Error(), want)):
			t.Errorf("node %d: got %v, want AgentUnreachable with %q", node, err, want)
		}
	}
}
