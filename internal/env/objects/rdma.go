// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

// Annotations of pods in mode RDMA.
const (
	// NetworksAnnotation has Multus attach networks, in the order of net1 and so on.
	NetworksAnnotation = "k8s.v1.cni.cncf.io/networks"
	// SCCAnnotation has OpenShift admit a pod by one SCC only, or refuse it.
	SCCAnnotation = "openshift.io/required-scc"
	// AdmittedByAnnotation is set by OpenShift: the SCC that admitted the pod.
	AdmittedByAnnotation = "openshift.io/scc"
)

// RootsOwn returns capabilities that runtimes give to root and that no training uses. The rest, CHOWN, DAC_OVERRIDE, FOWNER,
// FSETID and KILL, let root work on files that earlier pods wrote to the claims under other user IDs.
func RootsOwn() []corev1.Capability {
	return []corev1.Capability{"AUDIT_WRITE", "MKNOD", "NET_BIND_SERVICE", "NET_RAW", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"}
}

func (b builder) podAnnotations() map[string]string {
	if b.Mode != agent.RDMA {
		return nil
	}
	annotations := map[string]string{}
	if attachments := b.Cluster.Network.RDMA.AttachmentsIn(b.Namespace); len(attachments) > 0 {
		annotations[NetworksAnnotation] = strings.Join(attachments, ",")
	}
	if scc := b.Cluster.Security.Pinned(); scc != "" {
		annotations[SCCAnnotation] = scc
	}
	return annotations
}

// asRoot reports whether the security block adds a capability: capabilities are effective for root only.
func (b builder) asRoot() bool {
	security := b.Cluster.Security
	return b.Mode == agent.RDMA && (len(security.AddedCapabilities()) > 0 || security.RequiresPrivilegedSCC)
}

// AsksIPCLock reports whether the training container of a pod asks for the capability.
func AsksIPCLock(pod *corev1.PodSpec) bool {
	return slices.ContainsFunc(pod.Containers, func(c corev1.Container) bool {
		return c.Name == TrainContainer && c.SecurityContext != nil && c.SecurityContext.Capabilities != nil &&
			slices.Contains(c.SecurityContext.Capabilities.Add, "IPC_LOCK")
	})
}

// podSecurity lets the cluster choose the user, unless it must be root. OnRootMismatch saves walking a large claim at
// every start.
func (b builder) podSecurity() *corev1.PodSecurityContext {
	context := &corev1.PodSecurityContext{
		RunAsNonRoot:        new(true),
		FSGroupChangePolicy: new(corev1.FSGroupChangeOnRootMismatch),
		SeccompProfile:      &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	SetUser(context, b.Cluster.Security.RunAsUser)
	if b.asRoot() {
		context.RunAsNonRoot, context.RunAsUser = nil, new(int64(0))
		// An SCC without seccomp profiles, such as nccl-scc, allows none.
		context.SeccompProfile = nil
	}
	return context
}

// SetUser sets the user of a pod, and makes its claims writable for it, where no security context constraint does both; 0 is for OpenShift.
// As there, the group is 0: the images give it the permissions of root.
func SetUser(context *corev1.PodSecurityContext, user int) {
	if id := int64(user); id > 0 {
		context.RunAsUser, context.RunAsGroup, context.FSGroup = &id, new(int64(0)), &id
		context.FSGroupChangePolicy = new(corev1.FSGroupChangeOnRootMismatch)
	}
}

func (b builder) trainSecurity() *corev1.SecurityContext {
	if !b.asRoot() {
		return restricted()
	}
	var added []corev1.Capability
	for _, name := range b.Cluster.Security.AddedCapabilities() {
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
