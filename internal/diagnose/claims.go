// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// provisionTime is how long a provisioner may take without a finding.
const provisionTime = 30 * time.Second

// defaultClass marks the class for claims that name none.
const defaultClass = "storageclass.kubernetes.io/is-default-class"

var classNotFound = regexp.MustCompile(`storageclass\.storage\.k8s\.io "([^"]*)" not found`)

// claims reports whether it finds something.
func (e *explainer) claims() (found bool) {
	for i := range e.Claims {
		claim := &e.Claims[i]
		if f, ok := e.claim(claim); ok && claim.Namespace == e.namespace() {
			f.Reason, f.Object = fail.ClaimUnbound, "claim "+claim.Name
			f.Since = cmp.Or(f.Since, claim.CreationTimestamp.Time)
			e.add(f)
			found = true
		}
	}
	return found
}

func (e *explainer) claim(claim *corev1.PersistentVolumeClaim) (fail.Finding, bool) {
	remove := fmt.Sprintf("oc delete pvc %s -n %s", claim.Name, claim.Namespace)
	describe := fmt.Sprintf("oc describe pvc %s -n %s", claim.Name, claim.Namespace)
	switch {
	case claim.Status.Phase == corev1.ClaimLost:
		return fail.Finding{
			Seen:  fmt.Sprintf("it was bound to volume %s, which does not exist any more: its files are lost", claim.Spec.VolumeName),
			Next:  remove + " (the next run recreates it)",
			Final: true,
		}, true
	case claim.DeletionTimestamp != nil:
		return fail.Finding{
			Seen:  "it is being deleted and waits for the pods that use it",
			Next:  describe + " (see Used By)",
			Since: claim.DeletionTimestamp.Time,
		}, true
	case claim.Status.Phase == corev1.ClaimBound:
		return fail.Finding{}, false
	}

	events := e.eventsOf("PersistentVolumeClaim", claim.Name, claim.UID)
	failed, hasFailed := latest(events, "ProvisioningFailed")
	name := claim.Spec.StorageClassName
	if name == nil || *name == "" {
		// A claim without a class is about to get the default one.
		return e.classless(claim), name != nil || !slices.ContainsFunc(e.Classes, IsDefault)
	}
	class := findNamed(e.Classes, *name)
	if e.Classes != nil && class == nil || hasFailed && classNotFound.MatchString(failed.text) {
		return fail.Finding{
			Seen:  fmt.Sprintf("storage class %s does not exist%s", *name, e.classNames()),
			Next:  fmt.Sprintf("correct %s in the cluster file (oc get storageclass), then: %s", classKey(claim), remove),
			Final: true,
		}, true
	}
	if f, ok := e.storageServer(*name, class); ok {
		if hasFailed {
			f.Seen += "; " + provisioning(failed.text)
			f.Since = failed.first
		}
		return f, true
	}
	if hasFailed {
		f := fail.Finding{
			Seen:  fmt.Sprintf("class %s: %s", *name, provisioning(failed.text)),
			Next:  describe,
			Since: failed.first,
		}
		if strings.Contains(failed.text, "code = InvalidArgument") {
			f.Final = true
			f.Next = fmt.Sprintf("correct %s or storage.mode in the cluster file, then: %s", classKey(claim), remove)
		}
		return f, true
	}
	// A class that waits for the pod's node is not a cause.
	asked, ok := latest(events, "ExternalProvisioning")
	if !ok || e.now.Sub(asked.first) < provisionTime {
		return fail.Finding{}, false
	}
	provisioner := "its provisioner"
	if class != nil {
		provisioner = "provisioner " + class.Provisioner
	}
	f := fail.Finding{
		Seen:  fmt.Sprintf("class %s: %s was asked for a volume and has not answered", *name, provisioner),
		Next:  describe,
		Since: asked.first,
	}
	if namespace := ServerNamespace(class); namespace != "" {
		f.Next = fmt.Sprintf("oc get pvc,pods -n %s (the storage server of class %s runs there)", namespace, *name)
	}
	return f, true
}

// classless explains a claim that names no class in a cluster without a default one.
func (e *explainer) classless(claim *corev1.PersistentVolumeClaim) fail.Finding {
	f := fail.Finding{
		Seen: "it has no storage class, and the cluster has no default one" + e.classNames(),
		Next: e.patchClass(claim),
	}
	if claim.Spec.StorageClassName != nil {
		// "" asks for no class on purpose, and cannot be changed.
		f.Seen = "it asks for a volume of no class, and there is none" + e.classNames()
		f.Next = fmt.Sprintf("set %s in the cluster file, then: oc delete pvc %s -n %s", classKey(claim), claim.Name, claim.Namespace)
	}
	return f
}

// storageServer explains a class whose server runs in the cluster and waits for its own claim.
func (e *explainer) storageServer(name string, class *storagev1.StorageClass) (fail.Finding, bool) {
	namespace := ServerNamespace(class)
	if namespace == "" {
		return fail.Finding{}, false
	}
	for i := range e.Claims {
		own := &e.Claims[i]
		if own.Namespace != namespace || own.Status.Phase != corev1.ClaimPending || namespace == e.namespace() {
			continue
		}
		seen := fmt.Sprintf("class %s is served by %s, whose own claim %s in namespace %s is Pending",
			name, class.Parameters["server"], own.Name, namespace)
		next := fmt.Sprintf("oc describe pvc %s -n %s", own.Name, namespace)
		switch class := own.Spec.StorageClassName; {
		case class == nil:
			seen += " because it has no storage class"
			next = e.patchClass(own)
		case *class == "":
			seen += " because it asks for a volume of no class"
		default:
			seen += " (class " + *class + ")"
		}
		return fail.Finding{Seen: seen, Next: next}, true
	}
	return fail.Finding{}, false
}

// IsDefault reports whether claims that name no class get this one.
func IsDefault(c storagev1.StorageClass) bool { return c.Annotations[defaultClass] == "true" }

// patchClass returns the command that sets a claim's class: the cluster's default class, otherwise one that seems to provide
// such volumes.
func (e *explainer) patchClass(claim *corev1.PersistentVolumeClaim) string {
	class, rank := "CLASS", 0
	for _, c := range e.Classes {
		points := 1
		switch {
		case ServerNamespace(&c) == claim.Namespace: // a server cannot provide its own volume
			points = 0
		case IsDefault(c):
			points = 3
		case containsAny(c.Provisioner, "nfs", "cephfs") == (classKey(claim) == "storage.class_rwx"):
			points = 2
		}
		if points > rank {
			class, rank = c.Name, points
		}
	}
	return fmt.Sprintf(`oc patch pvc %s -n %s -p '{"spec":{"storageClassName":"%s"}}'`, claim.Name, claim.Namespace, class)
}

// ServerNamespace returns the namespace of a class's server, or "" if its parameter server (csi-driver-nfs) names no Service
// of the cluster.
func ServerNamespace(class *storagev1.StorageClass) string {
	if class == nil {
		return ""
	}
	parts := strings.Split(class.Parameters["server"], ".")
	if len(parts) < 3 || parts[2] != "svc" || parts[1] == "" {
		return ""
	}
	return parts[1]
}

// classNames returns "; the cluster has a and b", or "" if the classes are unknown.
func (e *explainer) classNames() string {
	if e.Classes == nil {
		return ""
	}
	var names []string
	for i := range e.Classes {
		names = append(names, e.Classes[i].Name)
	}
	return "; the cluster has " + cmp.Or(firstNames(names, 10), "no storage class at all")
}

// classKey returns the cluster file's key that the claim's class comes from.
func classKey(claim *corev1.PersistentVolumeClaim) string {
	if slices.Contains(claim.Spec.AccessModes, corev1.ReadWriteMany) {
		return "storage.class_rwx"
	}
	return "storage.class_rwo"
}

var provisionPrefix = regexp.MustCompile(`(?s)^failed to provision volume with StorageClass "[^"]*": (?:rpc error: code = \w+ desc = )?`)

// provisioning returns the provisioner's own part of a ProvisioningFailed event.
func provisioning(text string) string {
	return oneLine("the provisioner reports: " + provisionPrefix.ReplaceAllString(text, ""))
}
