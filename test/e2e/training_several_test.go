// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"strconv"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// busyEnvironment starts a second and a third run of a busy environment: one is configured to
// fail, the other to wait, and neither they nor the reaper disturb the first run.
func busyEnvironment(u trainer) {
	u.suspendReaper(false)
	first := u.holding()
	second := u.start("e2e/quick.sh", byShell, oneGPU)
	e := u.end(second).failed("preflight", fail.EnvironmentBusy, "it is held by", first)
	e.mustContain(e.log("teardown"), "is left alone")

	third := u.start("e2e/quick.sh", byShell, oneGPU, "--param=on-busy=wait")
	u.waitOutput(third, "provision", "Waiting for environment ml-dev-env: it is held by")
	u.release("ml-dev-env-0", "release")
	held := u.end(first).succeeded().ranks(2)
	held.equal("metrics", compact(held, held.results["metrics"]), `{"loss":0.5,"step":3,"steps":3}`)
	u.end(third).succeeded().ranks(2)
	u.claimsAre("ml-dev-datasets", "ml-dev-workspace")
}

// besideAColleague tests that mlenv run uses an environment of its own while another run holds the default one, with
// the same claims, and that neither run disturbs the other's tree and job.
func besideAColleague(u trainer) {
	first := u.holding()
	dir := u.project(map[string]string{"train.sh": "test -e /workspace/.mlenv/environments/$MLENV_NAME/repo/train.sh && readlink " +
		"/workspace/repo\n"})
	_, problems := u.says(dir, command.Done, append([]string{"run", ".", "train.sh"}, runFlags()...)...)
	u.mustContain(problems, "Environment ml-dev-env is held by pipelinerun "+first, "This run uses environment ml-dev-env-")
	u.release("ml-dev-env-0", "release")
	u.end(first).succeeded().ranks(2)
	u.claimsAre("ml-dev-datasets", "ml-dev-workspace")
}

// twoEnvironments tests two users who train at the same time, each in a namespace of their own. In the second
// namespace, the pods have no label with their index, and the run names a cluster file other than the one that was
// installed last.
func twoEnvironments(u trainer) {
	other := u.trainer(newUserIn(u.T, u.namespace+"-h-kim"))
	other.kubectl("annotate", "namespace", other.namespace, "localcluster/no-pod-index=true")
	other.installChanged("name: local\n", "name: other\n", "default_nodes: 2", "default_nodes: 1", "mode: rwx", "mode: volumeClaimTemplates",
		namedImage, "  name: "+registryHost+"/nowhere:1\n")
	one := u.start("e2e/hold.sh", byShell, oneGPU)
	two := other.start("e2e/hold.sh", byShell, oneGPU, "--param=name=h-kim", "--param=cluster=local")
	u.waitOutput(one, "train", "[1 -] node 1 holds the environment")
	other.waitOutput(two, "train", "[1 -] node 1 holds the environment")
	u.release("ml-dev-env-0", "release")
	other.release("h-kim-0", "release")
	u.equal("environment", u.end(one).succeeded().receipt.Environment, "ml-dev-env")
	second := other.end(two).succeeded()
	u.equal("environment", second.receipt.Environment, "h-kim")
	u.equal("nodes", strconv.Itoa(len(second.receipt.Nodes)), "2")
	u.equal("storage", second.receipt.Storage, string(cluster.SharedStorage))
	u.mustContain(second.receipt.Image, strings.TrimSuffix(trainingImage, ":latest"))
	u.mustContain(other.tkn("pipelinerun", "logs", two), "--param=pull-secret=registry-pull")
	u.claimsAre("ml-dev-datasets", "ml-dev-workspace")
	other.claimsAre("h-kim-datasets", "h-kim-workspace")
	other.nothingLeft()
}
