// SPDX-License-Identifier: Apache-2.0

package images

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

func TestMlenvModule(t *testing.T) {
	command := exec.CommandContext(t.Context(), "python3", "-W", "error", "-m", "unittest", "test_mlenv")
	command.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join("..", "..", "internal", "agent", "pylib"), "PYTHONDONTWRITEBYTECODE=1")
	if out, err := command.CombinedOutput(); err != nil {
		t.Errorf("testing mlenv.py: %v\n%s", err, out)
	}
}

// TestAdditionsToTorch tests what the flavour cpu adds to Debian's torch.
func TestAdditionsToTorch(t *testing.T) {
	command := exec.CommandContext(t.Context(), "python3", "-W", "error", "-m", "unittest", "test_cpu")
	command.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	if out, err := command.CombinedOutput(); err != nil {
		t.Errorf("testing the flavour cpu: %v\n%s", err, out)
	}
}
