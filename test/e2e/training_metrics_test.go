// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"strings"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// metricsForPrometheus reads the agents' metrics during a training, as the PodMonitor tells Prometheus to: by its port, path and server
// name, with the certificate of its Secret. The API server checks the PodMonitor with the operator's own schema. Before the cluster has
// the kind, the same training only warns. No Prometheus runs: its server needs several minutes to compile.
func metricsForPrometheus(u trainer) {
	u.installChanged("image:\n", "monitoring: {pod_monitor: true, labels: {release: prometheus}}\nimage:\n")
	e := u.end(u.start("e2e/quick.sh", byShell, oneGPU)).succeeded()
	e.mustContain(e.log("provision"), "the cluster has no kind PodMonitor (monitoring.coreos.com/v1)")

	const definition = "testdata/podmonitors-crd.yaml"
	u.kubectl("apply", "--server-side", "--filename="+definition)
	u.Cleanup(func() { u.kubectl("delete", "--filename="+definition) })
	u.kubectl("wait", "customresourcedefinition/podmonitors.monitoring.coreos.com", "--for=condition=Established",
		within(timeForTheObjectToChange))

	name := u.start("e2e/metrics.sh", byShell, oneGPU)
	u.waitOutput(name, "train", "[0 -] node 0 has written metrics", "[1 -] node 1 holds the environment")
	var monitor monitoring.PodMonitor
	u.decode(u.kubectl("get", "podmonitor/ml-dev-env", "--output=json"), &monitor)
	u.equal("label of the PodMonitor", monitor.Labels["release"], "prometheus")
	pods := u.kubectl("get", "pods", "--selector="+labelsOf(monitor.Spec.Selector.MatchLabels), "--output=jsonpath={.items[*].metadata.name}")
	u.equal("pods of the PodMonitor", pods, "ml-dev-env-0 ml-dev-env-1")
	endpoint := monitor.Spec.PodMetricsEndpoints[0]
	u.equal("port of the PodMonitor", *endpoint.Port, "agent")

	first := u.scrape("pod/ml-dev-env-0", endpoint, http.StatusOK)
	for metric, want := range map[string]float64{
		"mlenv_training_running": 1, "mlenv_training_step": 20, "mlenv_training_steps": 500, "mlenv_training_loss": 0.5,
		"mlenv_training_tokens_per_second": 200, "mlenv_training_attempt": 1, "mlenv_collector_success": 1,
	} {
		if got := first[metric].GetMetric(); len(got) == 0 || got[0].GetGauge().GetValue() != want {
			u.Errorf("%s is %v, want %v", metric, got, want)
		}
	}
	for _, metric := range []string{"mlenv_network_receive_bytes_total", "mlenv_gpu_utilization_ratio"} {
		if len(first[metric].GetMetric()) == 0 {
			u.Errorf("there is no %s", metric)
		}
	}
	u.mustContain(first["mlenv_training_info"].String(), name)
	second := u.scrape("pod/ml-dev-env-1", endpoint, http.StatusOK)
	if second["mlenv_training_step"] != nil || second["mlenv_training_running"].GetMetric()[0].GetGauge().GetValue() != 1 {
		u.Errorf("node 1 has metrics %v", second)
	}
	// The same certificate opens nothing else.
	endpoint.Path = "/v1/facts"
	u.scrape("pod/ml-dev-env-0", endpoint, http.StatusUnprocessableEntity)

	u.release("ml-dev-env-0", "release")
	u.end(name).succeeded()
	u.equal("PodMonitors after the run", u.kubectl("get", "podmonitors", "--output=name"), "")
	if secrets := u.kubectl("get", "secrets", "--output=name"); strings.Contains(secrets, "agent-metrics") {
		u.Errorf("after the run there are %s", secrets)
	}
}

// scrape requests what an endpoint of a PodMonitor says, through a port-forward, and parses the answer. It fails for another status.
func (u trainer) scrape(pod string, endpoint monitoring.PodMetricsEndpoint, status int) map[string]*dto.MetricFamily {
	u.Helper()
	config := endpoint.TLSConfig
	file := func(secret, key string) []byte {
		encoded := u.kubectl("get", "secret/"+secret, `--output=go-template={{index .data "`+key+`"}}`)
		content, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil {
			u.Fatalf("Secret %s, key %s: %v", secret, key, err)
		}
		return content
	}
	credentials, err := agent.ParseCredentials(file(config.CA.Secret.Name, config.CA.Secret.Key),
		file(config.Cert.Secret.Name, config.Cert.Secret.Key), file(config.KeySecret.Name, config.KeySecret.Key))
	if err != nil {
		u.Fatal(err)
	}
	forwarded, end := u.forward(pod, agent.Port)
	defer end()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{
		Certificates: []tls.Certificate{credentials.Certificate}, RootCAs: credentials.CA, ServerName: *config.ServerName,
	}}}
	defer client.CloseIdleConnections()
	request, err := http.NewRequestWithContext(u.Context(), http.MethodGet, "https://"+forwarded[agent.Port]+endpoint.Path, nil)
	if err != nil {
		u.Fatal(err)
	}
	response, err := client.Do(request)
	if err != nil {
		u.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		u.Fatal(err)
	}
	if response.StatusCode != status {
		u.Fatalf("%s of %s: status %d, want %d: %s", endpoint.Path, pod, response.StatusCode, status, body)
	}
	if status != http.StatusOK {
		u.mustContain(string(body), string(fail.PermissionDenied))
		return nil
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(string(body)))
	if err != nil {
		u.Fatalf("parsing the metrics of %s: %v\n%s", pod, err, body)
	}
	return families
}

func (u trainer) decode(text string, into any) {
	u.Helper()
	if err := json.Unmarshal([]byte(text), into); err != nil {
		u.Fatal(err)
	}
}

// labelsOf returns a selector of these labels.
func labelsOf(labels map[string]string) string {
	var pairs []string
	for name, value := range labels {
		pairs = append(pairs, name+"="+value)
	}
	return strings.Join(pairs, ",")
}
