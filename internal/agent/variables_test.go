// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"strings"
	"testing"
)

func TestParseVariable(t *testing.T) {
	for entry, want := range map[string]string{
		"NCCL_DEBUG=WARN":            "",
		"EMPTY=":                     "",
		"lower=a=b":                  "",
		"LD_PRELOAD=/workspace/x.so": "",
		"again":                      "want KEY=VALUE",
		"=value":                     "want KEY=VALUE",
		"--env-secret-dir=/var/run/secrets/kubernetes.io/serviceaccount": "want KEY=VALUE",
		"A B=1":                    "want KEY=VALUE",
		"RANK=99":                  "the launcher sets it",
		"WORLD_SIZE=1":             "the launcher sets it",
		"MLENV_NODE=99":            "the launcher sets it",
		"MLENV_LAST_CHECKPOINT=/x": "the launcher sets it",
	} {
		key, value, err := ParseVariable(entry)
		if want == "" && (err != nil || key+"="+value != entry) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: got %q, %q, %v; want %q", entry, key, value, err, want)
		}
	}
}
