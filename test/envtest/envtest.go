// SPDX-License-Identifier: Apache-2.0

// Package envtest has environments for tests of steps: objects on an API server in memory, and real agents in place of nodes. There are
// no pods and no kubelet.
package envtest

import (
	"testing"
	"time"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ml-dev-env/ml-dev-env/internal/env"
	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
	"github.com/ml-dev-env/ml-dev-env/test/apitest"
)

// Run returns the PipelineRun that holds the environments, for a task.
func Run(task string) run.Flags { return run.Flags{Name: "train-1", UID: "uid-1", Task: task} }

// Pool is agents for environments of one node each. Steps that run in parallel each use another one.
type Pool struct{ free chan *agenttest.Node }

// NewPool starts the agents. prepare may change each of them before.
func NewPool(t testing.TB, size int, prepare func(*agenttest.Node)) *Pool {
	t.Helper()
	p := &Pool{free: make(chan *agenttest.Node, size)}
	for range size {
		node := agenttest.Start(t, 1)[0]
		if prepare != nil {
			prepare(node)
		}
		p.free <- node
	}
	return p
}

// Server starts an API server with environment env of namespace ns, as provision has created it for Run. The environment's agent is
// this test's until its end.
func (p *Pool) Server(t testing.TB) *apitest.Server {
	t.Helper()
	node := <-p.free
	t.Cleanup(func() { p.free <- node })
	about := func(name string, owner metav1.OwnerReference) metav1.ObjectMeta {
		return metav1.ObjectMeta{
			Namespace: "ns", Name: name, UID: types.UID("uid-of-" + name), Labels: objects.Labels("env"),
			OwnerReferences: []metav1.OwnerReference{owner},
		}
	}
	of := Run("")
	names := env.Of(&kube.Clients{Namespace: "ns"}, "env").Names
	byRun, byLease := run.OwnerReference(of.Name, types.UID(of.UID)), objects.LeaseReference("env", "uid-of-env")
	own := &v1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: of.Name, UID: types.UID(of.UID)}}
	own.Spec.Timeouts = &v1.TimeoutFields{Pipeline: &metav1.Duration{Duration: 24 * time.Hour}}
	own.Status.StartTime = new(metav1.Now())
	held := &coordinationv1.Lease{ObjectMeta: about(names.Lease, byRun), Spec: coordinationv1.LeaseSpec{
		HolderIdentity: &of.UID, RenewTime: new(metav1.NowMicro()), LeaseDurationSeconds: new(int32(lease.Duration / time.Second)),
	}}
	held.Annotations = map[string]string{lease.HolderName: of.Name, lease.HolderKind: "PipelineRun"}
	set := &appsv1.StatefulSet{ObjectMeta: about(names.StatefulSet, byLease), Spec: appsv1.StatefulSetSpec{Replicas: new(int32(1))}}
	set.UID = "uid-of-set"
	bySet := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: set.Name, UID: set.UID}
	pod := &corev1.Pod{ObjectMeta: about(names.PodName(0), bySet)}
	pod.Spec.NodeName = node.Config.KubernetesNode
	pod.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: node.Config.PodIP,
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
	}
	made := node.Certificates()
	secret := &corev1.Secret{ObjectMeta: about(names.ClientSecret, byLease), Data: map[string][]byte{
		"ca.crt": made.CA, "tls.crt": made.ClientCert, "tls.key": made.ClientKey,
	}}
	return apitest.Start(t, own, held, set, pod, secret)
}

// InPod returns clients of a step in a pod, which reaches the agents at their addresses.
func InPod(clients *kube.Clients) *kube.Clients {
	clients.InCluster = true
	return clients
}
