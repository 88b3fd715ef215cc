// SPDX-License-Identifier: Apache-2.0

package scc

import (
	"fmt"
	"slices"

	securityv1 "github.com/openshift/api/security/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// defaultCapabilities returns a container's capabilities with those that the constraint adds and drops. It returns have
// itself if nothing changes.
func defaultCapabilities(c *securityv1.SecurityContextConstraints, have *corev1.Capabilities) *corev1.Capabilities {
	var own corev1.Capabilities
	if have != nil {
		own = *have
	}
	add, drop := set(own.Add), set(append(slices.Clone(own.Drop), c.RequiredDropCapabilities...))
	for _, capability := range c.DefaultAddCapabilities {
		if !slices.Contains(own.Drop, capability) {
			add = set(append(add, capability))
		}
	}
	if len(add) == len(set(own.Add)) && len(drop) == len(set(own.Drop)) {
		return have
	}
	return &corev1.Capabilities{Add: add, Drop: drop}
}

// set returns the list sorted and without duplicates, nil for none.
func set(list []corev1.Capability) []corev1.Capability {
	list = slices.Clone(list)
	slices.Sort(list)
	return slices.Compact(list)
}

func checkCapabilities(c *securityv1.SecurityContextConstraints, have *corev1.Capabilities, path *field.Path) (errs field.ErrorList) {
	if have == nil {
		if len(c.DefaultAddCapabilities) > 0 || len(c.RequiredDropCapabilities) > 0 {
			errs = append(errs, field.Invalid(path, have, "required capabilities are not set on the securityContext"))
		}
		return errs
	}
	if slices.Contains(c.AllowedCapabilities, securityv1.AllowAllCapabilities) {
		return nil
	}
	for _, capability := range have.Add {
		if !slices.Contains(c.DefaultAddCapabilities, capability) && !slices.Contains(c.AllowedCapabilities, capability) {
			errs = append(errs, field.Invalid(path.Child("add"), string(capability), "capability may not be added"))
		}
	}
	for _, capability := range c.RequiredDropCapabilities {
		if !slices.Contains(have.Drop, capability) {
			errs = append(errs,
				field.Invalid(path.Child("drop"), have.Drop, fmt.Sprintf("%s is required to be dropped but was not found", capability)))
		}
	}
	return errs
}
