// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/topology"
)

type document map[string]any

// marshal returns JSON, which is also YAML. CNI reads only JSON.
func marshal(d any) (string, error) {
	content, err := json.MarshalIndent(d, "", "  ")
	return string(content) + "\n", err
}

// Files of the control plane.
var (
	auditPolicyPath         = topology.State("audit-policy.yaml")
	admissionConfigPath     = topology.State("admission.yaml")
	admissionKubeconfigPath = topology.State("admission-kubeconfig.yaml")
	caBundlePath            = topology.State("ca-bundle.crt")

	authenticationConfigPath = topology.State("authentication.yaml")

	// AuditLogPath is the file of the API server's audit log.
	AuditLogPath = topology.State("logs", "audit.log")
)

// cniDir contains the network plugins: Debian's and the cluster's.
var cniDir = topology.State("cni")

// auditPolicy logs user, verb and resource of every request, except read requests of the cluster's own components, which
// would bury the rest.
func auditPolicy() document {
	return document{
		"apiVersion": "audit.k8s.io/v1", "kind": "Policy",
		"omitStages": []string{"RequestReceived"},
		"rules": []document{
			{"level": "None", "nonResourceURLs": []string{"/healthz*", "/livez*", "/readyz*", "/openapi*", "/version"}},
			{"level": "None", "resources": []document{{"group": "coordination.k8s.io", "resources": []string{"leases"}}},
				"userGroups": []string{"system:nodes"}},
			{"level": "None", "verbs": []string{"get", "list", "watch"},
				"users": []string{"system:apiserver", "system:kube-controller-manager", "system:kube-scheduler", "system:kube-proxy", multusUser,
					whereaboutsUser}},
			{"level": "None", "verbs": []string{"get", "list", "watch"},
				"userGroups": []string{"system:nodes", "system:serviceaccounts:kube-system"}},
			// The server sends one or more of these for every pod. They are read requests, too.
			{"level": "None", "resources": []document{{"group": "authorization.k8s.io", "resources": []string{"subjectaccessreviews"}}},
				"users": []string{"localcluster:openshift"}},
			{"level": "Metadata"},
		},
	}
}

// admissionConfig makes the API server authenticate to webhooks with a client certificate.
func admissionConfig() document {
	configuration := document{
		"apiVersion": "apiserver.config.k8s.io/v1", "kind": "WebhookAdmissionConfiguration",
		"kubeConfigFile": admissionKubeconfigPath,
	}
	return document{
		"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration",
		"plugins": []document{
			{"name": "MutatingAdmissionWebhook", "configuration": configuration},
			{"name": "ValidatingAdmissionWebhook", "configuration": configuration},
		},
	}
}

func cniConfig(n topology.Netns) document {
	return document{
		"cniVersion": "0.4.0", "name": topology.CgroupRoot,
		"plugins": []document{
			{
				"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true, "ipMasq": false,
				"ipam": document{
					"type": "host-local", "dataDir": filepath.Join(n.Dir(), "ipam"),
					"ranges": [][]document{{{"subnet": n.PodCIDR}}},
					"routes": []document{{"dst": "0.0.0.0/0"}},
				},
			},
			{"type": "portmap", "capabilities": document{"portMappings": true}},
		},
	}
}

// containerdTOML returns the configuration of a node's containerd. Without restrict_oom_score_adj, a machine without
// CAP_SYS_RESOURCE could start no sandbox.
func containerdTOML(n topology.Netns, pauseImage string) string {
	return strings.TrimLeft(fmt.Sprintf(`
version = 2
root = %[1]q
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.aufs", "io.containerd.internal.v1.tracing",
  "io.containerd.tracing.processor.v1.otlp"]
[grpc]
  address = %[2]q
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %[3]q
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = %[4]q
    conf_dir = %[5]q
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = %[6]q
`, filepath.Join(n.Dir(), "containerd"), containerdSocket, pauseImage, cniDir,
		filepath.Join(n.Dir(), "net.d"), filepath.Join(n.Dir(), "registries")), "\n")
}
