// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kube-openapi/pkg/validation/strfmt"
	"k8s.io/kube-openapi/pkg/validation/validate"
	"sigs.k8s.io/yaml"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/test/golden"
)

const podMonitorGolden = "testdata/podmonitor.yaml"

// monitored returns a request for an environment that Prometheus scrapes.
func monitored(t *testing.T) Request {
	r := request(t, "cairo")
	r.Cluster.Monitoring = cluster.Monitoring{PodMonitor: true, Labels: map[string]string{"release": "prometheus", EnvironmentLabel: "other"}}
	return r
}

// The operator's own types and schema take the PodMonitor, without an unknown field.
func TestPodMonitor(t *testing.T) {
	r := monitored(t)
	made := build(t, r)
	content, err := yaml.Marshal(made.PodMonitor)
	if err != nil {
		t.Fatal(err)
	}
	golden.File(t, podMonitorGolden, string(content))
	var typed monitoring.PodMonitor
	if err := yaml.UnmarshalStrict(content, &typed); err != nil {
		t.Fatal(err)
	}
	crd, err := os.ReadFile("../../../test/e2e/testdata/podmonitors-crd.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var definition struct {
		Spec struct {
			Versions []struct {
				Name   string
				Schema struct{ OpenAPIV3Schema spec.Schema }
			}
		}
	}
	if err := yaml.Unmarshal(crd, &definition); err != nil {
		t.Fatal(err)
	}
	schema := definition.Spec.Versions[0]
	if schema.Name != PodMonitors().Version || len(schema.Schema.OpenAPIV3Schema.Properties) == 0 {
		t.Fatalf("version %s with %d properties", schema.Name, len(schema.Schema.OpenAPIV3Schema.Properties))
	}
	validator := validate.NewSchemaValidator(&schema.Schema.OpenAPIV3Schema, nil, "", strfmt.Default)
	for _, err := range validator.Validate(made.PodMonitor.Object).Errors {
		t.Error(err)
	}
	wrong := made.PodMonitor.DeepCopy()
	wrong.Object["spec"].(map[string]any)["podMetricsEndpoints"].([]any)[0].(map[string]any)["scheme"] = "mtls"
	if validator.Validate(wrong.Object).IsValid() {
		t.Error("the schema takes every scheme: it proves nothing")
	}

	selector, err := labels.Set(typed.Spec.Selector.MatchLabels).AsValidatedSelector()
	if err != nil || !selector.Matches(labels.Set(made.StatefulSet.Spec.Template.Labels)) {
		t.Errorf("selector %v (%v) does not match the pods", selector, err)
	}
	endpoint := typed.Spec.PodMetricsEndpoints[0]
	var port int32
	for _, p := range made.StatefulSet.Spec.Template.Spec.Containers[0].Ports {
		if p.Name == *endpoint.Port {
			port = p.ContainerPort
		}
	}
	if port != agent.Port || endpoint.Path != agent.MetricsPath {
		t.Errorf("it scrapes port %d, path %s; want those of the agent", port, endpoint.Path)
	}
	secret := made.Secrets[2]
	tls := endpoint.TLSConfig
	for _, key := range []struct{ name, key string }{
		{tls.CA.Secret.Name, tls.CA.Secret.Key}, {tls.Cert.Secret.Name, tls.Cert.Secret.Key}, {tls.KeySecret.Name, tls.KeySecret.Key},
	} {
		if key.name != secret.Name || len(secret.Data[key.key]) == 0 {
			t.Errorf("Secret %s has no key %s of %s", secret.Name, key.key, key.name)
		}
	}
	want := map[string]string{"ca.crt": "the CA", "tls.crt": "Prometheus' certificate", "tls.key": "Prometheus' key"}
	got := map[string]string{}
	for key, value := range secret.Data {
		got[key] = string(value)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Secret (-want +got):\n%s", diff)
	}
	if typed.Labels["release"] != "prometheus" || typed.Labels[EnvironmentLabel] != r.Name {
		t.Errorf("labels %v: want the file's, and our own as they are", typed.Labels)
	}
	if owners := typed.OwnerReferences; len(owners) != 1 || owners[0].Kind != "Lease" {
		t.Errorf("owners %v, want the Lease", owners)
	}
}

// Without the key nothing is different, and what exists keeps its certificate.
func TestNoPodMonitor(t *testing.T) {
	made := build(t, request(t, "cairo"))
	if made.PodMonitor != nil || len(made.Secrets) != 2 {
		t.Errorf("without the key: PodMonitor %v, %d Secrets", made.PodMonitor, len(made.Secrets))
	}
	for _, secret := range made.Secrets {
		for key, value := range secret.Data {
			if strings.Contains(string(value), "Prometheus") {
				t.Errorf("%s of %s is Prometheus'", key, secret.Name)
			}
		}
	}
	r := monitored(t).WithDefaults()
	kept, err := Build(r, LeaseReference(r.Name, "1"), Certificates{})
	if err != nil || len(kept.Secrets) > 0 {
		t.Errorf("with the certificates of the cluster: %d Secrets, %v", len(kept.Secrets), err)
	}
}
