package install

// Unused is a right of the Role that the API server's audit log does not show in use
// after all runs of the end-to-end tests, with the reason that it is given for.
type Unused struct {
	Group, Resource string
	Verbs           []string
	Why             string
}

// The reasons that several rights have.
const (
	byApply = "server-side apply of what is not there is authorized as create too, and logged as patch alone"
	byOwner = "OpenShift lets only somebody who may delete an object change its owner, as taking over from a run that is gone does; the local cluster does not ask"
)

// UnusedRights says so of each such right. The end-to-end tests fail where one is missing
// here, and tell where one is used after all.
func UnusedRights() []Unused {
	return []Unused{
		{"apps", "statefulsets", []string{"create"}, byApply},
		{"apps", "statefulsets", []string{"delete"}, byOwner},
		{"", "services", []string{"create"}, byApply},
		{"", "services", []string{"delete"}, "the Service of development services that are not asked for any more; only a nightly scenario asks for some"},
		{"", "serviceaccounts", []string{"delete"}, byOwner},
		{"", "configmaps", []string{"create"}, byApply},
		{"", "configmaps", []string{"delete"}, "receipts beyond the 30 newest of an environment"},
		{"", "persistentvolumeclaims", []string{"create"}, byApply},
		{"", "secrets", []string{"create"}, byApply},
		{"", "secrets", []string{"delete"}, byOwner},
		{"route.openshift.io", "routes", []string{"create"}, byApply},
		{"route.openshift.io", "routes", []string{"patch"}, "routes to services, where they are asked for"},
		{"route.openshift.io", "routes", []string{"delete"}, byOwner},
		{"", "pods", []string{"delete"}, "the pod of a node that is to be made anew"},
		{"build.openshift.io", "buildconfigs", []string{"create"}, byApply},
		{"image.openshift.io", "imagestreams", []string{"create"}, byApply},
		{"image.openshift.io", "imagestreams/layers", []string{"get"}, "the internal registry asks in its own name whether whoever pulls may"},
		{"k8s.cni.cncf.io", "network-attachment-definitions", []string{"get"}, "attachments that lie in the namespace itself"},
	}
}
