// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"bytes"
	"strings"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
)

// TestEveryMistakeAtOnce: one mistake in a flag hides neither another one nor those in the request for the cluster file.
func TestEveryMistakeAtOnce(t *testing.T) {
	var out bytes.Buffer
	code := command.Run(t.Context(), Command(), []string{
		"--cluster-file=../../../clusters/barcelona.yaml", "--run-name=r", "--name=A", "--mode", "ib", "--on-busy=never", "--workspace-size=z",
		"--start-timeout=0s", "--nodes=9", "--gpus-per-node=9", "--image=Training",
	}, &out, &out)
	for _, want := range []string{
		"--run-name and --run-uid go together", `--name "A": want lower-case letters`, `--mode "ib": want auto, rdma or tcp`,
		`--on-busy "never": want fail or wait`,
		`--workspace-size "z": not a quantity`, `--start-timeout "0s": want a duration such as 40m or 24h`, `--image "Training": want an image`,
		"nodes: 9: the cluster file of barcelona lists 5 nodes", "gpus-per-node: 9: a node of barcelona has 4", "steps-image: is missing",
	} {
		if strings.Count(out.String(), want) != 1 {
			t.Errorf("want %q once in:\n%s", want, &out)
		}
	}
	if code != command.WrongUsage {
		t.Errorf("exit code %d, want %d", code, command.WrongUsage)
	}
}
