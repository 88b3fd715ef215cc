// SPDX-License-Identifier: Apache-2.0

package program

import (
	"os"
	"os/exec"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent/rank"
)

// TestTraced: the rank's process becomes the command, with its exit code.
func TestTraced(t *testing.T) {
	const variable = "MLENV_TEST_TRACED"
	if os.Getenv(variable) != "" {
		os.Exit(Main([]string{"mlenv-agent", "traced", "--", "sh", "-c", "exit 7"}, os.Environ(), os.Stdout, os.Stderr))
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command(self, "-test.run=^TestTraced$")
	command.Env = append(os.Environ(), variable+"=1", rank.TracerVariable+"=1")
	if out, _ := command.CombinedOutput(); command.ProcessState.ExitCode() != 7 {
		t.Errorf("exit code %d, want 7: %s", command.ProcessState.ExitCode(), out)
	}
}
