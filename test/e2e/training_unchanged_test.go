//go:build e2e

package e2e

import (
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/step"
)

// unchangedPrograms runs programs as packages of PyPI carry them on two nodes, in an image of the flavour cpu, and tiny scripts for
// frameworks that carry none. docs/programs.md has the same table.
func unchangedPrograms(u trainer) {
	base := []string{"  base: " + registryHost + "/base/debian-torch:trixie\n", "  base: " + trainingImage + "\n"}
	image := imageIn(u.built(u.build("--cluster-file="+u.localFile(base...), "--flavour=cpu", "--build-arg=WITH_SERVICES=false", "--build-arg=DEEPSPEED_OPS=shm_comm")))
	// With the CA of the cluster's package index, which install puts into a ConfigMap.
	file := u.localFile()
	u.install(file)
	u.says(u.TempDir(), step.Done, "up", "--cluster-file="+file, "--steps-image="+u.steps, "--image="+image, "--nodes=2", "--gpus-per-node=1")
	const folder = "testdata/repo"
	u.says(folder, step.Done, "sync", ".", "--requirements=requirements-lightning.txt")
	const byTorchrun, byCommand = "--launcher=torchrun", "--launcher=command"
	for _, p := range []struct {
		says string
		args []string
	}{
		{"testing reduce_sum", []string{"-m", "accelerate.test_utils.scripts.test_ops", byTorchrun}},
		{"Num processes: 2", []string{"-m", "accelerate.test_utils.scripts.test_script", byTorchrun}},
		{"Test `accumulate` gradient accumulation", []string{"-m", "accelerate.test_utils.scripts.test_sync", byTorchrun}},
		{"accelerate has 2 ranks over gloo", []string{"meets.py", byTorchrun, "--", "accelerate"}},
		{"trainer has 2 ranks over gloo", []string{"meets.py", byTorchrun, "--", "trainer"}},
		{"lightning has 2 ranks over gloo", []string{"meets.py", byTorchrun, "--", "lightning"}},
		{"testing gather_object", []string{"launches.sh", byCommand, "--", "torchrun", "-m", "accelerate.test_utils.scripts.test_ops"}},
		{"testing gather_object", []string{"launches.sh", byCommand, "--", "accelerate", "-m", "accelerate.test_utils.scripts.test_ops"}},
		{"testing gather_object", []string{"launches.sh", byCommand, "--", "deepspeed", "--module", "accelerate.test_utils.scripts.test_ops"}},
	} {
		// Debian's torch sometimes waits for itself in destroy_process_group, after the other rank has left.
		out, _ := u.says(folder, step.Done, append([]string{"train", "--max-restarts=1", "--hang-timeout=2m"}, p.args...)...)
		u.mustContain(out, p.says)
		if strings.Contains(out, "no rank was connected to another one") {
			u.Errorf("mlenv train %s: its ranks trained alone:\n%s", strings.Join(p.args, " "), shortened(out))
		}
	}
	u.says(u.TempDir(), step.Done, "down")
}
