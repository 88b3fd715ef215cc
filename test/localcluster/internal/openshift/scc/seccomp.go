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

// defaultSeccomp returns the first profile that a constraint names.
func defaultSeccomp(c *securityv1.SecurityContextConstraints) *corev1.SeccompProfile {
	profiles := named(c)
	if len(profiles) == 0 {
		return nil
	}
	switch profile := profiles[0]; {
	case profile == corev1.SeccompProfileNameUnconfined:
		return &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined}
	case runtimeDefault(profile):
		return &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}
	default:
		file, _ := strings.CutPrefix(profile, corev1.SeccompLocalhostProfileNamePrefix)
		return &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost, LocalhostProfile: &file}
	}
}

// named returns the constraint's profiles except the one that allows any.
func named(c *securityv1.SecurityContextConstraints) []string {
	return slices.DeleteFunc(slices.Clone(c.SeccompProfiles), func(p string) bool { return p == "*" })
}

// runtimeDefault reports whether the name is one of the two names that the container runtime's own profile has had.
func runtimeDefault(profile string) bool {
	return profile == corev1.SeccompProfileRuntimeDefault || profile == corev1.DeprecatedSeccompProfileDockerDefault
}

// profileName returns the name of a profile in constraints, "" for none.
func profileName(p *corev1.SeccompProfile) string {
	switch {
	case p == nil:
		return ""
	case p.Type == corev1.SeccompProfileTypeUnconfined:
		return corev1.SeccompProfileNameUnconfined
	case p.Type == corev1.SeccompProfileTypeRuntimeDefault:
		return corev1.SeccompProfileRuntimeDefault
	case p.Type == corev1.SeccompProfileTypeLocalhost && p.LocalhostProfile != nil:
		return corev1.SeccompLocalhostProfileNamePrefix + *p.LocalhostProfile
	}
	return ""
}

// checkSeccomp mentions annotations in its messages, as OpenShift does to this day. Profiles were in annotations before
// they were in fields.
func checkSeccomp(c *securityv1.SecurityContextConstraints, profile, annotation string) field.ErrorList {
	allowed := named(c)
	path := field.NewPath("pod", "metadata", "annotations").Key(annotation)
	switch {
	case len(allowed) < len(c.SeccompProfiles), slices.Contains(allowed, profile):
		return nil
	case len(allowed) == 0 && profile == "":
		return nil
	case len(allowed) == 0:
		return field.ErrorList{field.Forbidden(path, "seccomp may not be set")}
	case runtimeDefault(profile) && slices.ContainsFunc(allowed, runtimeDefault):
		return nil
	}
	return field.ErrorList{field.Forbidden(path, fmt.Sprintf("%s is not an allowed seccomp profile. Valid values are %v", profile, allowed))}
}
