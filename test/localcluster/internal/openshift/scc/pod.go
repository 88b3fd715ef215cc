// SPDX-License-Identifier: Apache-2.0

package scc

import (
	"fmt"
	"slices"
	"strings"

	securityv1 "github.com/openshift/api/security/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// apply sets the constraint's defaults in the pod, and returns what the constraint does not allow, in OpenShift's words
// and order.
func apply(c *securityv1.SecurityContextConstraints, pod *corev1.Pod) field.ErrorList {
	path := field.NewPath(fmt.Sprintf("provider %s: ", c.Name))
	defaultPod(c, pod)
	errs := checkPod(c, pod, path.Child("spec", "securityContext"))
	each := func(container *corev1.Container, at *field.Path) {
		defaultContainer(c, pod, container)
		errs = append(errs, checkContainer(c, pod, container, at)...)
	}
	for i := range pod.Spec.InitContainers {
		each(&pod.Spec.InitContainers[i], path.Child("initContainers").Index(i))
	}
	for i := range pod.Spec.Containers {
		each(&pod.Spec.Containers[i], path.Child("containers").Index(i))
	}
	return errs
}

func defaultPod(c *securityv1.SecurityContextConstraints, pod *corev1.Pod) {
	var sc corev1.PodSecurityContext
	if pod.Spec.SecurityContext != nil {
		sc = *pod.Spec.SecurityContext
	}
	if sc.SupplementalGroups == nil && c.SupplementalGroups.Type == securityv1.SupplementalGroupsStrategyMustRunAs {
		sc.SupplementalGroups = []int64{c.SupplementalGroups.Ranges[0].Min}
	}
	if sc.FSGroup == nil && c.FSGroup.Type == securityv1.FSGroupStrategyMustRunAs {
		sc.FSGroup = &c.FSGroup.Ranges[0].Min
	}
	if sc.SELinuxOptions == nil && c.SELinuxContext.Type == securityv1.SELinuxStrategyMustRunAs {
		sc.SELinuxOptions = c.SELinuxContext.SELinuxOptions.DeepCopy()
	}
	if sc.SeccompProfile == nil {
		sc.SeccompProfile = defaultSeccomp(c)
	}
	if pod.Spec.SecurityContext == nil && isZero(sc) {
		return
	}
	pod.Spec.SecurityContext = &sc
}

func checkPod(c *securityv1.SecurityContextConstraints, pod *corev1.Pod, path *field.Path) (errs field.ErrorList) {
	sc := pod.Spec.SecurityContext
	if sc == nil {
		sc = &corev1.PodSecurityContext{}
	}
	if c.FSGroup.Type == securityv1.FSGroupStrategyMustRunAs {
		var fsGroups []int64
		if sc.FSGroup != nil {
			fsGroups = []int64{*sc.FSGroup}
		}
		errs = append(errs, checkGroups(c.FSGroup.Ranges, fsGroups, path.Child("fsGroup"))...)
	}
	if c.SupplementalGroups.Type == securityv1.SupplementalGroupsStrategyMustRunAs {
		errs = append(errs, checkGroups(c.SupplementalGroups.Ranges, sc.SupplementalGroups, path.Child("supplementalGroups"))...)
	}
	errs = append(errs, checkSeccomp(c, profileName(sc.SeccompProfile), corev1.SeccompPodAnnotationKey)...)
	errs = append(errs, checkSELinux(c, sc.SELinuxOptions, path.Child("seLinuxOptions"))...)
	errs = append(errs, checkHost(pod.Spec.HostNetwork, c.AllowHostNetwork, path.Child("hostNetwork"),
		"Host network is not allowed to be used")...)
	errs = append(errs, checkHost(pod.Spec.HostPID, c.AllowHostPID, path.Child("hostPID"), "Host PID is not allowed to be used")...)
	errs = append(errs, checkHost(pod.Spec.HostIPC, c.AllowHostIPC, path.Child("hostIPC"), "Host IPC is not allowed to be used")...)
	if users := pod.Spec.HostUsers; c.UserNamespaceLevel == securityv1.NamespaceLevelRequirePod && (users == nil || *users) {
		errs = append(errs, field.Invalid(path.Child("hostUsers"), users, "Host Users must be set to false"))
	}
	return append(errs, checkVolumes(c, pod.Spec.Volumes)...)
}

func checkHost(wanted, allowed bool, path *field.Path, words string) field.ErrorList {
	if wanted && !allowed {
		return field.ErrorList{field.Invalid(path, true, words)}
	}
	return nil
}

func checkGroups(ranges []securityv1.IDRange, groups []int64, path *field.Path) (errs field.ErrorList) {
	if len(groups) == 0 {
		errs = append(errs, field.Invalid(path, groups, "unable to validate empty groups against required ranges"))
	}
	for _, group := range groups {
		if !slices.ContainsFunc(ranges, func(r securityv1.IDRange) bool { return group >= r.Min && group <= r.Max }) {
			errs = append(errs, field.Invalid(path, groups, fmt.Sprintf("%d is not an allowed group", group)))
		}
	}
	return errs
}

func checkSELinux(c *securityv1.SecurityContextConstraints, have *corev1.SELinuxOptions, path *field.Path) (errs field.ErrorList) {
	if c.SELinuxContext.Type != securityv1.SELinuxStrategyMustRunAs {
		return nil
	}
	if have == nil {
		return field.ErrorList{field.Required(path, "")}
	}
	want := c.SELinuxContext.SELinuxOptions
	if sortedLevel(have.Level) != sortedLevel(want.Level) {
		errs = append(errs, field.Invalid(path.Child("level"), have.Level, "must be "+want.Level))
	}
	for _, part := range []struct{ name, have, want string }{
		{"role", have.Role, want.Role},
		{"type", have.Type, want.Type},
		{"user", have.User, want.User},
	} {
		if part.have != part.want {
			errs = append(errs, field.Invalid(path.Child(part.name), part.have, "must be "+part.want))
		}
	}
	return errs
}

// sortedLevel sorts the categories of a level such as s0:c26,c5, so that levels with the same categories are equal.
func sortedLevel(level string) string {
	sensitivity, categories, ok := strings.Cut(level, ":")
	if !ok {
		return level
	}
	list := strings.Split(categories, ",")
	slices.Sort(list)
	return sensitivity + ":" + strings.Join(list, ",")
}
