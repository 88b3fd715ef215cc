// SPDX-License-Identifier: Apache-2.0

package env

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
)

// heldBy returns a Lease of ns/env with an idle-timeout.
func heldBy(kind, holder, timeout string) *coordinationv1.Lease {
	l := &coordinationv1.Lease{ObjectMeta: about("env"), Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder}}
	l.Annotations = map[string]string{lease.HolderKind: kind, lease.HolderName: holder, lease.IdleAnnotation: timeout}
	return l
}

// IdleEnvironments lists the unused environments of persons, in one namespace and in all.
func TestIdleEnvironments(t *testing.T) {
	for _, tc := range []struct {
		name  string
		lease *coordinationv1.Lease
		idle  time.Duration
		want  string
	}{
		{"idle", heldBy("Person", "h-kim", "2h"), 25 * time.Minute, "Environment ns/env of h-kim has not been used for 25m0s (last: its " +
			"start). " +
			"It is released in 1h35m unless it is used; claims stay."},
		{"used a moment ago", heldBy("Person", "h-kim", "2h"), 9 * time.Minute, ""},
		{"near a short timeout", heldBy("Person", "h-kim", "10m"), 6 * time.Minute, "Environment ns/env of h-kim has not been used for 6m0s " +
			"(last: its start). It is released in 4m0s unless it is used; claims stay."},
		{"never released", heldBy("Person", "h-kim", ""), 25 * time.Minute, ""},
		{"a run's", heldBy("PipelineRun", "train-1", "2h"), 25 * time.Minute, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Setenv("PATH", "/nowhere") // without nvidia-smi
			began, later := time.Now(), make(chan struct{})
			node := agenttest.StartWith(t, 1, agenttest.Options{Now: func() time.Time {
				select {
				case <-later:
					return began.Add(tc.idle)
				default:
					return began
				}
			}})[0]
			close(later)
			made := node.Certificates()
			known := []runtime.Object{tc.lease, &appsv1.StatefulSet{ObjectMeta: about("env")},
				&corev1.ConfigMap{ObjectMeta: about("env-agent-use"), Data: map[string]string{"ca.crt": string(made.CA),
					"tls.crt": string(made.ReaperCert), "tls.key": string(made.ReaperKey)}},
				&corev1.Pod{ObjectMeta: about("env-0"), Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: node.Config.PodIP}},
				// Another environment, which does not answer.
				&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "away", Labels: objects.Labels("away"),
					Annotations: map[string]string{lease.IdleAnnotation: "1h"}}},
			}
			for _, namespace := range []string{"ns", metav1.NamespaceAll} {
				clients := &kube.Clients{Kube: fake.NewClientset(known...), Namespace: namespace, InCluster: true}
				got, err := IdleEnvironments(t.Context(), clients)
				text := ""
				for _, idle := range got {
					text += idle.String()
				}
				if err != nil || text != tc.want {
					t.Errorf("in %q: %q, %v; want %q", namespace, text, err, tc.want)
				}
			}
		})
	}
}

// A node's answer cannot be what the sentences and the reaper do not expect.
func TestForgedUse(t *testing.T) {
	u := agent.Use{Kind: "\x1b[31m", Idle: -time.Hour}
	u.Confine()
	if u.Kind != agent.StartUse || u.Idle != 0 {
		t.Errorf("got %+v", u)
	}
}
