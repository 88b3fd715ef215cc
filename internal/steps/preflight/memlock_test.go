// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
)

const trainer = "system:serviceaccount:nccl-test:ml-dev-sa"

// TestMayLock runs Barcelona's file, whose pods ask for no capability, on nodes and with rights that differ.
func TestMayLock(t *testing.T) {
	const short = "8 MiB on moc-r4pcc02u15-yunshi, moc-r4pcc02u16-yunshi, moc-r4pcc02u17-nairr, moc-r4pcc02u18-nairr, moc-r4pcc02u25-nairr " +
		"(rendered-worker-1)"
	notRaised := func(w *world) { w.configure("iommu=pt") }
	for name, test := range map[string]struct {
		change func(*world)
		uses   []string
		status Status
		seen   string
		// asks is whether the pods of provision ask for IPC_LOCK.
		asks bool
		mode agent.Mode
	}{
		"the nodes' limit is raised": {func(*world) {}, []string{"restricted-v2", "nccl-scc"}, OK, "needs none", false, agent.RDMA},
		"nccl-scc": {notRaised, []string{"restricted-v2", "nccl-scc", "privileged"}, OK,
			"security context constraint nccl-scc allows them, because containers may lock only " + short, true, agent.RDMA},
		"our own": {notRaised, []string{"restricted-v2", "mlenv-rdma"}, OK, "constraint mlenv-rdma allows", true, agent.RDMA},
		"nothing": {notRaised, []string{"restricted-v2"}, BlockedRDMA,
			short + ": registering memory would fail with ENOMEM; no security context constraint", false, agent.TCP},
		"only privileged": {notRaised, []string{"restricted-v2", "privileged"}, BlockedRDMA, "only privileged allows IPC_LOCK", false, agent.TCP},
		"only by the caller's rights": {func(w *world) {
			notRaised(w)
			w.uses[stepsUser] = []string{"nccl-scc"}
		}, []string{"restricted-v2"}, BlockedRDMA, "no security context constraint that service account ml-dev-sa may use", false, agent.TCP},
		"the configurations may not be read": {func(w *world) { w.forbidden = []string{"get machineconfigs"} },
			[]string{"restricted-v2", "nccl-scc"}, OK, "whether the nodes raise it is unknown", true, agent.RDMA},
		"neither is known": {func(w *world) { w.forbidden = []string{"get machineconfigs"} }, []string{"restricted-v2"}, Unknown,
			"which only a pod sees", false, agent.RDMA},
		"no dry run": {func(w *world) {
			notRaised(w)
			w.forbidden = []string{"create pods"}
		}, []string{"restricted-v2", "nccl-scc"}, "", "", false, agent.RDMA},
		"on some nodes": {func(w *world) {
			w.each(func(n *corev1.Node) {
				if strings.HasSuffix(n.Name, "yunshi") {
					n.Annotations[currentConfig] = "rendered-old-1"
				}
			})
			old := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "machineconfiguration.openshift.io/v1",
				"kind": "MachineConfig", "metadata": map[string]any{"name": "rendered-old-1"}}}
			w.others[machineConfigs] = append(w.others[machineConfigs], old)
		}, []string{"restricted-v2"}, Warning, "only 8 MiB on moc-r4pcc02u15-yunshi, moc-r4pcc02u16-yunshi (rendered-old-1)", false, agent.RDMA},
	} {
		t.Run(name, func(t *testing.T) {
			w, file := barcelona(t)
			test.change(w)
			w.uses[trainer] = test.uses
			d, o := w.deps(file), optionsOf(file, agent.Auto)
			report := Examine(t.Context(), d, o)
			if test.status != "" && !said(report, want{"locked memory", test.status, test.seen, ""}) {
				t.Errorf("want locked memory %s %q in\n%s", test.status, test.seen, print(report))
			}
			if mode, why := report.Mode(); mode != test.mode {
				t.Errorf("mode %s because %s, want %s", mode, why, test.mode)
			}
			changed, why, err := LockMemory(t.Context(), d.Clients, o.Request.WithDefaults())
			if changed.Cluster.Security.IPCLock != test.asks || (why != "") != test.asks || err != nil {
				t.Errorf("the pods ask for IPC_LOCK: %t, because %q, %v, want %t", changed.Cluster.Security.IPCLock, why, err, test.asks)
			}
			if planned := report.objects[agent.RDMA].StatefulSet; objects.AsksIPCLock(&planned.Spec.Template.Spec) != test.asks {
				t.Errorf("the planned objects ask for IPC_LOCK: %t, want %t", !test.asks, test.asks)
			}
		})
	}
}

// TestMemlock reads limits in the forms that machine configurations have them.
func TestMemlock(t *testing.T) {
	const crio, unlimited = "/etc/crio/crio.conf.d/", `default_ulimits = ["memlock=-1:-1"]`
	plain := func(text string) string {
		return "data:," + strings.NewReplacer("\n", "%0A", " ", "%20", "#", "%23").Replace(text)
	}
	type files map[string]string
	for name, test := range map[string]struct {
		files  files
		dropin string
		want   rdma.Bytes
		err    string
	}{
		"nothing":         {nil, "", 8 << 20, ""},
		"another setting": {files{crio + "01-ctrcfg-pidsLimit": plain("[crio.runtime]\npids_limit = 2048\n")}, "", 8 << 20, ""},
		"no limit":        {files{crio + "99-memlock": plain("[crio.runtime]\n" + unlimited + "\n")}, "", rdma.Unlimited, ""},
		"several, by lines": {files{crio + "x": plain("default_ulimits = [\n  \"nofile=1:2\",\n  'memlock=1024:2147483648',\n]\n")}, "",
			2 << 30, ""},
		"the last file wins": {files{crio + "10-a": plain(unlimited),
			crio + "20-b": plain("default_ulimits = [\"memlock=65536:65536\"]")}, "", 65536, ""},
		"a comment":                {files{crio + "a": plain("# " + unlimited)}, "", 8 << 20, ""},
		"the daemon's":             {nil, "[Service]\nLimitMEMLOCK=infinity\n", rdma.Unlimited, ""},
		"units of systemd":         {nil, "[Service]\nLimitMEMLOCK=8M:4G\n", 4 << 30, ""},
		"the containers' own wins": {files{crio + "a": plain("default_ulimits = [\"memlock=65536\"]")}, "LimitMEMLOCK=infinity\n", 65536, ""},
		"every daemon's":           {files{"/etc/systemd/system.conf.d/m.conf": plain("DefaultLimitMEMLOCK=infinity")}, "", rdma.Unlimited, ""},
		"packed":                   {files{crio + "a": packed(t, unlimited)}, "", rdma.Unlimited, ""},
		"not base64":               {files{crio + "a": "data:;base64,%%%"}, "", 0, "reading " + crio + "a"},
		"not a number":             {nil, "LimitMEMLOCK=much\n", 0, `is "much", want a number`},
		"another's folder":         {files{"/etc/crio/other": plain(unlimited)}, "", 8 << 20, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var list []any
			for path, source := range test.files {
				contents := map[string]any{"source": source}
				if strings.HasPrefix(source, "data:;base64,H4sI") {
					contents["compression"] = "gzip"
				}
				list = append(list, map[string]any{"path": path, "contents": contents})
			}
			config := map[string]any{"storage": map[string]any{"files": list}, "systemd": map[string]any{"units": []any{
				map[string]any{"name": "kubelet.service", "dropins": []any{map[string]any{"name": "a.conf", "contents": "LimitMEMLOCK=infinity"}}},
				map[string]any{"name": "crio.service", "dropins": []any{map[string]any{"name": "b.conf", "contents": test.dropin}}},
			}}}
			got, err := memlock(&unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"config": config}}})
			if got != test.want || (err != nil) != (test.err != "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("got %s, %v, want %s, %q", got, err, test.want, test.err)
			}
		})
	}
}

func packed(t *testing.T, text string) string {
	var all bytes.Buffer
	w := gzip.NewWriter(&all)
	if _, err := w.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return "data:;base64," + base64.StdEncoding.EncodeToString(all.Bytes())
}
