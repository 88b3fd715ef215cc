// SPDX-License-Identifier: Apache-2.0

package scc

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	securityv1 "github.com/openshift/api/security/v1"
	corev1 "k8s.io/api/core/v1"
)

// resolve fills in the values that a constraint leaves to the namespace: user IDs, groups and the SELinux level.
func resolve(c *securityv1.SecurityContextConstraints, namespace *corev1.Namespace) error {
	problem := func(what string, err error) error {
		return fmt.Errorf("unable to find pre-allocated %s annotation for namespace %s while trying to configure SCC %s: %w", what,
			namespace.Name, c.Name, err)
	}
	if user := &c.RunAsUser; user.Type == securityv1.RunAsUserStrategyMustRunAsRange && user.UIDRangeMin == nil && user.UIDRangeMax == nil {
		block, err := annotated(namespace, securityv1.UIDRangeAnnotation)
		if err != nil {
			return problem("uid", err)
		}
		user.UIDRangeMin, user.UIDRangeMax = &block.Min, &block.Max
	}
	if linux := &c.SELinuxContext; linux.Type == securityv1.SELinuxStrategyMustRunAs &&
		(linux.SELinuxOptions == nil || linux.SELinuxOptions.Level == "") {
		level := namespace.Annotations[securityv1.MCSAnnotation]
		if level == "" {
			return problem("mcs", missing(securityv1.MCSAnnotation))
		}
		if linux.SELinuxOptions == nil {
			linux.SELinuxOptions = &corev1.SELinuxOptions{}
		}
		linux.SELinuxOptions.Level = level
	}
	if group := &c.FSGroup; group.Type == securityv1.FSGroupStrategyMustRunAs && len(group.Ranges) == 0 {
		block, err := groups(namespace)
		if err != nil {
			return problem("group", err)
		}
		// A volume may have only the first of the namespace's groups.
		group.Ranges = []securityv1.IDRange{{Min: block.Min, Max: block.Min}}
	}
	if group := &c.SupplementalGroups; group.Type == securityv1.SupplementalGroupsStrategyMustRunAs && len(group.Ranges) == 0 {
		block, err := groups(namespace)
		if err != nil {
			return problem("group", err)
		}
		group.Ranges = []securityv1.IDRange{block}
	}
	if err := complete(c); err != nil {
		return fmt.Errorf("error creating provider for SCC %s in namespace %s: %w", c.Name, namespace.Name, err)
	}
	return nil
}

// complete returns an error that names what a constraint lacks. An incomplete constraint refuses every pod, as on OpenShift.
func complete(c *securityv1.SecurityContextConstraints) error {
	switch user := c.RunAsUser; user.Type {
	case securityv1.RunAsUserStrategyRunAsAny, securityv1.RunAsUserStrategyMustRunAsNonRoot:
	case securityv1.RunAsUserStrategyMustRunAs:
		if user.UID == nil {
			return errors.New("MustRunAs requires a UID")
		}
	case securityv1.RunAsUserStrategyMustRunAsRange:
		if user.UIDRangeMin == nil {
			return errors.New("MustRunAsRange requires a UIDRangeMin")
		}
		if user.UIDRangeMax == nil {
			return errors.New("MustRunAsRange requires a UIDRangeMax")
		}
	default:
		return fmt.Errorf("Unrecognized RunAsUser strategy type %s", user.Type) //nolint:staticcheck // OpenShift's words
	}
	switch kind := c.SELinuxContext.Type; kind {
	case securityv1.SELinuxStrategyRunAsAny, securityv1.SELinuxStrategyMustRunAs:
	default:
		return fmt.Errorf("Unrecognized SELinuxContext strategy type %s", kind) //nolint:staticcheck // OpenShift's words
	}
	return nil
}

func missing(annotation string) error { return fmt.Errorf("unable to find annotation %s", annotation) }

// groups returns the namespace's groups, or its user IDs if it has no groups.
func groups(namespace *corev1.Namespace) (securityv1.IDRange, error) {
	if namespace.Annotations[securityv1.SupplementalGroupsAnnotation] == "" {
		return annotated(namespace, securityv1.UIDRangeAnnotation)
	}
	return annotated(namespace, securityv1.SupplementalGroupsAnnotation)
}

func annotated(namespace *corev1.Namespace, annotation string) (securityv1.IDRange, error) {
	text := namespace.Annotations[annotation]
	if text == "" {
		return securityv1.IDRange{}, missing(annotation)
	}
	// A list may name several blocks; pods get the first.
	first, _, _ := strings.Cut(text, ",")
	block, err := ParseBlock(first)
	if err != nil {
		return securityv1.IDRange{}, fmt.Errorf("reading annotation %s: %w", annotation, err)
	}
	return block, nil
}

// ParseBlock reads the IDs of "FIRST/SIZE" or "FIRST-LAST".
func ParseBlock(text string) (securityv1.IDRange, error) {
	wrong := fmt.Errorf("%q is neither FIRST/SIZE nor FIRST-LAST", text)
	at := strings.IndexAny(text, "/-")
	if at < 0 {
		return securityv1.IDRange{}, wrong
	}
	first, err := strconv.ParseUint(text[:at], 10, 32)
	if err != nil {
		return securityv1.IDRange{}, wrong
	}
	second, err := strconv.ParseUint(text[at+1:], 10, 32)
	if err != nil {
		return securityv1.IDRange{}, wrong
	}
	block := securityv1.IDRange{Min: int64(first), Max: int64(second)}
	if text[at] == '/' {
		block.Max = int64(first) + int64(second) - 1
	}
	if block.Max < block.Min {
		return securityv1.IDRange{}, wrong
	}
	return block, nil
}
