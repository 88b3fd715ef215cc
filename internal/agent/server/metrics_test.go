// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
)

// asPrometheus returns a client with the certificate for Prometheus.
func asPrometheus(t *testing.T, node *agenttest.Node) *agent.Client {
	t.Helper()
	made := node.Certificates()
	return clientOf(t, node, made.MetricsCert, made.MetricsKey)
}

// scrape reads the metrics as Prometheus does, with the certificate and key of one kind, and parses them with Prometheus' parser.
func scrape(t *testing.T, node *agenttest.Node, cert, key []byte) (int, map[string]*dto.MetricFamily) {
	t.Helper()
	credentials, err := agent.ParseCredentials(node.Certificates().CA, cert, key)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{
			Certificates: []tls.Certificate{credentials.Certificate}, RootCAs: credentials.CA, ServerName: "env-0.env-headless.ns.svc",
		},
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return node.Dial(ctx, 0) },
	}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://10.0.0.1:7443/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if response.StatusCode != http.StatusOK {
		return response.StatusCode, nil
	}
	if format := expfmt.ResponseFormat(response.Header); format.FormatType() != expfmt.TypeTextPlain {
		t.Errorf("content type %q, want Prometheus' text format", response.Header.Get("Content-Type"))
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(string(body)))
	if err != nil {
		t.Fatalf("parsing the metrics: %v\n%s", err, body)
	}
	return response.StatusCode, families
}

// value returns the value of the sample with these labels, NaN if there is none.
func value(families map[string]*dto.MetricFamily, name string, labels ...string) float64 {
	for _, m := range families[name].GetMetric() {
		var pairs []string
		for _, pair := range m.GetLabel() {
			pairs = append(pairs, pair.GetName()+"="+pair.GetValue())
		}
		if slices.Equal(pairs, labels) {
			return m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return math.NaN()
}

// training starts a job that writes these lines as its metrics, and runs until the test ends. It returns once they are written.
func (n *node) training(id string, spec agent.JobSpec, lines string) {
	n.t.Helper()
	n.script("train.sh", `cat lines >"$MLENV_METRICS_FILE"; echo written; exec sleep 1000`)
	n.script("lines", lines)
	if _, err := n.Client.StartJob(n.t.Context(), id, spec); err != nil {
		n.t.Fatal(err)
	}
	body, err := n.Client.Log(n.t.Context(), id, "rank-0", 0, true)
	if err != nil {
		n.t.Fatal(err)
	}
	defer body.Close()
	if _, err := io.ReadFull(body, make([]byte, len("written\n"))); err != nil {
		n.t.Fatal(err)
	}
}

// fakeGPUs installs an nvidia-smi that reports two GPUs, as agents find it.
func fakeGPUs(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	line := func(index int) string {
		return fmt.Sprintf("%d, GPU-%d, NVIDIA H100 80GB HBM3, 570.1, 81559, 40000, 97, 61, 0x0, None, 0, 00000000:1%d:00.0, Disabled, 9.0",
			index, index, index)
	}
	script := fmt.Sprintf("#!/bin/sh\ncase $1 in --query-gpu*) echo '%s'; echo '%s';; esac\n", line(0), line(1))
	if err := os.WriteFile(filepath.Join(dir, "nvidia-smi"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

func TestMetrics(t *testing.T) {
	fakeGPUs(t)
	n := newNode(t)
	certs := n.Certificates()
	status, idle := scrape(t, n.Node, certs.MetricsCert, certs.MetricsKey)
	if status != http.StatusOK || value(idle, "mlenv_training_running") != 0 || idle["mlenv_training_step"] != nil {
		t.Errorf("without a training: status %d, %v; want no training", status, idle)
	}
	spec := command("train.sh")
	spec.Run = "say \"it\"\\\nx"
	spec.Attempts = []agent.Attempt{{Attempt: 1, Reason: fail.NodeLost}}
	n.training("job-1", spec, `{"step":10,"steps":500,"loss":4.5,"tokens":1000,"time":1790000000,"mine":7}
{"step":20,"steps":500,"loss":NaN,"tokens":21000,"time":1790000010}
`)
	_, running := scrape(t, n.Node, certs.MetricsCert, certs.MetricsKey)
	for _, tc := range []struct {
		name   string
		labels []string
		want   float64
	}{
		{"mlenv_agent_info", []string{"environment=env", "node=0", "version=test"}, 1},
		{"mlenv_training_running", nil, 1},
		{"mlenv_training_info", []string{"launcher=command", "run=" + spec.Run}, 1},
		{"mlenv_training_attempt", nil, 2},
		{"mlenv_training_attempts_total", nil, 1},
		{"mlenv_training_step", nil, 20},
		{"mlenv_training_steps", nil, 500},
		{"mlenv_training_tokens", nil, 21000},
		{"mlenv_training_tokens_per_second", nil, 2000},
		{"mlenv_gpu_utilization_ratio", []string{"gpu=1", "uuid=GPU-1"}, 0.97},
		{"mlenv_gpu_memory_used_bytes", []string{"gpu=0", "uuid=GPU-0"}, 40000 << 20},
		{"mlenv_gpu_memory_size_bytes", []string{"gpu=0", "uuid=GPU-0"}, 81559 << 20},
		{"mlenv_gpu_temperature_celsius", []string{"gpu=0", "uuid=GPU-0"}, 61},
		{"mlenv_collector_success", []string{"collector=gpu"}, 1},
		{"mlenv_collector_success", []string{"collector=network"}, 1},
	} {
		if got := value(running, tc.name, tc.labels...); got != tc.want {
			t.Errorf("%s%q is %v, want %v", tc.name, tc.labels, got, tc.want)
		}
	}
	if loss := running["mlenv_training_loss"].GetMetric(); len(loss) != 1 || !math.IsNaN(loss[0].GetGauge().GetValue()) {
		t.Errorf("loss %v, want NaN", loss)
	}
	for name := range running {
		if strings.Contains(name, "mine") {
			t.Errorf("%s: a key of the training's own became a metric", name)
		}
	}
	if _, families := scrape(t, n.Node, certs.ClientCert, certs.ClientKey); families == nil {
		t.Error("a step may not read the metrics")
	}
	if status, _ := scrape(t, n.Node, certs.ServerCert, certs.ServerKey); status != http.StatusUnprocessableEntity {
		t.Errorf("another agent: status %d, want a refusal", status)
	}
}

// Prometheus' conventions: base units, a suffix for counters alone, a help and a type for each.
func TestMetricNames(t *testing.T) {
	fakeGPUs(t)
	n := newNode(t)
	n.training("job-1", command("train.sh"), `{"step":1,"steps":2,"loss":1,"tokens":1,"samples":1,"time":1}`+"\n")
	certs := n.Certificates()
	_, families := scrape(t, n.Node, certs.MetricsCert, certs.MetricsKey)
	for name, family := range families {
		if !strings.HasPrefix(name, "mlenv_") || family.GetHelp() == "" {
			t.Errorf("%s, %q: want the prefix mlenv_ and a help", name, family.GetHelp())
		}
		if counts := family.GetType() == dto.MetricType_COUNTER; counts != strings.HasSuffix(name, "_total") {
			t.Errorf("%s has type %s: want _total for counters alone", name, family.GetType())
		}
		for _, unit := range []string{"_ms", "_milliseconds", "_percent", "_kb", "_mb", "_mib", "_gb"} {
			if strings.Contains(name+"_", unit+"_") {
				t.Errorf("%s: want a base unit", name)
			}
		}
	}
}

// However much a training writes, the number of samples stays the same.
func TestMetricsAreBounded(t *testing.T) {
	n := newNode(t)
	var lines strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&lines, "{\"step\":%d,\"loss\":1,\"key-%d\":1,\"rank_seconds\":[%s1]}\n", i, i, strings.Repeat("1,", 100))
	}
	spec := command("train.sh")
	spec.Run = strings.Repeat("r", 10_000)
	n.training("job-1", spec, lines.String())
	certs := n.Certificates()
	_, families := scrape(t, n.Node, certs.MetricsCert, certs.MetricsKey)
	samples := 0
	for name, family := range families {
		if !strings.HasPrefix(name, "mlenv_network_") && !strings.HasPrefix(name, "mlenv_rdma_") {
			samples += len(family.GetMetric())
		}
		for _, m := range family.GetMetric() {
			for _, label := range m.GetLabel() {
				if len(label.GetValue()) > 253 {
					t.Errorf("%s: label %s has %d bytes", name, label.GetName(), len(label.GetValue()))
				}
			}
		}
	}
	if samples > 15 {
		t.Errorf("%d samples, want at most 15", samples)
	}
}

// TestPrometheusMayOnlyReadMetrics: with its certificate a client may do nothing else, by any path of the protocol.
func TestPrometheusMayOnlyReadMetrics(t *testing.T) {
	node := agenttest.Start(t, 2)[0]
	hash, content := putTree(t, node)
	prometheus := asPrometheus(t, node)
	refused := refusals(prometheus, hash)
	refused["contents of a tree"] = func(ctx context.Context) error {
		_, err := prometheus.TreeContents(ctx, hash, []tree.Digest{content}, 0)
		return err
	}
	for what, call := range refused {
		if err := call(t.Context()); fail.ReasonOf(err) != fail.PermissionDenied {
			t.Errorf("%s: %v, want PermissionDenied", what, err)
		}
	}
}
