// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
)

// TestAsked: the request is for two nodes of Barcelona, each with claims of 100Gi and 500Gi and with init containers that
// request less than the training.
func TestAsked(t *testing.T) {
	w, file := barcelona(t)
	p, err := newProbe(t.Context(), w.deps(file), optionsOf(file, agent.Auto))
	if err != nil {
		t.Fatal(err)
	}
	a := p.demand(t.Context())
	for name, want := range map[corev1.ResourceName]string{
		"pods": "2", "count/pods": "2", "cpu": "64", "requests.cpu": "64", "limits.cpu": "128", "requests.memory": "256Gi",
		"limits.memory":           "512Gi",
		"requests.nvidia.com/gpu": "8", "requests.openshift.io/eno5np0rdma": "2", "persistentvolumeclaims": "4", "requests.storage": "1200Gi",
		"ocs-external-storagecluster-ceph-rbd.storageclass.storage.k8s.io/requests.storage": "1200Gi",
		"nfs-csi.storageclass.storage.k8s.io/requests.storage":                              "0",
	} {
		got, ok := a.amountOf(name)
		if !ok || got.String() != want {
			t.Errorf("%s: %s, %t; want %s", name, got.String(), ok, want)
		}
	}
	if _, ok := a.amountOf("services"); ok {
		t.Error("services are requested")
	}
}

// Existing pods and claims of the environment do not count as demand.
func TestDemandOfRest(t *testing.T) {
	w, file := barcelona(t)
	own := holder("ml-dev-env-0", "moc-r4pcc02u15-yunshi", "4")
	own.Namespace, own.Labels = "nccl-test", objects.Labels("ml-dev-env")
	w.objects = append(w.objects, own, claim("ml-dev-workspace-ml-dev-env-0", corev1.ClaimBound))
	p, err := newProbe(t.Context(), w.deps(file), optionsOf(file, agent.Auto))
	if err != nil {
		t.Fatal(err)
	}
	d := p.demand(t.Context())
	for name, want := range map[corev1.ResourceName]string{"pods": "1", "requests.nvidia.com/gpu": "4", "persistentvolumeclaims": "3",
		"requests.storage": "1100Gi"} {
		if got, _ := d.amountOf(name); got.String() != want {
			t.Errorf("%s: %s, want %s", name, got.String(), want)
		}
	}
}

// A quota that the environment uses up exactly is sufficient.
func TestExactQuota(t *testing.T) {
	w, file := barcelona(t)
	w.objects = append(w.objects, quota("gpus", "requests.nvidia.com/gpu", "16", "8"))
	if report := w.examine(file, agent.Auto); !said(report, want{"quota", OK, "the environment fits into gpus", ""}) {
		t.Errorf("want quota ok in\n%s", print(report))
	}
}

func TestMemoryLock(t *testing.T) {
	capabilities := &corev1.Capabilities{Add: []corev1.Capability{"IPC_LOCK"}}
	tests := []struct {
		name string
		pod  *corev1.PodSecurityContext
		c    *corev1.SecurityContext
		want Status
	}{
		{"privileged root", nil, &corev1.SecurityContext{Privileged: new(true), RunAsUser: new(int64(0))}, OK},
		{"IPC_LOCK and root by the pod", &corev1.PodSecurityContext{RunAsUser: new(int64(0))},
			&corev1.SecurityContext{Capabilities: capabilities}, OK},
		{"IPC_LOCK and another user", nil, &corev1.SecurityContext{Capabilities: capabilities, RunAsUser: new(int64(1000660000))}, Warning},
		{"IPC_LOCK and not root", &corev1.PodSecurityContext{RunAsNonRoot: new(true)}, &corev1.SecurityContext{Capabilities: capabilities},
			Warning},
		{"nothing", nil, nil, Unknown},
	}
	for _, test := range tests {
		pod := &corev1.Pod{Spec: corev1.PodSpec{SecurityContext: test.pod,
			Containers: []corev1.Container{{Name: objects.TrainContainer, SecurityContext: test.c}}}}
		if got := (&probe{}).memoryLock(pod); got.Status != test.want {
			t.Errorf("%s: %+v, want %s", test.name, got, test.want)
		}
	}
}
