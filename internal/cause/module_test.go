// SPDX-License-Identifier: Apache-2.0

package cause

import (
	"strings"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

func TestModuleOfTheRepository(t *testing.T) {
	for folder, want := range map[string][2]string{
		".": {"No module named 'utils' (train.py:3); the repository's top folder has that module, and Python looks in the script's folder",
			"-m PACKAGE.MODULE, or give the ranks the variable PYTHONPATH=."},
		"src": {"; the repository has that module in src, where Python does not look", "give the ranks the variable PYTHONPATH=src"},
		"":    {"No module named 'utils' (train.py:3)", "mlenv logs"},
	} {
		found, _ := Find([]agent.JobStatus{{Ranks: []agent.RankStatus{{Ended: time.Unix(1e9, 0), Exit: agent.Exit{Code: 1},
			Python: &agent.PythonError{Type: "ModuleNotFoundError", Message: "No module named 'utils'", File: "train.py", Line: 3,
				InTree: folder}}}}})
		err := found.Err(Job{Run: "one", Namespace: "ns"})
		if !strings.Contains(err.Error(), want[0]) || !strings.Contains(fail.NextOf(err), want[1]) || folder == "" &&
			!strings.HasSuffix(err.Error(), want[0]) || strings.Contains(fail.NextOf(err), "-m PACKAGE") != (folder == ".") {
			t.Errorf("%q: got %v, next %q; want %q", folder, err, fail.NextOf(err), want)
		}
	}
}

// TestTorchSeesNoGPU: what torch reports at the end of a rank is what check-fabric has seen before.
func TestTorchSeesNoGPU(t *testing.T) {
	for text, want := range map[string]bool{
		"RuntimeError: Distributed package doesn't have NCCL built in":                                                       true,
		"ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!":                                           true,
		"torch.distributed.DistBackendError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!":                   true,
		"AssertionError: Torch not compiled with CUDA enabled":                                                               true,
		"RuntimeError: No CUDA GPUs are available":                                                                           true,
		"RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU":                      true,
		"AttributeError: module 'torch._C' has no attribute '_cuda_setDevice'":                                               true,
		"RuntimeError: no GPU resources available":                                                                           true,
		"RuntimeError: Distributed package doesn't have MPI built in. MPI is only included if you build PyTorch from source": false,
		"RuntimeError: CUDA error: invalid device ordinal":                                                                   false,
	} {
		kind, message, _ := strings.Cut(text, ": ")
		found, _ := Find([]agent.JobStatus{{Ranks: []agent.RankStatus{{Ended: time.Unix(1e9, 0), Exit: agent.Exit{Code: 1},
			Python: &agent.PythonError{Type: kind, Message: message}}}}})
		if next := fail.NextOf(found.Err(Job{Run: "one", Namespace: "ns"})); strings.Contains(next,
			"torch sees no GPU, as check-fabric's log shows too") != want {
			t.Errorf("%s: next %q, want the GPU in it: %t", text, next, want)
		}
		// A run on the user's own machine has no check-fabric.
		next := fail.NextOf(found.Err(Job{Record: "/record"}))
		if strings.Contains(next, "torch sees no GPU") != want || strings.Contains(next, "check-fabric") {
			t.Errorf("%s: on this machine next is %q, want the GPU in it: %t", text, next, want)
		}
	}
}
