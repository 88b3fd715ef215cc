// SPDX-License-Identifier: Apache-2.0

package scc

import (
	"fmt"
	"slices"

	securityv1 "github.com/openshift/api/security/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// effective returns the settings that apply to a container: its own, and the pod's for those that it does not set.
func effective(pod *corev1.Pod, container *corev1.Container) corev1.SecurityContext {
	var sc corev1.SecurityContext
	if container.SecurityContext != nil {
		sc = *container.SecurityContext
	}
	whole := pod.Spec.SecurityContext
	if whole == nil {
		return sc
	}
	if sc.RunAsUser == nil {
		sc.RunAsUser = whole.RunAsUser
	}
	if sc.RunAsNonRoot == nil {
		sc.RunAsNonRoot = whole.RunAsNonRoot
	}
	if sc.SELinuxOptions == nil {
		sc.SELinuxOptions = whole.SELinuxOptions
	}
	if sc.SeccompProfile == nil {
		sc.SeccompProfile = whole.SeccompProfile
	}
	return sc
}

// defaultContainer sets in the container only what the pod does not set for all containers.
func defaultContainer(c *securityv1.SecurityContextConstraints, pod *corev1.Pod, container *corev1.Container) {
	var sc corev1.SecurityContext
	if container.SecurityContext != nil {
		sc = *container.SecurityContext
	}
	now := effective(pod, container)
	if now.RunAsUser == nil {
		sc.RunAsUser = defaultUser(c)
		now.RunAsUser = sc.RunAsUser
	}
	if now.SELinuxOptions == nil && c.SELinuxContext.Type == securityv1.SELinuxStrategyMustRunAs {
		sc.SELinuxOptions = c.SELinuxContext.SELinuxOptions.DeepCopy()
	}
	if now.RunAsNonRoot == nil && (now.RunAsUser == nil && c.RunAsUser.Type == securityv1.RunAsUserStrategyMustRunAsNonRoot ||
		now.RunAsUser != nil && *now.RunAsUser > 0) {
		sc.RunAsNonRoot = new(true)
	}
	sc.Capabilities = defaultCapabilities(c, sc.Capabilities)
	if c.ReadOnlyRootFilesystem && sc.ReadOnlyRootFilesystem == nil {
		sc.ReadOnlyRootFilesystem = new(true)
	}
	privileged := sc.Privileged != nil && *sc.Privileged
	// Kubernetes refuses this capability together with AllowPrivilegeEscalation: false, and spells it like this.
	administers := sc.Capabilities != nil && slices.Contains(sc.Capabilities.Add, "CAP_SYS_ADMIN")
	if sc.AllowPrivilegeEscalation == nil && c.DefaultAllowPrivilegeEscalation != nil && !privileged && !administers {
		sc.AllowPrivilegeEscalation = new(*c.DefaultAllowPrivilegeEscalation)
	}
	if sc.AllowPrivilegeEscalation == nil && forbids(c.AllowPrivilegeEscalation) {
		sc.AllowPrivilegeEscalation = new(false)
	}
	if container.SecurityContext == nil && isZero(sc) {
		return
	}
	container.SecurityContext = &sc
}

func forbids(allow *bool) bool { return allow != nil && !*allow }

func defaultUser(c *securityv1.SecurityContextConstraints) *int64 {
	switch c.RunAsUser.Type {
	case securityv1.RunAsUserStrategyMustRunAs:
		return c.RunAsUser.UID
	case securityv1.RunAsUserStrategyMustRunAsRange:
		return c.RunAsUser.UIDRangeMin
	}
	return nil
}

func checkContainer(c *securityv1.SecurityContextConstraints, pod *corev1.Pod, container *corev1.Container,
	path *field.Path) field.ErrorList {
	sc := effective(pod, container)
	errs := checkUser(c, sc, path)
	errs = append(errs, checkSELinux(c, sc.SELinuxOptions, path.Child("seLinuxOptions"))...)
	errs = append(errs, checkSeccomp(c, profileName(sc.SeccompProfile), corev1.SeccompContainerAnnotationKeyPrefix+container.Name)...)
	if !c.AllowPrivilegedContainer && sc.Privileged != nil && *sc.Privileged {
		errs = append(errs, field.Invalid(path.Child("privileged"), true, "Privileged containers are not allowed"))
	}
	errs = append(errs, checkCapabilities(c, sc.Capabilities, path.Child("capabilities"))...)
	// OpenShift repeats the pod's problems for every container, and for every container's ports.
	errs = append(errs, checkHost(pod.Spec.HostNetwork, c.AllowHostNetwork, path.Child("hostNetwork"),
		"Host network is not allowed to be used")...)
	if !c.AllowHostPorts {
		errs = append(errs, checkPorts(pod, path)...)
	}
	errs = append(errs, checkHost(pod.Spec.HostPID, c.AllowHostPID, path.Child("hostPID"), "Host PID is not allowed to be used")...)
	errs = append(errs, checkHost(pod.Spec.HostIPC, c.AllowHostIPC, path.Child("hostIPC"), "Host IPC is not allowed to be used")...)
	if c.ReadOnlyRootFilesystem && (sc.ReadOnlyRootFilesystem == nil || !*sc.ReadOnlyRootFilesystem) {
		errs = append(errs, field.Invalid(path.Child("readOnlyRootFilesystem"), sc.ReadOnlyRootFilesystem,
			"ReadOnlyRootFilesystem must be set to true"))
	}
	if escalates := sc.AllowPrivilegeEscalation; forbids(c.AllowPrivilegeEscalation) && (escalates == nil || *escalates) {
		errs = append(errs, field.Invalid(path.Child("allowPrivilegeEscalation"), escalates, "Allowing privilege escalation for containers is "+
			"not allowed"))
	}
	return errs
}

func checkUser(c *securityv1.SecurityContextConstraints, sc corev1.SecurityContext, path *field.Path) field.ErrorList {
	user, at := sc.RunAsUser, path.Child("runAsUser")
	switch c.RunAsUser.Type {
	case securityv1.RunAsUserStrategyMustRunAs:
		if user == nil {
			return field.ErrorList{field.Required(at, "")}
		}
		if want := *c.RunAsUser.UID; *user != want {
			return field.ErrorList{field.Invalid(at, *user, fmt.Sprintf("must be: %d", want))}
		}
	case securityv1.RunAsUserStrategyMustRunAsRange:
		if user == nil {
			return field.ErrorList{field.Required(at, "")}
		}
		if least, most := *c.RunAsUser.UIDRangeMin, *c.RunAsUser.UIDRangeMax; *user < least || *user > most {
			return field.ErrorList{field.Invalid(at, *user, fmt.Sprintf("must be in the ranges: [%d, %d]", least, most))}
		}
	case securityv1.RunAsUserStrategyMustRunAsNonRoot:
		switch nonRoot := sc.RunAsNonRoot; {
		case nonRoot == nil && user == nil:
			return field.ErrorList{field.Required(path.Child("runAsNonRoot"), "must be true")}
		case nonRoot != nil && !*nonRoot:
			return field.ErrorList{field.Invalid(path.Child("runAsNonRoot"), false, "must be true")}
		case user != nil && *user == 0:
			return field.ErrorList{field.Invalid(at, *user, "running with the root UID is forbidden")}
		}
	}
	return nil
}

func checkPorts(pod *corev1.Pod, path *field.Path) (errs field.ErrorList) {
	for _, list := range []struct {
		name       string
		containers []corev1.Container
	}{{"initContainers", pod.Spec.InitContainers}, {"containers", pod.Spec.Containers}} {
		for i, container := range list.containers {
			for _, port := range container.Ports {
				if port.HostPort > 0 {
					errs = append(errs, field.Invalid(path.Child(list.name).Index(i).Child("hostPort"), port.HostPort,
						"Host ports are not allowed to be used"))
				}
			}
		}
	}
	return errs
}
