// SPDX-License-Identifier: Apache-2.0

package scc

import (
	"cmp"
	"slices"
	"strings"

	securityv1 "github.com/openshift/api/security/v1"
	corev1 "k8s.io/api/core/v1"
)

// Sort puts constraints into the order in which OpenShift tries them: the highest priority first, then the most
// restrictive, then by name.
func Sort(constraints []*securityv1.SecurityContextConstraints) {
	slices.SortFunc(constraints, func(a, b *securityv1.SecurityContextConstraints) int {
		return cmp.Or(cmp.Compare(priority(b), priority(a)), cmp.Compare(points(a), points(b)), cmp.Compare(a.Name, b.Name))
	})
}

func priority(c *securityv1.SecurityContextConstraints) int32 {
	if c.Priority == nil {
		return 0
	}
	return *c.Priority
}

// Points of a constraint's freedoms, as on OpenShift: the more points, the less restrictive. A freedom outweighs all
// freedoms below it together.
const (
	privilegedPoints       = 1_600_000
	hostPortsPoints        = 800_000
	hostNetworkPoints      = 400_000
	hostVolumePoints       = 200_000
	nonTrivialVolumePoints = 100_000

	// Each of these counts for the user, and again for the SELinux context.
	anyPoints     = 40_000
	nonRootPoints = 30_000
	rangePoints   = 20_000
	onePoints     = 10_000

	// For the capabilities together, from 0 to mostCapability.
	capabilityPoints = 5000
	mostCapability   = 9999
	addOnePoints     = 300
	allowAllPoints   = 4000
	allowOnePoints   = 10
	dropAllPoints    = -3000
	dropOnePoints    = -50
)

// points returns a measure of how little the constraint restricts.
func points(c *securityv1.SecurityContextConstraints) int {
	// The SELinux strategies have the same names as user strategies, and the same points.
	total := volumePoints(c.Volumes) + capabilitiesPoints(c) + userPoints(c.RunAsUser.Type) + userPoints(
		securityv1.RunAsUserStrategyType(c.SELinuxContext.Type))
	if c.AllowPrivilegedContainer {
		total += privilegedPoints
	}
	if c.AllowHostPorts {
		total += hostPortsPoints
	}
	if c.AllowHostNetwork {
		total += hostNetworkPoints
	}
	return total
}

func userPoints(strategy securityv1.RunAsUserStrategyType) int {
	switch strategy {
	case securityv1.RunAsUserStrategyRunAsAny:
		return anyPoints
	case securityv1.RunAsUserStrategyMustRunAsNonRoot:
		return nonRootPoints
	case securityv1.RunAsUserStrategyMustRunAsRange:
		return rangePoints
	case securityv1.RunAsUserStrategyMustRunAs:
		return onePoints
	}
	return 0
}

func volumePoints(volumes []securityv1.FSType) int {
	most := 0
	for _, v := range volumes {
		switch v {
		case securityv1.FSTypeHostPath, securityv1.FSTypeAll:
			return hostVolumePoints
		case securityv1.FSTypeSecret, securityv1.FSTypeConfigMap, securityv1.FSTypeEmptyDir,
			securityv1.FSTypeDownwardAPI, securityv1.FSProjected, securityv1.FSTypeNone:
		default:
			most = nonTrivialVolumePoints
		}
	}
	return most
}

func capabilitiesPoints(c *securityv1.SecurityContextConstraints) int {
	total := capabilityPoints + addOnePoints*len(c.DefaultAddCapabilities)
	if names(c.AllowedCapabilities, "*") || names(c.AllowedCapabilities, "ALL") {
		total += allowAllPoints
	} else {
		total += allowOnePoints * len(c.AllowedCapabilities)
	}
	if names(c.RequiredDropCapabilities, "ALL") {
		total += dropAllPoints
	} else {
		total += dropOnePoints * len(c.RequiredDropCapabilities)
	}
	return min(max(total, 0), mostCapability)
}

// names reports whether the list has the capability, in upper or lower case.
func names(list []corev1.Capability, capability string) bool {
	return slices.ContainsFunc(list, func(c corev1.Capability) bool { return strings.EqualFold(string(c), capability) })
}
