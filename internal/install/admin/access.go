package admin

import (
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func commonLabels() map[string]string {
	return map[string]string{"app.kubernetes.io/part-of": "ml-dev-env"}
}

// serviceAccount has no rights: its pods are not even given its token.
func (r Request) serviceAccount() *corev1.ServiceAccount {
	return &corev1.ServiceAccount{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"},
		ObjectMeta: metav1.ObjectMeta{Name: r.ServiceAccount, Namespace: r.Namespace, Labels: commonLabels()},
	}
}

// roleOf is the name of what oc adm policy add-scc-to-user makes for a constraint:
// ClusterRole and RoleBinding have the same.
func roleOf(scc string) string { return "system:openshift:scc:" + scc }

// useRole lets use a constraint. It and its binding carry no label, for they are
// shared with whoever else uses that command.
func useRole(scc string) *rbacv1.ClusterRole {
	return &rbacv1.ClusterRole{
		TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRole"},
		ObjectMeta: metav1.ObjectMeta{Name: roleOf(scc)},
		Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{sccGroup}, Resources: []string{sccResource}, ResourceNames: []string{scc}, Verbs: []string{"use"},
		}},
	}
}

func (r Request) useBinding(scc string) *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{
		TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "RoleBinding"},
		ObjectMeta: metav1.ObjectMeta{Name: roleOf(scc), Namespace: r.Namespace},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: roleOf(scc)},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: r.ServiceAccount, Namespace: r.Namespace}},
	}
}
