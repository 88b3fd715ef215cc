package admin

import (
	securityv1 "github.com/openshift/api/security/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
)

// OwnSCC is the constraint that this package makes.
const OwnSCC = "mlenv-rdma"

// PrivilegedSCC is OpenShift's own for privileged pods.
const PrivilegedSCC = "privileged"

// sccGroup is the API group of the constraints, sccResource their resource.
const (
	sccGroup    = "security.openshift.io"
	sccResource = "securitycontextconstraints"
)

// leastSCC allows what pods in mode RDMA with security.ipc_lock ask for, and nothing
// else: root, for whom alone an added capability is effective, and IPC_LOCK. It is
// otherwise restricted-v2, so that pods of both modes have the group and the SELinux
// label of the namespace, and read each other's files. Nobody may use it by itself:
// users and groups are empty.
func leastSCC() *securityv1.SecurityContextConstraints {
	return &securityv1.SecurityContextConstraints{
		TypeMeta:                        metav1.TypeMeta{APIVersion: securityv1.SchemeGroupVersion.String(), Kind: "SecurityContextConstraints"},
		ObjectMeta:                      metav1.ObjectMeta{Name: OwnSCC, Labels: commonLabels(), Annotations: map[string]string{"kubernetes.io/description": sccDescription}},
		AllowedCapabilities:             []corev1.Capability{"IPC_LOCK"},
		RequiredDropCapabilities:        objects.RootsOwn(),
		AllowPrivilegeEscalation:        new(false),
		DefaultAllowPrivilegeEscalation: new(false),
		Volumes: []securityv1.FSType{
			securityv1.FSTypeConfigMap, securityv1.FSTypeDownwardAPI, securityv1.FSTypeEmptyDir,
			securityv1.FSTypePersistentVolumeClaim, securityv1.FSProjected, securityv1.FSTypeSecret,
		},
		RunAsUser:          securityv1.RunAsUserStrategyOptions{Type: securityv1.RunAsUserStrategyRunAsAny},
		SELinuxContext:     securityv1.SELinuxContextStrategyOptions{Type: securityv1.SELinuxStrategyMustRunAs},
		FSGroup:            securityv1.FSGroupStrategyOptions{Type: securityv1.FSGroupStrategyMustRunAs},
		SupplementalGroups: securityv1.SupplementalGroupsStrategyOptions{Type: securityv1.SupplementalGroupsStrategyRunAsAny},
		SeccompProfiles:    []string{"runtime/default"},
		Users:              []string{},
		Groups:             []string{},
	}
}

const sccDescription = "restricted-v2 with root and IPC_LOCK: pods that register memory with RDMA devices given to them by SR-IOV"

// Comparison is what a constraint allows and costs.
type Comparison struct {
	SCC     string `json:"scc"`
	Allows  string `json:"allows"`
	Without string `json:"without"`
	Cost    string `json:"cost"`
	When    string `json:"when"`
}

// comparisons put the least constraint beside the privileged one.
func comparisons() []Comparison {
	return []Comparison{
		{
			SCC:     OwnSCC,
			Allows:  "IPC_LOCK, and root within the container; nothing of the host, no privilege escalation, seccomp and SELinux as in restricted-v2",
			Without: "pods that ask for IPC_LOCK are refused: capability may not be added; those that do not fail with ENOMEM when they register memory, unless CRI-O's limit is raised",
			Cost:    "a pod can lock as much memory as its own limit allows; root in a container is one kernel flaw nearer to root on the node",
			When:    "SR-IOV: attachments and resources give the pod its devices",
		},
		{
			SCC:     PrivilegedSCC,
			Allows:  "everything: all devices, paths and namespaces of the host, every capability",
			Without: "pods cannot open /dev/infiniband of the host: no RDMA device is found",
			Cost:    "who can start a pod under this service account, or get into one, is root on the node",
			When:    "host devices: physical functions without SR-IOV",
		},
	}
}
