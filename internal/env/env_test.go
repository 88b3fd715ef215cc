// SPDX-License-Identifier: Apache-2.0

package env

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
)

func TestMain(m *testing.M) { agenttest.Main(m) }

func about(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: objects.Labels("env")}
}

func at(client kubernetes.Interface) Environment {
	return Of(&kube.Clients{Kube: client, Namespace: "ns"}, "env")
}

// Nodes knows an environment only by its StatefulSet, its client Secret and the pods at the agents' addresses.
func TestNodes(t *testing.T) {
	agents := agenttest.Start(t, 2)
	made := agents[0].Certificates()
	content := map[string][]byte{"ca.crt": made.CA, "tls.crt": made.ClientCert, "tls.key": made.ClientKey}
	mounted := t.TempDir()
	for name, data := range content {
		if err := os.WriteFile(filepath.Join(mounted, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	set := &appsv1.StatefulSet{ObjectMeta: about("env"), Spec: appsv1.StatefulSetSpec{Replicas: new(int32(2))}}
	secret := &corev1.Secret{ObjectMeta: about("env-agent-client"), Data: content}
	others := []runtime.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}}
	for _, node := range agents {
		others = append(others,
			&corev1.Pod{ObjectMeta: about(node.Config.Pod), Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: node.Config.PodIP}})
	}
	for _, tc := range []struct {
		name    string
		objects []runtime.Object
		certs   string
		want    fail.Reason // "" for success
		words   string
	}{
		{"by the mounted Secret", []runtime.Object{set}, mounted, "", ""},
		{"by the Secret, as on a laptop", []runtime.Object{set, secret}, "", "", ""},
		{"no environment", nil, mounted, fail.EnvironmentMissing, "environment ns/env: there is none"},
		{"no Secret", []runtime.Object{set}, "", fail.EnvironmentMissing, "environment ns/env: there is none"},
		{"nothing mounted in a task", []runtime.Object{set, secret}, t.TempDir(), fail.EnvironmentMissing, "client certificate"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			clients := &kube.Clients{Kube: fake.NewClientset(append(tc.objects, others...)...), Namespace: "ns", InCluster: true}
			connected, err := Of(clients, "env").Nodes(t.Context(), tc.certs)
			if tc.want != "" {
				if fail.ReasonOf(err) != tc.want || !strings.Contains(err.Error(), tc.words) || fail.NextOf(err) == "" {
					t.Errorf("got %s: %v; want %s with %q and advice", fail.ReasonOf(err), err, tc.want, tc.words)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer connected.Close()
			pods := make([]string, len(connected))
			err = connected.Each(t.Context(), func(ctx context.Context, client *agent.Client) error {
				facts, err := client.Facts(ctx)
				pods[client.Node()] = facts.Pod
				return err
			})
			if diff := cmp.Diff([]string{"env-0", "env-1"}, pods); diff != "" {
				t.Errorf("%v, pods (-want +got):\n%s", err, diff)
			}
		})
	}
}
