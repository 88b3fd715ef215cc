// SPDX-License-Identifier: Apache-2.0

package server

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/asn1"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/promtext"
)

// clientWith returns the connection of a client whose verified certificate has these usages.
func clientWith(usages []x509.ExtKeyUsage, others ...asn1.ObjectIdentifier) *tls.ConnectionState {
	return &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{ExtKeyUsage: usages, UnknownExtKeyUsage: others}}}
}

// Each request of the protocol is refused to everybody who is not meant to send it. A new one is in this test by itself.
func TestEachRequestIsForFew(t *testing.T) {
	s := &Server{log: slog.New(slog.DiscardHandler)}
	mux := http.NewServeMux()
	for _, route := range s.routes() {
		route.answer = func(w http.ResponseWriter, _ *http.Request) error { w.WriteHeader(http.StatusTeapot); return nil }
		mux.HandleFunc(route.pattern, func(w http.ResponseWriter, r *http.Request) {
			if err := route.serve(w, r); err != nil {
				s.refuse(w, r, err)
			}
		})
	}
	also := map[string]string{"GET /metrics": "prometheus", "POST /v1/trees/{hash}/contents": "agent", "GET /v1/use": "reaper"}
	clients := map[string]*tls.ConnectionState{
		"step":        clientWith([]x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}),
		"agent":       clientWith([]x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}),
		"prometheus":  clientWith(nil, agent.MetricsUsage()),
		"reaper":      clientWith(nil, agent.ReaperUsage()),
		"other usage": clientWith([]x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning}, asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 32473, 7443, 99}),
		"any usage":   clientWith([]x509.ExtKeyUsage{x509.ExtKeyUsageAny}),
		"no usage":    clientWith(nil),
		"nobody":      nil,
	}
	for _, route := range s.routes() {
		method, path, _ := strings.Cut(route.pattern, " ")
		for who, state := range clients {
			request := httptest.NewRequestWithContext(t.Context(), method, strings.NewReplacer("{", "", "}", "").Replace(path), nil)
			request.TLS = state
			answer := httptest.NewRecorder()
			mux.ServeHTTP(answer, request)
			if may := who == "step" || who == also[route.pattern]; (answer.Code == http.StatusTeapot) != may {
				t.Errorf("%s to %s: status %d, allowed should be %v", who, route.pattern, answer.Code, may)
			}
		}
	}
}

func TestProgress(t *testing.T) {
	for _, tc := range []struct {
		name, lines                 string
		step, loss, tokens, samples float64 // NaN for none; the last two are per second
	}{
		{"nothing", "", math.NaN(), math.NaN(), math.NaN(), math.NaN()},
		{"no time", `{"step":1,"loss":2,"tokens":5}`, 1, 2, math.NaN(), math.NaN()},
		{"the last minute", `{"tokens":0,"time":1790001000}
{"tokens":90000,"time":1790001100}
{"tokens":90100,"time":1790001150}
{"step":9,"loss":-1,"tokens":90300,"samples":1,"time":1790001160}`, 9, -1, 5, math.NaN()},
		{"slow steps", `{"samples":0,"time":1790001000}` + "\n" + `{"step":2,"samples":500,"time":1790001250}`, 2, math.NaN(), math.NaN(), 2},
		{"back to a checkpoint", `{"step":8,"tokens":800,"time":1790001000}
{"step":5,"tokens":500,"time":1790001010}
{"step":6,"tokens":600,"time":1790001020}`, 6, math.NaN(), 10, math.NaN()},
		{"the clock went back", `{"tokens":1,"time":1790001000}` + "\n" + `{"step":1,"tokens":2,"time":1790000900}`, 1, math.NaN(), math.NaN(),
			math.NaN()},
		{"an infinite loss", `{"step":1,"loss":Infinity}`, 1, math.Inf(1), math.NaN(), math.NaN()},
		{"other types", `{"step":"x","loss":[1],"tokens":{"a":1}}` + "\nTraceback\n{", math.NaN(), math.NaN(), math.NaN(), math.NaN()},
	} {
		path := filepath.Join(t.TempDir(), "metrics.jsonl")
		if err := os.WriteFile(path, []byte(tc.lines+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		p := readProgress(path)
		for what, value := range map[string][2]float64{
			"step": {or(p.step), tc.step}, "loss": {or(p.loss), tc.loss},
			"tokens": {or(p.tokensPerSecond), tc.tokens}, "samples": {or(p.samplesPerSecond), tc.samples},
		} {
			if got, want := value[0], value[1]; got != want && !(math.IsNaN(got) && math.IsNaN(want)) {
				t.Errorf("%s: %s %v, want %v", tc.name, what, got, want)
			}
		}
	}
}

// or returns the number behind the pointer, NaN for none.
func or(value *float64) float64 {
	if value == nil {
		return math.NaN()
	}
	return *value
}

// interfaces is what the kernel prints, with the number of colons in its heading.
const interfaces = `Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 1000       10    0    0    0     0          0         0     1000      10    0    0    0     0       0          0
  eth0: 18446744073709551615 1 0 0 0 0 0 0 2000 20 0 0 0 0 0 0
  net1:300 3 0 0 0 0 0 0 4 1 0 0 0 0 0 0
`

// node has two RDMA devices, and the container was given one of them.
func deviceTree() fstest.MapFS {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text + "\n")} }
	root := fstest.MapFS{"proc/self/net/dev": file(interfaces), "dev/infiniband/uverbs0": file("")}
	for i, device := range []string{"mlx5_6", "mlx5_7"} {
		root[fmt.Sprintf("sys/class/infiniband_verbs/uverbs%d/ibdev", i)] = file(device)
		for port, received := range map[string]string{"1": "1000", "2": "N/A"} {
			counters := "sys/class/infiniband/" + device + "/ports/" + port + "/counters/"
			root[counters+"port_rcv_data"], root[counters+"port_xmit_data"] = file(received), file("25")
		}
	}
	return root
}

func TestNetworkMetrics(t *testing.T) {
	got, err := networkMetrics(deviceTree())
	if err != nil {
		t.Fatal(err)
	}
	port := []promtext.Label{{Name: "device", Value: "mlx5_6"}, {Name: "port", Value: "1"}}
	want := map[string][]promtext.Sample{
		"mlenv_network_receive_bytes_total": {
			{Value: 18446744073709551615, Labels: []promtext.Label{{Name: "device", Value: "eth0"}}},
			{Value: 300, Labels: []promtext.Label{{Name: "device", Value: "net1"}}}},
		"mlenv_network_transmit_bytes_total": {
			{Value: 2000, Labels: []promtext.Label{{Name: "device", Value: "eth0"}}},
			{Value: 4, Labels: []promtext.Label{{Name: "device", Value: "net1"}}}},
		"mlenv_rdma_receive_bytes_total":  {{Value: 4000, Labels: port}},
		"mlenv_rdma_transmit_bytes_total": {{Value: 100, Labels: port}},
	}
	samples := map[string][]promtext.Sample{}
	for _, m := range got {
		samples[m.Name] = m.Samples
	}
	if diff := cmp.Diff(want, samples); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, text := range []string{"", "eth0: 1 2 3\n", "eth0: x 0 0 0 0 0 0 0 1\n"} {
		root := fstest.MapFS{}
		if text != "" {
			root["proc/self/net/dev"] = &fstest.MapFile{Data: []byte(text)}
		}
		if _, err := networkMetrics(root); err == nil {
			t.Errorf("%q: no error", text)
		}
	}
}

// A node with more devices than any has still has few samples.
func TestDevicesAreBounded(t *testing.T) {
	root := fstest.MapFS{}
	var text strings.Builder
	var gpus []agent.GPU
	for i := range 1000 {
		fmt.Fprintf(&text, "veth%d: 1 0 0 0 0 0 0 0 1 0 0 0 0 0 0 0\n", i)
		gpus = append(gpus, agent.GPU{Index: i, UUID: fmt.Sprint("GPU-", i, strings.Repeat("x", 1000))})
	}
	root["proc/self/net/dev"] = &fstest.MapFile{Data: []byte(text.String())}
	network, err := networkMetrics(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range append(network, gpuMetrics(gpus)...) {
		if len(m.Samples) > mostDevices {
			t.Errorf("%s has %d samples, want at most %d", m.Name, len(m.Samples), mostDevices)
		}
	}
}

// However many ask at once, nvidia-smi runs once. While it takes long, the last values count.
func TestGPUsAreReadOnce(t *testing.T) {
	var use gpuUse
	reads, answer := make(chan struct{}, 10), make(chan struct{})
	read := func() ([]agent.GPU, error) { //nolint:unparam // the same as the function that reads the GPUs
		reads <- struct{}{}
		<-answer
		return []agent.GPU{{UUID: "GPU-0"}}, nil
	}
	results := make(chan error, 10)
	for range 10 {
		go func() {
			gpus, err := use.recent(t.Context().Done(), read)
			if err == nil && len(gpus) != 1 {
				err = fmt.Errorf("%d GPUs", len(gpus))
			}
			results <- err
		}()
	}
	<-reads
	gone := make(chan struct{})
	close(gone)
	if gpus, err := use.recent(gone, read); err == nil {
		t.Errorf("before the first answer: %v, want an error", gpus)
	}
	close(answer)
	for range 10 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	if len(reads) != 0 {
		t.Errorf("nvidia-smi ran %d times more", len(reads))
	}
	use.at = time.Now().Add(-gpuAge - time.Second)
	stuck := func() ([]agent.GPU, error) {
		reads <- struct{}{}
		<-t.Context().Done()
		return nil, nil
	}
	if gpus, err := use.recent(gone, stuck); err != nil || len(gpus) != 1 {
		t.Errorf("while a reading takes long: %v, %v; want the last values", gpus, err)
	}
	<-reads
}

// The reference lists every metric with its type.
func TestMetricsAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../../docs/reference/prometheus.md")
	if err != nil {
		t.Fatal(err)
	}
	network, _ := networkMetrics(deviceTree())
	all := slices.Concat(network, gpuMetrics(nil), progressMetrics(progress{}), Config{}.agentMetrics(), runMetrics(agent.JobStatus{}),
		(&Server{jobs: &jobs{}}).trainingMetrics(), []promtext.Metric{{Name: collectorSuccess, Type: promtext.Gauge}})
	listed := strings.Count(string(page), "\n| `mlenv_")
	names := map[string]bool{}
	for _, m := range all {
		names[m.Name] = true
		if !strings.Contains(string(page), fmt.Sprintf("\n| `%s` | %s |", m.Name, m.Type)) {
			t.Errorf("docs/reference/prometheus.md has no row for %s, a %s", m.Name, m.Type)
		}
	}
	if listed != len(names) {
		t.Errorf("docs/reference/prometheus.md lists %d metrics, want %d", listed, len(names))
	}
}
