// Package openshift is a stand-in for the parts of OpenShift that every pod
// meets: the user it runs as, and the trusted certificates it can mount.
package openshift

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

// Annotations that OpenShift puts on namespaces and pods.
const (
	uidRangeAnnotation = "openshift.io/sa.scc.uid-range"
	groupsAnnotation   = "openshift.io/sa.scc.supplemental-groups"
	mcsAnnotation      = "openshift.io/sa.scc.mcs"
	sccAnnotation      = "openshift.io/scc"

	restricted = "restricted-v2"
)

// Ranges are handed to namespaces in blocks, as OpenShift's are.
const (
	firstUID  = 1000650000
	blockSize = 10000
)

// ordinary namespaces are the users'; the cluster's own are left alone.
func ordinary(namespace string) bool {
	switch namespace {
	case "default", "tekton-pipelines", "tekton-pipelines-resolvers":
		return false
	}
	return !strings.HasPrefix(namespace, "kube-") && !strings.HasPrefix(namespace, "openshift")
}

// block is the first UID of an annotation such as "1000650000/10000".
func block(annotation string) (int64, error) {
	first, _, ok := strings.Cut(annotation, "/")
	uid, err := strconv.ParseInt(first, 10, 64)
	if !ok || err != nil {
		return 0, fmt.Errorf("%s %q is not FIRST/SIZE", uidRangeAnnotation, annotation)
	}
	return uid, nil
}

// namespaceAnnotations are what a namespace with that block is given.
func namespaceAnnotations(first int64) map[string]string {
	r := fmt.Sprintf("%d/%d", first, blockSize)
	n := (first - firstUID) / blockSize
	return map[string]string{
		uidRangeAnnotation: r,
		groupsAnnotation:   r,
		mcsAnnotation:      fmt.Sprintf("s0:c%d,c%d", 26+n/26, n%26),
	}
}

// sccFor names the constraints that this stand-in admits the pod with. The
// full choice, by who may use which, is not made here.
func sccFor(pod *corev1.Pod) string {
	privileged := pod.Spec.HostNetwork || pod.Spec.HostPID || pod.Spec.HostIPC
	named := pod.Spec.SecurityContext != nil && pod.Spec.SecurityContext.RunAsUser != nil
	for _, c := range append(append([]corev1.Container{}, pod.Spec.InitContainers...), pod.Spec.Containers...) {
		sc := c.SecurityContext
		if sc == nil {
			continue
		}
		named = named || sc.RunAsUser != nil
		privileged = privileged || sc.Privileged != nil && *sc.Privileged
	}
	for _, v := range pod.Spec.Volumes {
		privileged = privileged || v.HostPath != nil
	}
	switch {
	case privileged:
		return "privileged"
	case named:
		return "anyuid"
	}
	return restricted
}

// restrict gives the pod what restricted-v2 gives it in a namespace whose UIDs
// begin at first: the user, an fsGroup, no privileges and no capabilities. It
// returns why the pod cannot be admitted under it.
func restrict(pod *corev1.Pod, namespace map[string]string) error {
	first, err := block(namespace[uidRangeAnnotation])
	if err != nil {
		return fmt.Errorf("unable to validate against any security context constraint: the namespace has no usable %s annotation: %w", uidRangeAnnotation, err)
	}
	group, err := block(namespace[groupsAnnotation])
	if err != nil {
		return fmt.Errorf("unable to validate against any security context constraint: %w", err)
	}
	if pod.Spec.SecurityContext == nil {
		pod.Spec.SecurityContext = &corev1.PodSecurityContext{}
	}
	sc := pod.Spec.SecurityContext
	if sc.FSGroup == nil {
		sc.FSGroup = &group
	}
	if sc.SELinuxOptions == nil {
		sc.SELinuxOptions = &corev1.SELinuxOptions{Level: namespace[mcsAnnotation]}
	}
	if sc.SeccompProfile == nil {
		sc.SeccompProfile = &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}
	}
	var refusals []string
	each := func(kind string, containers []corev1.Container) {
		for i := range containers {
			for _, r := range restrictContainer(&containers[i], first) {
				refusals = append(refusals, fmt.Sprintf("provider restricted-v2: .%s[%d].%s", kind, i, r))
			}
		}
	}
	each("initContainers", pod.Spec.InitContainers)
	each("containers", pod.Spec.Containers)
	if len(refusals) > 0 {
		return fmt.Errorf("unable to validate against any security context constraint: [%s]", strings.Join(refusals, ", "))
	}
	return nil
}

func restrictContainer(c *corev1.Container, uid int64) (refusals []string) {
	if c.SecurityContext == nil {
		c.SecurityContext = &corev1.SecurityContext{}
	}
	sc := c.SecurityContext
	sc.RunAsUser = &uid
	yes, no := true, false
	if sc.RunAsNonRoot == nil {
		sc.RunAsNonRoot = &yes
	}
	if sc.AllowPrivilegeEscalation == nil {
		sc.AllowPrivilegeEscalation = &no
	} else if *sc.AllowPrivilegeEscalation {
		refusals = append(refusals, "allowPrivilegeEscalation: Invalid value: true: Allowing privilege escalation for containers is not allowed")
	}
	if sc.Capabilities == nil {
		sc.Capabilities = &corev1.Capabilities{}
	}
	for _, capability := range sc.Capabilities.Add {
		if capability != "NET_BIND_SERVICE" {
			refusals = append(refusals, fmt.Sprintf("capabilities.add: Invalid value: %q: capability may not be added", capability))
		}
	}
	sc.Capabilities.Drop = []corev1.Capability{"ALL"}
	return refusals
}

// patchOperation is one operation of a JSON patch (RFC 6902).
type patchOperation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// podPatch is what turns before into after in the fields that this package changes.
func podPatch(before, after *corev1.Pod) ([]byte, error) {
	var patch []patchOperation
	add := func(path string, old, value any) {
		if !equality.Semantic.DeepEqual(old, value) {
			patch = append(patch, patchOperation{Op: "add", Path: path, Value: value})
		}
	}
	add("/metadata/annotations", before.Annotations, after.Annotations)
	add("/spec/securityContext", before.Spec.SecurityContext, after.Spec.SecurityContext)
	for i := range after.Spec.InitContainers {
		add(fmt.Sprintf("/spec/initContainers/%d/securityContext", i),
			before.Spec.InitContainers[i].SecurityContext, after.Spec.InitContainers[i].SecurityContext)
	}
	for i := range after.Spec.Containers {
		add(fmt.Sprintf("/spec/containers/%d/securityContext", i),
			before.Spec.Containers[i].SecurityContext, after.Spec.Containers[i].SecurityContext)
	}
	if len(patch) == 0 {
		return nil, nil
	}
	return json.Marshal(patch)
}
