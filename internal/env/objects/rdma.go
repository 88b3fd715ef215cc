package objects

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
)

// Annotations of pods in mode RDMA.
const (
	// NetworksAnnotation has Multus attach networks, in the order of net1 and so on.
	NetworksAnnotation = "k8s.v1.cni.cncf.io/networks"
	// SCCAnnotation has OpenShift admit a pod by one SCC only, or refuse it.
	SCCAnnotation = "openshift.io/required-scc"
	// AdmittedByAnnotation is OpenShift's own answer: the SCC that admitted the pod.
	AdmittedByAnnotation = "openshift.io/scc"
)

// RootsOwn are capabilities that runtimes give to root and that no training uses.
// Kept are CHOWN, DAC_OVERRIDE, FOWNER, FSETID and KILL: with them root works on files
// in the claims which earlier pods made under other user IDs.
func RootsOwn() []corev1.Capability {
	return []corev1.Capability{"AUDIT_WRITE", "MKNOD", "NET_BIND_SERVICE", "NET_RAW", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"}
}

// podAnnotations are none in mode TCP.
func (b builder) podAnnotations() map[string]string {
	if b.Mode != RDMA {
		return nil
	}
	annotations := map[string]string{}
	if attachments := b.Cluster.Network.RDMA.Attachments; len(attachments) > 0 {
		annotations[NetworksAnnotation] = strings.Join(attachments, ",")
	}
	if scc := b.Cluster.Security.Pinned(); scc != "" {
		annotations[SCCAnnotation] = scc
	}
	return annotations
}

// asRoot is true where the security block gives a capability: a container's
// capabilities are effective for root alone.
func (b builder) asRoot() bool {
	security := b.Cluster.Security
	return b.Mode == RDMA && (len(security.Adds()) > 0 || security.RequiresPrivilegedSCC)
}

// podSecurity leaves the user to the cluster, unless it must be root.
func (b builder) podSecurity() *corev1.PodSecurityContext {
	context := &corev1.PodSecurityContext{
		RunAsNonRoot:   new(true),
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	if b.asRoot() {
		context.RunAsNonRoot, context.RunAsUser = nil, new(int64(0))
		// An SCC of one's own, as nccl-scc, names no seccomp profile, and then allows none.
		context.SeccompProfile = nil
	}
	return context
}

// trainSecurity gives what the security block says, in mode RDMA.
func (b builder) trainSecurity() *corev1.SecurityContext {
	if !b.asRoot() {
		return restricted()
	}
	var added []corev1.Capability
	for _, name := range b.Cluster.Security.Adds() {
		added = append(added, corev1.Capability(name))
	}
	if b.Cluster.Security.RequiresPrivilegedSCC {
		context := &corev1.SecurityContext{Privileged: new(true)}
		if added != nil {
			context.Capabilities = &corev1.Capabilities{Add: added}
		}
		return context
	}
	dropped := slices.DeleteFunc(RootsOwn(), func(c corev1.Capability) bool { return slices.Contains(added, c) })
	return &corev1.SecurityContext{
		AllowPrivilegeEscalation: new(false),
		Capabilities:             &corev1.Capabilities{Add: added, Drop: dropped},
	}
}

// rdmaResources are those that a device plugin gives the node's devices by.
func (b builder) rdmaResources() cluster.ResourceCounts {
	if b.Mode != RDMA {
		return nil
	}
	return maps.Clone(b.Cluster.Network.RDMA.Resources)
}
