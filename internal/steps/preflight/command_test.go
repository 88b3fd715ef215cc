// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
)

const kubeconfig = `{apiVersion: v1, kind: Config, current-context: c, users: [{name: u, user: {token: t}}],
clusters: [{name: c, cluster: {server: %q}}], contexts: [{name: c, context: {cluster: c, user: u}}]}`

// TestCommand runs the step against an API server that answers only discovery of its groups. All checks are unknown, and
// that is no failure.
func TestCommand(t *testing.T) {
	silent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/api":
			fmt.Fprint(w, `{"kind":"APIVersions","versions":["v1"]}`)
		case "/apis":
			fmt.Fprint(w,
				`{"kind":"APIGroupList","apiVersion":"v1","groups":[{"name":"tekton.dev","versions":[{"groupVersion":"tekton.dev/v1",`+
					`"version":"v1"}]}]}`)
		case "/apis/tekton.dev/v1/namespaces/nccl-test/pipelineruns/train-1":
			fmt.Fprint(w, `{"apiVersion":"tekton.dev/v1","kind":"PipelineRun","metadata":{"name":"train-1","namespace":"nccl-test"},
				"spec":{"pipelineRef":{"name":"p"},"params":[{"name":"nodes","value":"two"},{"name":"launcher","value":"mpirun"}]},
				"status":{"pipelineSpec":{"params":[{"name":"nodes","type":"string"},{"name":"launcher","type":"string"}]}}}`)
		default:
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","message":"x is forbidden: User \"u\" `+
				`cannot create resource \"x\" in API group \"\"","code":403}`)
		}
	}))
	defer silent.Close()
	gone := httptest.NewServer(nil)
	gone.Close()
	tests := []struct {
		name, server   string
		args           []string
		code           int
		stdout, stderr string
		results        map[string]string
	}{
		{"everything unknown", silent.URL, []string{"--mode=tcp"}, command.Done,
			"preflight: tcp, 1 check ok, 12 unknown (environment, cluster, permissions, permissions to look and 8 more)\n", "",
			map[string]string{"mode": "tcp", "why": "mode tcp is asked for"}},
		{"as records", silent.URL, []string{"--mode=tcp", "--log-format=json"}, command.Done,
			`"msg":"checked nodes","event":"checked","status":"unknown"`, "", nil},
		{"nothing answers", gone.URL, nil, command.Failed, "asking the API server for its groups", "",
			map[string]string{"mode": "", "reason": "APIServerUnreachable"}},
		{"no such mode", silent.URL, []string{"--mode=ib"}, command.WrongUsage, "", `--mode "ib": want auto, rdma or tcp`,
			map[string]string{"reason": "InvalidInput"}},
		{"missing Secrets", silent.URL, []string{"--mode=tcp", "--auth-dir=/nowhere/my-git", "--env-secret-dir=/nowhere/my-keys",
			"--pull-secret-dir=/nowhere/none"}, command.Failed,
			"reading Secret my-keys: it does not exist", "",
			map[string]string{"reason": "InvalidInput", "message": "checking secrets: reading Secret my-git: it does not exist in this namespace, " +
				"or has no keys\nchecking secrets: reading Secret my-keys: it does not exist in this namespace, or has no keys"}},
		{"no number", silent.URL, []string{"--nodes=two"}, command.WrongUsage, "", `--nodes "two": want a number, or 0 for the default`, nil},
		{"no number, and other mistakes of the run", silent.URL, []string{"--namespace=nccl-test", "--run-name=train-1", "--run-uid=1",
			"--nodes=two"}, command.Failed,
			`param nodes: "two": want a number, or 0 for the default; params: param launcher: "mpirun": want auto, deepspeed`, "",
			map[string]string{"reason": "InvalidInput"}},
		{"no such mode and name, and other mistakes of the run", silent.URL, []string{"--namespace=nccl-test", "--run-name=train-1",
			"--run-uid=1", "--mode=ib", "--name=A"}, command.Failed,
			`environment  unknown`, "", map[string]string{"reason": "InvalidInput"}},
		{"every mistake in flags", silent.URL, []string{"--mode=ib", "--name=A", "--exclude-nodes=a b", "--workspace-size", "1GB"},
			command.WrongUsage, "",
			"--exclude-nodes \"a b\": want names of Kubernetes nodes with commas between them and no spaces\n  --mode \"ib\": want auto, rdma " +
				"or tcp\n" +
				"  --name \"A\": want lower-case letters, digits and hyphens, a letter first and no hyphen last, at most 52\n  --workspace-size " +
				"\"1GB\": not a quantity",
			map[string]string{"reason": "InvalidInput"}},
		{"an argument", silent.URL, []string{"now"}, command.WrongUsage, "", `argument "now": want flags only`, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			config := filepath.Join(dir, "config")
			if err := os.WriteFile(config, fmt.Appendf(nil, kubeconfig, test.server), 0o600); err != nil {
				t.Fatal(err)
			}
			args := append([]string{"--kubeconfig=" + config, "--cluster-file=../../../clusters/cairo.yaml", "--image=127.0.0.1:1/training:1"},
				test.args...)
			for _, result := range []string{"mode", "why", "reason", "message"} {
				args = append(args, "--"+result+"-result="+filepath.Join(dir, result))
			}
			var stdout, stderr bytes.Buffer
			if code := command.Run(t.Context(), Command(), args, &stdout, &stderr); code != test.code {
				t.Errorf("exit code %d, want %d:\n%s%s", code, test.code, &stdout, &stderr)
			}
			if !strings.Contains(stdout.String(), test.stdout) || !strings.Contains(stderr.String(), test.stderr) {
				t.Errorf("stdout %s\nstderr %s\nwant %q, %q", &stdout, &stderr, test.stdout, test.stderr)
			}
			for result, want := range test.results {
				if got, _ := os.ReadFile(filepath.Join(dir, result)); string(got) != want {
					t.Errorf("result %s is %q, want %q", result, got, want)
				}
			}
		})
	}
}
