// SPDX-License-Identifier: Apache-2.0

// Package scc is a stand-in for OpenShift's choice of the constraints that a pod is admitted with: its order, its
// rules, its defaults and its messages.
//
// A new pod of a user's namespace is tried against all constraints that its service account or its creator may use, by priority, then the
// most restrictive first, then by name; openshift.io/required-scc restricts the choice. The first one that allows the pod sets the pod's
// defaults, from the namespace's openshift.io/sa.scc.*, and the annotation openshift.io/scc. If none does, the pod is refused with every
// reason, in OpenShift's words, after the API server's own "admission webhook ... denied the request". All accounts may use restricted-v2
// and restricted-v3; the ClusterRoles system:openshift:scc:NAME grant the others. An administrator may use every constraint, so a pod that
// the administrator creates by hand gets anyuid unless required-scc names another one. Constraints without seccompProfiles, such as
// anyuid, refuse a pod that sets a profile. The real nccl-scc is only known by its capabilities; here it fixes no IDs and allows no
// profile.
//
// Not implemented: sysctls, flex volumes, ephemeral containers, the seccomp annotation on pods, a second check of a pod whose metadata
// alone changes, the account pipeline, and PodSecurity labels. kube-*, default, openshift* and Tekton's own namespaces are ignored.
package scc

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	securityv1 "github.com/openshift/api/security/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Subject is the account whose permission lets a pod use a constraint.
type Subject string

// The subjects, as OpenShift writes them on pods.
const (
	Nobody         Subject = ""
	ServiceAccount Subject = "serviceaccount"
	User           Subject = "user"
)

// Question is the input of a choice.
type Question struct {
	Pod *corev1.Pod
	// Namespace is the pod's namespace, whose annotations have its IDs.
	Namespace *corev1.Namespace
	// Constraints are all constraints, in any order.
	Constraints []*securityv1.SecurityContextConstraints
	// May returns the subject whose permission lets the pod use a constraint.
	May func(context.Context, *securityv1.SecurityContextConstraints) (Subject, error)
	// Unchanged requires a constraint that changes nothing in the pod. Choose first tries the one in the pod's
	// annotation.
	Unchanged bool
}

// Answer is the result of a choice.
type Answer struct {
	// Pod is the question's pod with the constraint's defaults and annotation.
	Pod *corev1.Pod
	// Name is the name of the constraint.
	Name    string
	Subject Subject
}

// Choose returns the first constraint in OpenShift's order that the pod may use and that allows the pod. If there is
// none, the error explains why in OpenShift's words.
func Choose(ctx context.Context, q Question) (Answer, error) {
	constraints, err := q.candidates()
	if err != nil {
		return Answer{}, err
	}
	var refusals field.ErrorList
	forbidden := map[string]*securityv1.SecurityContextConstraints{}
	for _, c := range constraints {
		subject, err := q.May(ctx, c)
		if err != nil {
			return Answer{}, err
		}
		if subject == Nobody {
			forbidden[c.Name] = c
			refusals = append(refusals, field.Forbidden(field.NewPath(fmt.Sprintf("provider %q", c.Name)), "not usable by user or serviceaccount"))
			continue
		}
		pod := q.Pod.DeepCopy()
		if errs := apply(c, pod); len(errs) > 0 {
			refusals = append(refusals, errs...)
			continue
		}
		if q.Unchanged && !equality.Semantic.DeepEqual(pod, q.Pod) {
			continue
		}
		return Answer{Pod: pod, Name: c.Name, Subject: subject}, nil
	}
	refusals = append(refusals, q.olderWouldDo(constraints, forbidden)...)
	if len(refusals) == 0 { // every usable constraint would change the pod
		return Answer{}, errors.New("unable to validate against any security context constraint: []")
	}
	return Answer{}, fmt.Errorf("unable to validate against any security context constraint: %w", refusals.ToAggregate())
}

// candidates returns the constraints to try, in order, with the namespace's values.
func (q Question) candidates() ([]*securityv1.SecurityContextConstraints, error) {
	constraints := slices.Clone(q.Constraints)
	if required := q.Pod.Annotations[securityv1.RequiredSCCAnnotation]; required != "" {
		constraints = slices.DeleteFunc(constraints, func(c *securityv1.SecurityContextConstraints) bool { return c.Name != required })
		if len(constraints) == 0 {
			return nil, fmt.Errorf("failed to retrieve the required SCC %q: securitycontextconstraints.security.openshift.io %q not found", required,
				required)
		}
	}
	if len(constraints) == 0 {
		return nil, errors.New("no SecurityContextConstraints found in cluster")
	}
	for _, annotation := range []string{securityv1.UIDRangeAnnotation, securityv1.MCSAnnotation} {
		if q.Namespace.Annotations[annotation] == "" {
			return nil, fmt.Errorf("error fetching namespace %q: %w", q.Namespace.Name, missing(annotation))
		}
	}
	for i, c := range constraints {
		constraints[i] = withDefaults(c)
	}
	Sort(constraints)
	if q.Unchanged {
		stamp := q.Pod.Annotations[securityv1.ValidatedSCCAnnotation]
		slices.SortStableFunc(constraints, func(a, b *securityv1.SecurityContextConstraints) int {
			switch {
			case a.Name == stamp && b.Name != stamp:
				return -1
			case b.Name == stamp && a.Name != stamp:
				return 1
			}
			return 0
		})
	}
	for _, c := range constraints {
		if err := resolve(c, q.Namespace); err != nil {
			return nil, err
		}
	}
	return constraints, nil
}

// withDefaults returns a copy of the constraint that allows hostPath volumes if and only if allowHostDirVolumePlugin is
// set. OpenShift does the same when a constraint is written.
func withDefaults(c *securityv1.SecurityContextConstraints) *securityv1.SecurityContextConstraints {
	c = c.DeepCopy()
	if slices.Contains(c.Volumes, securityv1.FSTypeAll) {
		return c
	}
	c.Volumes = slices.DeleteFunc(c.Volumes, func(v securityv1.FSType) bool { return v == securityv1.FSTypeHostPath })
	if c.AllowHostDirVolumePlugin {
		c.Volumes = append(c.Volumes, securityv1.FSTypeHostPath)
	}
	return c
}

// olderWouldDo returns OpenShift's hint that restricted, which every account could use before restricted-v2, would
// admit the pod.
func (q Question) olderWouldDo(tried []*securityv1.SecurityContextConstraints,
	forbidden map[string]*securityv1.SecurityContextConstraints) field.ErrorList {
	older, hasNewer := forbidden["restricted"], slices.ContainsFunc(tried, func(c *securityv1.SecurityContextConstraints) bool {
		return c.Name == "restricted-v2"
	})
	if older == nil || !hasNewer || len(apply(older, q.Pod.DeepCopy())) > 0 {
		return nil
	}
	return field.ErrorList{field.Forbidden(field.NewPath("no access to scc/restricted"),
		"the pod fails to validate against the `restricted-v2` security context constraint, but would validate successfully against the "+
			"`restricted` security context constraint")}
}

func isZero[T any](v T) bool { return reflect.ValueOf(v).IsZero() }
