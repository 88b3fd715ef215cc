// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// TestRunAsUser: without OpenShift the cluster file names the user. Root for a capability stays root.
func TestRunAsUser(t *testing.T) {
	for mode, want := range map[agent.Mode]int64{agent.TCP: 1001, agent.RDMA: 0} {
		r := request(t, "barcelona")
		r.Mode = mode
		r.Cluster.Security = cluster.Security{ServiceAccount: "ml-dev-sa", RunAsUser: 1001, IPCLock: true}
		context := build(t, r).StatefulSet.Spec.Template.Spec.SecurityContext
		if *context.RunAsUser != want || *context.RunAsGroup != 0 || *context.FSGroup != 1001 {
			t.Errorf("mode %s: %+v", mode, context)
		}
	}
}

// TestSecurityIsObeyed: the security block applies in mode agent.RDMA, and no part of it applies in mode TCP.
func TestSecurityIsObeyed(t *testing.T) {
	type privileges struct {
		Privileged, Root bool
		Add              []corev1.Capability
		SCC              string
	}
	tests := []struct {
		name     string
		mode     agent.Mode
		security cluster.Security
		want     privileges
	}{
		{"tcp", agent.TCP, cluster.Security{RequiresPrivilegedSCC: true, IPCLock: true, SCC: "nccl-scc"}, privileges{}},
		{"nothing, so CRI-O must raise memlock", agent.RDMA, cluster.Security{}, privileges{}},
		{"nothing but an SCC", agent.RDMA, cluster.Security{SCC: "nccl-scc"}, privileges{SCC: "nccl-scc"}},
		{"IPC_LOCK, effective for root alone", agent.RDMA, cluster.Security{IPCLock: true},
			privileges{Root: true, Add: []corev1.Capability{"IPC_LOCK"}}},
		{"IPC_LOCK by an SCC", agent.RDMA, cluster.Security{IPCLock: true, SCC: "nccl-scc"},
			privileges{Root: true, Add: []corev1.Capability{"IPC_LOCK"}, SCC: "nccl-scc"}},
		{"another capability", agent.RDMA, cluster.Security{IPCLock: true, Capabilities: []string{"SYS_PTRACE"}},
			privileges{Root: true, Add: []corev1.Capability{"IPC_LOCK", "SYS_PTRACE"}}},
		{"privileged", agent.RDMA, cluster.Security{RequiresPrivilegedSCC: true}, privileges{Privileged: true, Root: true, SCC: "privileged"}},
		{"privileged by another SCC", agent.RDMA, cluster.Security{RequiresPrivilegedSCC: true, SCC: "ours"},
			privileges{Privileged: true, Root: true, SCC: "ours"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := request(t, "barcelona")
			r.Mode = test.mode
			test.security.ServiceAccount = "ml-dev-sa"
			r.Cluster.Security = test.security
			template := build(t, r).StatefulSet.Spec.Template
			train := template.Spec.Containers[0].SecurityContext
			got := privileges{
				Privileged: train.Privileged != nil && *train.Privileged, SCC: template.Annotations[SCCAnnotation],
				Root: template.Spec.SecurityContext.RunAsUser != nil && *template.Spec.SecurityContext.RunAsUser == 0,
			}
			if train.Capabilities != nil {
				got.Add = train.Capabilities.Add
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestHostNetwork: pods in mode agent.RDMA share the host's network if the cluster file sets that, and still resolve the cluster's
// names.
func TestHostNetwork(t *testing.T) {
	for mode, want := range map[agent.Mode]bool{agent.RDMA: true, agent.TCP: false} {
		r := request(t, "cairo")
		r.Mode, r.Cluster.Network.RDMA.HostNetwork = mode, true
		spec := build(t, r).StatefulSet.Spec.Template.Spec
		if spec.HostNetwork != want || want != (spec.DNSPolicy == corev1.DNSClusterFirstWithHostNet) {
			t.Errorf("mode %s: host network %t, DNS policy %q, want host network %t", mode, spec.HostNetwork, spec.DNSPolicy, want)
		}
	}
}

// TestRDMAIsRefused: Build refuses mode agent.RDMA if the cluster file has no way to give a pod devices.
func TestRDMAIsRefused(t *testing.T) {
	disabled := request(t, "local")
	disabled.Mode = agent.RDMA
	noWay := request(t, "barcelona")
	noWay.Mode = agent.RDMA
	noWay.Cluster.Network.RDMA.Attachments, noWay.Cluster.Network.RDMA.Resources = nil, nil
	for want, r := range map[string]Request{
		"mode: rdma: the cluster file of local has network.rdma.enabled false":                                                   disabled,
		"mode: rdma: the cluster file of barcelona has neither network.rdma.resources and attachments, nor security.requires_pr": noWay,
	} {
		err := r.Validate()
		if fail.ReasonOf(err) != fail.InvalidInput || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want InvalidInput with %q", err, want)
		}
	}
}
