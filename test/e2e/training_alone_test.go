// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bytes"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/provision"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/syncrepo"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/teardown"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/train"
)

// tasksAlone runs each Task alone, as a user who keeps an environment does.
func tasksAlone(u trainer) {
	task := func(name string, flags ...string) map[string]string {
		u.Helper()
		run, results := u.taskEnd(u.startTkn("task", "mlenv-"+name, flags...))
		if !run.IsSuccessful() {
			u.Fatalf("task %s: %s: %s", name, results["reason"], results["message"])
		}
		return results
	}
	task("teardown") // without an environment
	made := task("provision", "--param=nodes=2", oneGPU, "--param=keep-for=30m")
	u.equal("nodes", made["nodes"], "2")
	u.equal("environment", made["environment"], "ml-dev-env")
	synced := task("sync-repo", "--param=repo-url="+u.repo)
	u.equal("commit", synced["commit"], u.commit)
	for range 2 {
		task("train", "--param=script=e2e/quick.sh", "--param=launcher=command", "--param=tree="+synced["tree"])
	}
	task("teardown")
	u.nothingLeft()
	task("teardown")
	u.claimsAre("ml-dev-datasets", "ml-dev-workspace")
}

// stepsByHand runs the steps' programs on this machine, with a kubeconfig and through the API
// server's port-forward, each of them twice.
func stepsByHand(u trainer) {
	hand := func(cmd *cobra.Command, code int, says string, args ...string) {
		u.Helper()
		var out bytes.Buffer
		args = append([]string{"--kubeconfig=" + kubeconfig, "--namespace=" + u.namespace}, args...)
		if got := command.Run(u.Context(), cmd, args, &out, &out); got != code {
			u.Fatalf("%s %v: exit code %d, want %d:\n%s", cmd.Name(), args, got, code, out.String())
		}
		u.mustContain(out.String(), says)
	}
	hand(teardown.Command(), command.Done, "There is no environment")
	make := []string{"--cluster-file=" + u.clusterFile(), "--steps-image=" + u.steps, "--nodes=2", "--gpus-per-node=1", "--keep-for=30m"}
	hand(provision.Command(), command.Done, "is ready after", make...)
	hand(provision.Command(), command.Done, "The environment exists already, as requested.", make...)
	hand(provision.Command(), command.Failed, "EnvironmentDiffers", append(make, "--gpus-per-node=2")...)
	sync := []string{"--repo-url=" + strings.Replace(u.repo, gitHost, gitAddress, 1), "--ca-file=" + stateDir + "/ca-bundle.crt"}
	hand(syncrepo.Command(), command.Done, u.commit, sync...)
	hand(syncrepo.Command(), command.Done, u.commit, sync...)
	for range 2 {
		hand(train.Command(), command.Done, "[1 -] node 1 of 2 trained", "--script=e2e/quick.sh", "--launcher=command")
	}
	hand(train.Command(), command.Failed, "ScriptNotFound", "--script=e2e/nowhere.sh", "--launcher=command")
	hand(train.Command(), command.WrongUsage, "want auto, deepspeed, torchrun, command, deepspeed-launcher or torchrun-launcher",
		"--script=e2e/quick.sh", "--launcher=mpirun")
	hand(teardown.Command(), command.Done, "All pods are gone and their GPUs free")
	u.nothingLeft()
	hand(teardown.Command(), command.Done, "There is no environment")
}
