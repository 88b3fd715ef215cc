// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
)

// unchangedPrograms runs programs as packages of PyPI carry them on two nodes, in an image of the flavour cpu, tiny scripts for
// frameworks that carry none, and tiny scripts with the shapes of public repositories. docs/project/programs.md lists them.
func unchangedPrograms(u trainer) {
	base := []string{"  base: " + registryHost + "/base/debian-torch:trixie\n", "  base: " + trainingImage + "\n"}
	image := imageIn(u.built(u.build("--cluster-file="+u.localFile(base...), "--flavour=cpu", "--build-args=WITH_SERVICES=false",
		"--build-args=DEEPSPEED_OPS=shm_comm")))
	// With the CA of the cluster's package index, which install puts into a ConfigMap.
	file := u.localFile()
	u.install(file)
	u.says(u.TempDir(), command.Done, "up", "--cluster-file="+file, "--steps-image="+u.steps, "--image="+image, "--nodes=2",
		"--gpus-per-node=1")
	folder, ignoredByGit := u.TempDir(), strings.Repeat("a\x00", 8)+strings.Repeat("b\x00", 8)
	if err := errors.Join(os.CopyFS(folder, os.DirFS("testdata/repo")),
		os.WriteFile(filepath.Join(folder, "shapes", "train.bin"), []byte(ignoredByGit), 0o600)); err != nil {
		u.Fatal(err)
	}
	u.says(folder, command.Done, "sync", ".", "--requirements=requirements-unchanged.txt")
	const byCommand = "--launcher=command"
	for _, p := range []struct {
		says string
		args []string
	}{
		{"testing reduce_sum", []string{"-m", "accelerate.test_utils.scripts.test_ops"}},
		{"Num processes: 2", []string{"-m", "accelerate.test_utils.scripts.test_script"}},
		{"Test `accumulate` gradient accumulation", []string{"-m", "accelerate.test_utils.scripts.test_sync"}},
		{"accelerate has 2 ranks over gloo", []string{"meets.py", "--", "accelerate"}},
		{"trainer has 2 ranks over gloo", []string{"meets.py", "--", "trainer"}},
		{"lightning has 2 ranks over gloo", []string{"meets.py", "--", "lightning"}},
		{"testing gather_object", []string{"launches.sh", byCommand, "--", "torchrun", "-m", "accelerate.test_utils.scripts.test_ops"}},
		{"testing gather_object", []string{"launches.sh", byCommand, "--", "accelerate", "-m", "accelerate.test_utils.scripts.test_ops"}},
		{"testing gather_object", []string{"launches.sh", byCommand, "--", "deepspeed", "--module", "accelerate.test_utils.scripts.test_ops"}},
		{"imagenet: 2 ranks trained one model", []string{"shapes/imagenet.py", byCommand, "--", "--dist-backend=gloo", "--rank=$NODE_RANK",
			"--world-size=$NUM_NODES", "--dist-url=tcp://$MASTER_ADDR:$MASTER_PORT", "--multiprocessing-distributed"}},
		{"rnn: trainer trained the layer of ps", []string{"shapes/rnn.py"}},
		{"nanogpt, 16 tokens, 7 iterations: 2 ranks trained one model", []string{"shapes/nanogpt.py", "--", "shapes/conf/nanogpt.py",
			"--backend=gloo"}},
		{"ddp: 2 ranks trained one model", []string{"shapes/distributed_train.sh", "NNODES=2", byCommand, "--", "1", "shapes/ddp.py"}},
		{"chat: 2 ranks trained one model", []string{"shapes/chat.sh", byCommand}},
		{"hydra in train: 2 ranks trained one model", []string{"shapes/hydra_lightning.py", "--", "trainer.num_nodes=2",
			"trainer.accelerator=cpu"}},
		{"pipelining: stage 1 of 2 has a falling loss", []string{"shapes/pipelining.py"}},
		{"bf16: 2 ranks trained one model", []string{"shapes/bf16.py", "--deepspeed-config=shapes/conf/bf16.json"}},
		{"fabric: 2 ranks trained one model", []string{"shapes/fabric.py"}},
	} {
		out := u.trains(folder, p.args...)
		u.mustContain(out, p.says)
		if p.args[0] == "meets.py" {
			u.mustContain(out, "The first step that is reported, ")
		}
		if strings.Contains(out, "no rank was connected to another one") {
			u.Errorf("mlenv train %s: its ranks trained alone:\n%s", strings.Join(p.args, " "), shortened(out))
		}
	}
	u.says(u.TempDir(), command.Done, "down")
}

// ordinaryScript runs a script without a line for ml-dev-env, by all defaults: the steps that the log and the receipt show are those of its
// optimizer.
func ordinaryScript(u trainer) {
	e := u.end(u.start("e2e/ordinary.py", oneGPU)).succeeded()
	e.mustContain(e.log("train"), "trained 60 steps", "The first step that is reported, ", "step 60 (from torch.optim)")
	var m struct {
		Step   float64
		Source string
	}
	if err := json.Unmarshal(e.receipt.Metrics, &m); err != nil || m.Step != 60 || m.Source != "torch.optim" {
		e.Errorf("the receipt's metrics are %s, want step 60 from torch.optim", e.receipt.Metrics)
	}
}

// trains runs mlenv train with a program that does its work. On a busy machine Debian's torch often waits for itself in
// destroy_process_group: then the verdict has to be that.
func (u trainer) trains(folder string, args ...string) string {
	u.Helper()
	ctx, cancel := u.within(timeForARunToEnd)
	defer cancel()
	out, err := u.mlenvIn(ctx, folder, append([]string{"train", "--hang-timeout=2m"}, args...)...).CombinedOutput()
	stuck := strings.Contains(string(out), "failed: Hang: ") &&
		(strings.Contains(string(out), "destroy_process_group") || strings.Contains(string(out), "although all other ranks have exited with 0"))
	if code := codeOf(err); code != command.Done && (code != command.Failed || !stuck) {
		u.Fatalf("mlenv train %v: exit code %d, %v, want %d, or %d with a hang at the end\n%s", args, code, err, command.Done, command.Failed,
			shortened(string(out)))
	}
	if err != nil {
		u.Logf("mlenv train %v did its work, and waited for itself at the end", args)
	}
	return string(out)
}
