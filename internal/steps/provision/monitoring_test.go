// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
	"github.com/ml-dev-env/ml-dev-env/test/apitest"
)

const (
	monitorPath       = "/apis/monitoring.coreos.com/v1/namespaces/ns/podmonitors/env"
	metricsSecretPath = "/api/v1/namespaces/ns/secrets/env-agent-metrics"
)

// provisionMonitored provisions env with a cluster file that asks for a PodMonitor, and returns its warnings about Prometheus.
func provisionMonitored(t *testing.T, c *controllers, file string) string {
	t.Helper()
	loaded, err := cluster.Load("test.yaml", []byte(file))
	if err != nil {
		t.Fatal(err)
	}
	clients := c.server.Clients(nil)
	clients.InCluster = true
	var warnings bytes.Buffer
	log := slog.New(slog.NewTextHandler(&warnings, &slog.HandlerOptions{Level: slog.LevelWarn}))
	_, err = Run(t.Context(), Deps{Clients: clients, Log: log}, Options{
		Run: run.Flags{Name: "train-1", UID: "uid-1", Task: "provision"},
		Request: objects.Request{
			Cluster: loaded, Name: "env", Nodes: 1, GPUsPerNode: new(2), Image: "127.0.0.1:1/train:1", StepsImage: "127.0.0.1:1/steps:1",
		},
		Mode: "tcp", StartTimeout: 10 * time.Minute, OnBusy: "fail", OnChange: "fail",
	})
	if err != nil {
		t.Fatal(err)
	}
	var ours []string
	for line := range strings.Lines(warnings.String()) {
		if strings.Contains(line, "Prometheus") {
			ours = append(ours, line)
		}
	}
	return strings.Join(ours, "")
}

const monitoredFile = clusterFile + "monitoring: {pod_monitor: true, labels: {release: prometheus}}\n"

// refusing answers requests for PodMonitors with an error.
func refusing(code int, body string) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "monitoring.coreos.com") {
			return false
		}
		if strings.HasPrefix(body, "{") {
			w.Header().Set("Content-Type", "application/json")
		}
		w.WriteHeader(code)
		_, _ = w.Write([]byte(body))
		return true
	}
}

func TestPodMonitorIsApplied(t *testing.T) {
	agenttest.FakeSMI(t)
	c := newControllers(t, false)
	if warnings := provisionMonitored(t, c, monitoredFile); warnings != "" {
		t.Errorf("warnings %s", warnings)
	}
	monitor, secret := c.server.Get(monitorPath), c.server.Get(metricsSecretPath)
	if monitor == nil || secret == nil {
		t.Fatalf("objects %v: want a PodMonitor and its Secret", c.server.Paths())
	}
	lease := "/apis/coordination.k8s.io/v1/namespaces/ns/leases/env"
	uid := c.server.Get(lease)["metadata"].(apitest.Object)["uid"]
	for what, object := range map[string]apitest.Object{"PodMonitor": monitor, "Secret": secret} {
		owners, _ := object["metadata"].(apitest.Object)["ownerReferences"].([]any)
		if len(owners) != 1 || owners[0].(apitest.Object)["uid"] != uid {
			t.Errorf("%s has owners %v, want the Lease", what, owners)
		}
	}
	// The environment exists: nothing is applied anew, and nothing is missing.
	if warnings := provisionMonitored(t, c, monitoredFile); warnings != "" {
		t.Errorf("the second time: warnings %s", warnings)
	}
	c.server.Delete(lease)
	if slices.ContainsFunc(c.server.Paths(), func(path string) bool { return path == monitorPath || path == metricsSecretPath }) {
		t.Error("PodMonitor or Secret are left after the Lease")
	}
}

// A cluster without the kind, or a Role without the right, trains without metrics.
func TestNoPodMonitorIsNoError(t *testing.T) {
	status := func(code int, reason metav1.StatusReason, message string) string {
		content, err := json.Marshal(metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: int32(code), Reason: reason, Message: message,
		})
		if err != nil {
			t.Fatal(err)
		}
		return string(content)
	}
	const denied = `podmonitors.monitoring.coreos.com "env" is forbidden: User "steps" cannot patch resource "podmonitors"`
	agenttest.FakeSMI(t)
	for _, tc := range []struct {
		name string
		code int
		body string
		want string
	}{
		{"no such group", http.StatusNotFound, "404 page not found\n", "the cluster has no kind PodMonitor (monitoring.coreos.com/v1)"},
		{"no such kind", http.StatusNotFound, status(404, metav1.StatusReasonNotFound, "the server could not find the requested resource"),
			"the cluster has no kind PodMonitor"},
		{"no right", http.StatusForbidden, status(403, metav1.StatusReasonForbidden, denied), "the steps may not create a PodMonitor"},
		{"invalid", http.StatusUnprocessableEntity, status(422, metav1.StatusReasonInvalid, "PodMonitor is invalid: spec.x"), "spec.x"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newControllers(t, false)
			c.server.Handle = refusing(tc.code, tc.body)
			warnings := provisionMonitored(t, c, monitoredFile)
			if strings.Count(warnings, "level=WARN") != 1 || !strings.Contains(warnings, tc.want) || !strings.Contains(warnings, "ns/env") {
				t.Errorf("warnings %s\nwant one with %q", warnings, tc.want)
			}
		})
	}
}

// The certificate of an environment cannot be added later.
func TestPodMonitorOfAnOlderEnvironment(t *testing.T) {
	agenttest.FakeSMI(t)
	c := newControllers(t, false)
	warnings := provisionMonitored(t, c, clusterFile)
	if warnings != "" || c.server.Get(monitorPath) != nil || c.server.Get(metricsSecretPath) != nil {
		t.Errorf("without the key: warnings %s, objects %v", warnings, c.server.Paths())
	}
	warnings = provisionMonitored(t, c, monitoredFile)
	if !strings.Contains(warnings, "mlenv down env -n ns") || c.server.Get(monitorPath) != nil {
		t.Errorf("warnings %s, PodMonitor %v; want no PodMonitor without a certificate", warnings, c.server.Get(monitorPath))
	}
}
