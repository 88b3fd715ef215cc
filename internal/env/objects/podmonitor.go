// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/internal/names"
)

// PodMonitors returns the resource of prometheus-operator that tells Prometheus which pods to scrape. An untyped object is enough for the
// few fields.
func PodMonitors() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "monitoring.coreos.com", Version: "v1", Resource: "podmonitors"}
}

// podMonitor has Prometheus read the agents' metrics with the certificate of the metrics Secret.
func (b builder) podMonitor() *unstructured.Unstructured {
	if !b.Cluster.Monitoring.PodMonitor {
		return nil
	}
	key := func(name string) map[string]any { return map[string]any{"name": b.names.MetricsSecret, "key": name} }
	monitor := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"selector": map[string]any{"matchLabels": untyped(names.Selector(b.Name))},
		// Each sample gets the environment's name as the label ml_dev_env_github_io_environment.
		"podTargetLabels": []any{EnvironmentLabel},
		"podMetricsEndpoints": []any{map[string]any{
			"port": agentPort, "path": agent.MetricsPath, "scheme": "https",
			"tlsConfig": map[string]any{
				"ca":        map[string]any{"secret": key(caKey)},
				"cert":      map[string]any{"secret": key(corev1.TLSCertKey)},
				"keySecret": key(corev1.TLSPrivateKeyKey),
				// Prometheus connects to addresses. The agents share one certificate, which has the names of all nodes.
				"serverName": b.names.TLSName(0),
			},
		}},
	}}}
	meta := b.ownedMeta(b.names.PodMonitor)
	labels := maps.Clone(b.Cluster.Monitoring.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, meta.Labels)
	monitor.SetAPIVersion(PodMonitors().GroupVersion().String())
	monitor.SetKind("PodMonitor")
	monitor.SetName(meta.Name)
	monitor.SetNamespace(meta.Namespace)
	monitor.SetLabels(labels)
	monitor.SetOwnerReferences(meta.OwnerReferences)
	return monitor
}

func untyped(labels map[string]string) map[string]any {
	result := map[string]any{}
	for name, value := range labels {
		result[name] = value
	}
	return result
}
