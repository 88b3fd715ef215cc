// SPDX-License-Identifier: Apache-2.0

package ops

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
)

func TestValidate(t *testing.T) {
	const valid = "cluster: {name: one, api: api.one.example.com, namespace: team}\nnodes: {gpu_nodes: [node-a]}\nstorage: {class_rwo: " +
		"fast, mode: volumeClaimTemplates}\n" +
		"gpus: {default_nodes: 1}\nnetwork: {rdma: {enabled: false}}\n"
	for _, tc := range []struct {
		name, content, output, want string
		code                        int
	}{
		{"one node", valid, "text", "valid: one at api.one.example.com, 1 node, 4 GPUs each, storage volumeClaimTemplates", command.Done},
		{"a mistake for programs", valid + "nots: x\n", "json", `"line": 6,
        "column": 1,
        "path": "nots",
        "want": "unknown key`, command.Failed},
	} {
		t.Run(tc.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "one.yaml")
			if err := os.WriteFile(file, []byte(tc.content), 0o600); err != nil {
				t.Fatal(err)
			}
			var stdout, stderr strings.Builder
			code := command.RunCommands(t.Context(), ValidateCommand(), []string{file, "--output=" + tc.output}, &stdout, &stderr)
			if code != tc.code || !strings.Contains(stdout.String(), tc.want) {
				t.Errorf("got exit code %d, %s%s; want %d and %q", code, stdout.String(), stderr.String(), tc.code, tc.want)
			}
		})
	}
}
