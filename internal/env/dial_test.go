// SPDX-License-Identifier: Apache-2.0

package env

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

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
		p := &corev1.Pod{ObjectMeta: about(name)}
		p.Status.PodIP, p.Status.Phase = ip, phase
		return p
	}
	client := fake.NewClientset(
		with("env-0", "127.0.0.1", corev1.PodRunning),
		with("env-1", "", corev1.PodPending),
		with("env-2", "127.0.0.1", corev1.PodFailed),
	)
	dial := at(client).PodDialer(port)
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

// If each node needed a request, hundreds of nodes would wait for the client's rate limit.
func TestDialersShareAList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const nodes = 512
		client := fake.NewClientset()
		client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			time.Sleep(time.Second)
			pods := &corev1.PodList{}
			for node := range nodes {
				pods.Items = append(pods.Items, corev1.Pod{ObjectMeta: about(fmt.Sprint("env-", node)),
					Status: corev1.PodStatus{PodIP: fmt.Sprint("10.0.0.", node)}})
			}
			return true, pods, nil
		})
		list := at(client).podList()
		for range 2 { // no address is used twice: another pod may have it now
			var group sync.WaitGroup
			for node := range nodes {
				group.Go(func() {
					pod, err := list.get(t.Context(), fmt.Sprint("env-", node))
					if err != nil || pod.Status.PodIP != fmt.Sprint("10.0.0.", node) {
						t.Errorf("node %d: got %v, %v", node, pod, err)
					}
				})
			}
			group.Wait()
			if got := len(client.Actions()); got != 1 {
				t.Errorf("%d requests, want 1", got)
			}
			client.ClearActions()
		}
	})
}

// A caller whose context ends does not block other callers.
func TestDialerThatGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(&corev1.Pod{ObjectMeta: about("env-0"), Status: corev1.PodStatus{PodIP: "10.0.0.1"}})
		list := at(client).podList()
		list.turn <- struct{}{}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := list.get(ctx, "env-0"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want DeadlineExceeded", err)
		}
		<-list.turn
		if pod, err := list.get(t.Context(), "env-0"); err != nil || pod.Status.PodIP != "10.0.0.1" {
			t.Errorf("got %v, %v; want the pod", pod, err)
		}
	})
}
