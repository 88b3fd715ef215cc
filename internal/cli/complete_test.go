// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCompletion(t *testing.T) {
	t.Setenv("XDG_DATA_HOME", t.TempDir()) // hides the local runs of this machine
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/apis/coordination.k8s.io/v1/namespaces/team/leases":
			fmt.Fprint(w, `{"kind": "LeaseList", "apiVersion": "coordination.k8s.io/v1", "items": [{"metadata": {"name": "h-kim"}}]}`)
		case "/api/v1/namespaces/team/configmaps":
			fmt.Fprint(w, `{"kind": "ConfigMapList", "apiVersion": "v1", "items": [{"metadata": {"name": "mlenv-cluster-cairo"}}, {"metadata": `+
				`{"name": "other"}}]}`)
		case "/apis/tekton.dev/v1/namespaces/team/pipelineruns":
			fmt.Fprint(w, `{"kind": "PipelineRunList", "apiVersion": "tekton.dev/v1", "items": [{"metadata": {"name": "train-multi-node-x7k2p"}},
				{"metadata": {"name": "train-multi-node-ended"}, "status": {"conditions": [{"type": "Succeeded", "status": "True"}]}}]}`)
		case "/apis/project.openshift.io/v1/projects":
			fmt.Fprint(w,
				`{"kind": "ProjectList", "apiVersion": "project.openshift.io/v1", "items": [{"kind": "Project", "apiVersion": `+
					`"project.openshift.io/v1", "metadata": {"name": "team"}}]}`)
		case "/api/v1/namespaces":
			w.WriteHeader(http.StatusForbidden)
		case "/api/v1/namespaces/team/persistentvolumeclaims":
			fmt.Fprint(w, `{"kind": "PersistentVolumeClaimList", "apiVersion": "v1", "items": [{"metadata": {"name": "h-kim-workspace", "labels": `+
				`{"ml-dev-env.github.io/environment": "h-kim"}}}]}`)
		case "/api/v1/namespaces/team/pods":
			fmt.Fprint(w, `{"kind": "PodList", "apiVersion": "v1"}`)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	defer server.Close()
	config := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(
		`{"apiVersion": "v1", "kind": "Config", "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
"clusters": [{"name": "c", "cluster": {"server": %q}}], "users": [{"name": "u"}]}`, server.URL)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ args, want string }{
		{"run --launcher=", "auto\ndeepspeed\ntorchrun\ncommand\ndeepspeed-launcher\ntorchrun-launcher\n"},
		{"train --launcher=", "auto\ndeepspeed\n"},
		{"doctor --output=", "text\njson\nyaml\n"},
		{"up --mode=", "auto\nrdma\ntcp\n"},
		{"doctor -n team --kubeconfig=CONFIG", "h-kim\n"},
		{"shell -n team --kubeconfig=CONFIG --name=", "h-kim\n"},
		{"logs -n team --kubeconfig=CONFIG", "train-multi-node-ended\ntrain-multi-node-x7k2p\n"},
		{"cancel -n team --kubeconfig=CONFIG", "train-multi-node-x7k2p\n:"},
		{"top -n team --kubeconfig=CONFIG", "h-kim\ntrain-multi-node-x7k2p\n:"},
		{"open -n team --kubeconfig=CONFIG", "vscode\njupyter\ntensorboard\nh-kim\n"},
		{"open h-kim -n team --kubeconfig=CONFIG", "vscode\njupyter\ntensorboard\n"},
		{"logs --task=", "build-image\npreflight\nprovision\n"},
		{"status --kubeconfig=CONFIG --namespace=", "team\n:"},
		{"fetch train-multi-node-x7k2p -n team --kubeconfig=CONFIG", ":4\n"},
		{"run -n team --kubeconfig=CONFIG --like=", "train-multi-node-ended\ntrain-multi-node-x7k2p\n"},
		{"claims delete other -n team --kubeconfig=CONFIG", "h-kim-workspace\n"},
		{"preflight -n team --kubeconfig=CONFIG --cluster=", "cairo\n"},
		{"prune other -n team --kubeconfig=CONFIG", "train-multi-node-ended\ntrain-multi-node-x7k2p\n"},
	} {
		args := []string{"__complete"}
		for word := range strings.FieldsSeq(tc.args) {
			args = append(args, strings.ReplaceAll(word, "CONFIG", config)) // a path may have spaces
		}
		if !strings.HasSuffix(tc.args, "=") {
			args = append(args, "")
		}
		var stdout, stderr bytes.Buffer
		if code := Main(args, &stdout, &stderr); code != 0 || !strings.HasPrefix(stdout.String(), tc.want) {
			t.Errorf("%s: exit code %d, %q; want %q", tc.args, code, stdout.String(), tc.want)
		}
	}
}
