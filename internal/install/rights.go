// SPDX-License-Identifier: Apache-2.0

package install

import (
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

const (
	// RoleName is the Role of the steps.
	RoleName = "mlenv-pipeline"
	// clusterRoleName is shared by all namespaces; each has its own binding.
	clusterRoleName = "mlenv-observer"
)

// Reserved reports whether install uses the name for objects of a namespace.
func Reserved(name string) bool { return name == RoleName || name == reaperName }

// RoleRules returns the rules of the Role: those that the steps need, and those that only preflight uses to look ahead. OpenShift
// requires the right to delete an object for changing its owner: hence delete for every object that a run can take over
// from a deleted Lease.
func RoleRules() (needed, looking []rbacv1.PolicyRule) {
	return []rbacv1.PolicyRule{
			policyRule("coordination.k8s.io", "leases")("get", "list", "watch", "create", "update", "delete"),
			policyRule("apps", "statefulsets")("get", "list", "watch", "create", "patch", "delete"),
			policyRule("", "services", "serviceaccounts")("get", "create", "patch", "delete"),
			policyRule("", "configmaps")("get", "list", "create", "patch", "delete"),
			// Claims belong to users: no step can delete one. Patch creates them and makes them larger.
			policyRule("", "persistentvolumeclaims")("get", "list", "watch", "create", "patch"),
			// No step reads Secrets: Tasks mount them. The answer to a patch contains the whole Secret.
			policyRule("", "secrets")("create", "patch", "delete"),
			// Created on request; the router chooses the host.
			policyRule("route.openshift.io", "routes")("get", "create", "patch", "delete"),
			// Only the StatefulSet creates pods.
			policyRule("", "pods")("get", "list", "watch", "delete"),
			policyRule("", "events")("list", "watch"),
			policyRule("", "resourcequotas")("list"),
			policyRule("tekton.dev", "pipelineruns")("get"),
			policyRule("tekton.dev", "taskruns")("list"),
			policyRule("build.openshift.io", "buildconfigs")("get", "create", "patch"),
			policyRule("build.openshift.io", "buildconfigs/instantiatebinary")("create"),
			// Update cancels a Build; no step deletes one.
			policyRule("build.openshift.io", "builds")("get", "list", "watch", "update"),
			policyRule("build.openshift.io", "builds/log")("get"),
			policyRule("image.openshift.io", "imagestreams")("create", "patch"),
			policyRule("image.openshift.io", "imagestreamtags")("get"),
			// The digest of a base, which the API server reads; nothing is imported.
			policyRule("image.openshift.io", "imagestreamimports")("create"),
			// To ask the internal registry whether an image still exists.
			policyRule("image.openshift.io", "imagestreams/layers")("get"),
		}, []rbacv1.PolicyRule{
			// Only a dry run of the pod shows exactly what admission decides, and RBAC has no right for dry runs alone.
			// Accounts that may create StatefulSets can create pods anyway.
			policyRule("", "pods")("create"),
			// To ask what the pods' service account may do.
			policyRule("authorization.k8s.io", "localsubjectaccessreviews")("create"),
			policyRule("", "limitranges")("list"),
			policyRule("k8s.cni.cncf.io", "network-attachment-definitions")("get"),
		}
}

// StepRights returns those of the needed rules that are about the resources, in a namespace, for a user who does what a step does.
func StepRights(namespace string, resources ...string) (rights []kube.Access) {
	needed, _ := RoleRules()
	for _, rule := range needed {
		for _, resource := range rule.Resources {
			if slices.Contains(resources, resource) {
				rights = append(rights, kube.Access{
					Resource:  schema.GroupResource{Group: rule.APIGroups[0], Resource: resource},
					Namespace: namespace, Verbs: rule.Verbs,
				})
			}
		}
	}
	return rights
}

func (r Request) role() *rbacv1.Role {
	needed, looking := RoleRules()
	if slices.ContainsFunc(r.clusterFiles(), func(f cluster.File) bool { return f.Nodes.Queue != "" }) {
		looking = append(looking, QueueRules()...)
	}
	if slices.ContainsFunc(r.clusterFiles(), func(f cluster.File) bool { return f.Monitoring.PodMonitor }) {
		looking = append(looking, MonitoringRules()...)
	}
	return &rbacv1.Role{
		ObjectMeta: r.objectMeta(RoleName),
		Rules:      slices.Concat(needed, looking),
	}
}

// QueueRules are for clusters with Kueue: its queue, the position in it, and what the Workload waits for. An administrator of a
// namespace often may not grant them, so no other cluster's Role has them.
func QueueRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		policyRule("kueue.x-k8s.io", "localqueues", "workloads")("get"),
		policyRule("visibility.kueue.x-k8s.io", "localqueues/pendingworkloads")("get"),
	}
}

// MonitoringRules are for cluster files with monitoring.pod_monitor. An administrator of a namespace often may not grant them either.
func MonitoringRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{policyRule("monitoring.coreos.com", "podmonitors")("get", "create", "patch", "delete")}
}

// clusterRole is optional: without it the steps know nothing outside their namespace, such as the holders of GPUs.
func clusterRole() *rbacv1.ClusterRole {
	return &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: clusterRoleName, Labels: Labels(AdminPart)},
		Rules:      ObserverRules(),
	}
}

// ObserverRules returns the rules of the ClusterRole.
func ObserverRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		policyRule("", "nodes")("list"),
		policyRule("", "pods")("list"),
		policyRule("storage.k8s.io", "storageclasses")("get", "list"),
		// Whether the server of a class, for example NFS, waits for its claim.
		policyRule("", "persistentvolumeclaims")("list"),
		// Whether the nodes booted with iommu=pt, and how much memory containers may lock, by their rendered configuration.
		policyRule("machineconfiguration.openshift.io", "machineconfigs")("get"),
		// Attachments are in the namespace default.
		policyRule("k8s.cni.cncf.io", "network-attachment-definitions")("get"),
		// The users and groups that a constraint lists itself.
		policyRule("security.openshift.io", "securitycontextconstraints")("get"),
		// Whether the accounts that pull may read an image stream of another namespace.
		policyRule("authorization.k8s.io", "subjectaccessreviews")("create"),
		// The topology of a queue's flavours, and whether a priority exists.
		policyRule("kueue.x-k8s.io", "clusterqueues", "resourceflavors", "topologies", "workloadpriorityclasses")("get"),
	}
}

func (r Request) roleBinding() *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{
		ObjectMeta: r.objectMeta(RoleName),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: RoleName},
		Subjects:   r.subjects(),
	}
}

// ObserverBinding returns the name of a namespace's ClusterRoleBinding, which install --admin creates.
func ObserverBinding(namespace string) string { return clusterRoleName + "-" + namespace }

func (r Request) clusterRoleBinding() *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: ObserverBinding(r.Namespace), Labels: Labels(AdminPart)},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: clusterRoleName},
		Subjects:   r.subjects(),
	}
}

func (r Request) subjects() []rbacv1.Subject {
	return []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: r.ServiceAccount, Namespace: r.Namespace}}
}

func policyRule(group string, resources ...string) func(verbs ...string) rbacv1.PolicyRule {
	return func(verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: verbs}
	}
}
