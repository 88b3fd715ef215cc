// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// kueueVersion is the newest version that the local cluster has.
const kueueVersion = "v0.19.2"

const kueueNamespace = "kueue-system"

// startKueue starts Kueue's manager with its webhooks as a process next to the control plane, and creates LocalQueue team in a namespace
// with a quota for count nodes. It returns when the queue admits.
func (c *controlPlane) startKueue(ctx context.Context, admin *kubernetes.Clientset, namespace string, count int) {
	c.b.Helper()
	manifests, err := os.ReadFile(filepath.Join(c.folders["kueue"], "manifests.yaml"))
	check(c.b, err)
	// The manager is no pod here, and nothing asks for positions in the queue, which the APIService is for.
	documents := slices.DeleteFunc(strings.Split(string(manifests), "\n---\n"), func(document string) bool {
		var object metav1.TypeMeta
		check(c.b, yaml.Unmarshal([]byte(document), &object))
		return object.Kind == "Deployment" || object.Kind == "APIService"
	})
	c.apply(ctx, strings.Join(documents, "\n---\n"))
	const webhooks = "kueue-webhook-service"
	_, err = admin.DiscoveryV1().EndpointSlices(kueueNamespace).Create(ctx, &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: webhooks, Labels: map[string]string{discoveryv1.LabelServiceName: webhooks}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{serverAddress}}},
		Ports:       []discoveryv1.EndpointPort{{Name: new(""), Port: new(int32(9443)), Protocol: new(corev1.ProtocolTCP)}},
	}, metav1.CreateOptions{})
	check(c.b, err)

	certificates := c.path("kueue-certificates")
	check(c.b, os.Mkdir(certificates, 0o700))
	c.write("kueue.yaml", c.kueueConfig(ctx, admin, certificates))
	c.start("kueue", filepath.Join(c.folders["kueue"], "kueue"), "--config="+c.path("kueue.yaml"), "--kubeconfig="+c.path("kueue.kubeconfig"))
	// In a pod, the kubelet would write the manager's Secret into this folder.
	check(c.b, kube.WatchUntil(ctx, "Kueue's certificate", admin.CoreV1().Secrets(kueueNamespace), metav1.ListOptions{},
		func(found []*corev1.Secret) (bool, error) {
			for _, secret := range found {
				if secret.Name == "kueue-webhook-server-cert" && len(secret.Data["tls.crt"]) > 0 {
					c.write("kueue-certificates/tls.key", string(secret.Data["tls.key"]))
					c.write("kueue-certificates/tls.crt", string(secret.Data["tls.crt"]))
					return true, nil
				}
			}
			return false, nil
		}))
	c.await(ctx, "kueue", "http://127.0.0.1:8081/readyz")
	c.apply(ctx, fmt.Sprintf(`apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: h100}
spec: {nodeLabels: {kubernetes.io/os: linux}}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: gpus}
spec:
  namespaceSelector: {}
  resourceGroups:
  - coveredResources: [cpu, memory, nvidia.com/gpu]
    flavors:
    - name: h100
      resources:
      - {name: cpu, nominalQuota: %d}
      - {name: memory, nominalQuota: %dTi}
      - {name: nvidia.com/gpu, nominalQuota: %d}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: team, namespace: %s}
spec: {clusterQueue: gpus}
`, count*192, count*2, count*ranksPerNode, namespace))
	c.kubectl(ctx, "", "wait", "--namespace="+namespace, "localqueue/team", "--for=condition=Active", "--timeout=1m")
}

// kueueConfig returns the configuration of the manifests with changes for a manager that is no pod.
func (c *controlPlane) kueueConfig(ctx context.Context, admin *kubernetes.Clientset, certificates string) string {
	c.b.Helper()
	found, err := admin.CoreV1().ConfigMaps(kueueNamespace).Get(ctx, "kueue-manager-config", metav1.GetOptions{})
	check(c.b, err)
	var config map[string]any
	check(c.b, yaml.Unmarshal([]byte(found.Data["controller_manager_config.yaml"]), &config))
	config["webhook"].(map[string]any)["certDir"] = certificates
	config["leaderElection"] = map[string]any{"leaderElect": false}
	config["featureGates"] = map[string]any{"VisibilityOnDemand": false}
	text, err := yaml.Marshal(config)
	check(c.b, err)
	return string(text)
}

// apply applies manifests.
func (c *controlPlane) apply(ctx context.Context, manifests string) {
	c.b.Helper()
	c.kubectl(ctx, manifests, "apply", "--server-side", "--filename=-")
}

func (c *controlPlane) kubectl(ctx context.Context, input string, arguments ...string) {
	c.b.Helper()
	command := exec.CommandContext(ctx, filepath.Join(c.folders["kubernetes"], "kube"),
		append([]string{"kubectl", "--kubeconfig=" + c.path("admin.kubeconfig")}, arguments...)...)
	command.Stdin = strings.NewReader(input)
	if text, err := command.CombinedOutput(); err != nil {
		c.b.Fatalf("kubectl %v: %v: %s", arguments, err, text)
	}
}
