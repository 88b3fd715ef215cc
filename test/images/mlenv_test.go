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
	command.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join(flavours, "common"), "PYTHONDONTWRITEBYTECODE=1")
	if out, err := command.CombinedOutput(); err != nil {
		t.Errorf("testing images/common/mlenv.py: %v\n%s", err, out)
	}
}

// TestAdditionsToTorch tests what the flavour cpu adds to Debian's torch.
func TestAdditionsToTorch(t *testing.T) {
	command := exec.CommandContext(t.Context(), "python3", "-W", "error", "-m", "unittest", "test_cpu")
	command.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	if out, err := command.CombinedOutput(); err != nil {
		t.Errorf("testing images/cpu: %v\n%s", err, out)
	}
}

// The example has a copy, because it also trains in images without the module.
func TestMlenvModuleOfTheExample(t *testing.T) {
	if read(t, flavours, "common", "mlenv.py") != read(t, "../../examples/transformer/mlenv.py") {
		t.Error("examples/transformer/mlenv.py is not a copy of images/common/mlenv.py")
	}
}
