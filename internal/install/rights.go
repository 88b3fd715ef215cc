package install

import (
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	roleName = "mlenv-pipeline"
	// clusterRoleName is one for all namespaces; each has a binding of its own.
	clusterRoleName = "mlenv-observer"
)

// Reserved is true of names that install gives to objects of a namespace, and so nobody else may.
func Reserved(name string) bool { return name == roleName || name == reaperName }

// Rules are what the Role gives: what the steps need to do their work, and what
// only lets preflight look ahead. Where owner references are guarded, as
// OpenShift guards them, changing them wants the right to delete the object:
// hence delete wherever an object can be taken over from a Lease that is gone.
func Rules() (needed, looking []rbacv1.PolicyRule) {
	return []rbacv1.PolicyRule{
			rule("coordination.k8s.io", "leases")("get", "list", "watch", "create", "update", "delete"),
			rule("apps", "statefulsets")("get", "list", "watch", "create", "patch", "delete"),
			rule("", "services", "serviceaccounts")("get", "create", "patch", "delete"),
			rule("", "configmaps")("get", "list", "create", "patch", "delete"),
			// Claims belong to people: no step can delete one.
			rule("", "persistentvolumeclaims")("get", "list", "create", "patch"),
			// No step gets a Secret: Tasks mount what they need. Who applies one sees in the answer
			// what is in it.
			rule("", "secrets")("create", "patch", "delete"),
			// Made where they are asked for; the host is the router's choice.
			rule("route.openshift.io", "routes")("get", "create", "patch", "delete"),
			// Pods are made by the StatefulSet alone.
			rule("", "pods")("get", "list", "watch", "delete"),
			rule("", "events")("list", "watch"),
			rule("", "resourcequotas")("list"),
			rule("tekton.dev", "pipelineruns")("get"),
			rule("tekton.dev", "taskruns")("list"),
			rule("build.openshift.io", "buildconfigs")("get", "create", "patch"),
			rule("build.openshift.io", "buildconfigs/instantiatebinary")("create"),
			// A Build is cancelled by an update of it; no step deletes one.
			rule("build.openshift.io", "builds")("get", "list", "watch", "update"),
			rule("build.openshift.io", "builds/log")("get"),
			rule("image.openshift.io", "imagestreams")("create", "patch"),
			rule("image.openshift.io", "imagestreamtags")("get"),
			// To ask the internal registry whether an image is still there.
			rule("image.openshift.io", "imagestreams/layers")("get"),
		}, []rbacv1.PolicyRule{
			// A dry run of the very pod is the only exact answer of the cluster's admission, and RBAC
			// knows no right to dry runs alone. Who may make StatefulSets makes pods anyway.
			rule("", "pods")("create"),
			// What the pods' service account may do is asked in its name.
			rule("authorization.k8s.io", "localsubjectaccessreviews")("create"),
			rule("", "limitranges")("list"),
			rule("k8s.cni.cncf.io", "network-attachment-definitions")("get"),
		}
}

// role is all that the steps need.
func (r Request) role() *rbacv1.Role {
	needed, looking := Rules()
	return &rbacv1.Role{
		TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "Role"},
		ObjectMeta: r.meta(roleName),
		Rules:      slices.Concat(needed, looking),
	}
}

// clusterRole is optional: without it the steps do not know what is beyond their
// namespace, as who holds the GPUs.
func clusterRole() *rbacv1.ClusterRole {
	return &rbacv1.ClusterRole{
		TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRole"},
		ObjectMeta: metav1.ObjectMeta{Name: clusterRoleName, Labels: Labels(AdminPart)},
		Rules:      ObserverRules(),
	}
}

// ObserverRules are what the ClusterRole gives.
func ObserverRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		rule("", "nodes")("get", "list"),
		rule("", "pods")("list"),
		rule("storage.k8s.io", "storageclasses")("get", "list"),
		// Whether a class's own server, as NFS has one, waits for its claim.
		rule("", "persistentvolumeclaims")("list"),
		// Whether the nodes booted with iommu=pt, by the configuration that they are of.
		rule("machineconfiguration.openshift.io", "machineconfigs")("get"),
		// Attachments lie in the namespace default.
		rule("k8s.cni.cncf.io", "network-attachment-definitions")("get"),
		// Whom a constraint names itself, beside those who are bound to it.
		rule("security.openshift.io", "securitycontextconstraints")("get"),
	}
}

func (r Request) roleBinding() *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{
		TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "RoleBinding"},
		ObjectMeta: r.meta(roleName),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: roleName},
		Subjects:   r.subjects(),
	}
}

// ObserverBinding is the ClusterRoleBinding that a namespace installed with --admin has.
func ObserverBinding(namespace string) string { return clusterRoleName + "-" + namespace }

func (r Request) clusterRoleBinding() *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{
		TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRoleBinding"},
		ObjectMeta: metav1.ObjectMeta{Name: ObserverBinding(r.Namespace), Labels: Labels(AdminPart)},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: clusterRoleName},
		Subjects:   r.subjects(),
	}
}

func (r Request) subjects() []rbacv1.Subject {
	return []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: r.ServiceAccount, Namespace: r.Namespace}}
}

// rule is about resources of a group; what it returns takes the verbs.
func rule(group string, resources ...string) func(verbs ...string) rbacv1.PolicyRule {
	return func(verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: verbs}
	}
}
