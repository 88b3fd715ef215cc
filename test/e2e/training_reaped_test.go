// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bytes"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/provision"
)

// reaped tests that the installed CronJob releases an environment whose run has ended without
// teardown, and that the run's receipt records it.
func reaped(u trainer) {
	missing := registryHost + "/e2e/no-such-image:1"
	name := u.start("e2e/quick.sh", byShell, oneGPU, "--param=image="+missing)
	u.end(name).failed("preflight", fail.ImageUnavailable, missing)
	var out bytes.Buffer
	if code := command.Run(u.Context(), provision.Command(), []string{"--kubeconfig=" + kubeconfig, "--namespace=" + u.namespace,
		"--cluster-file=" + u.clusterFile(),
		"--steps-image=" + u.steps, "--nodes=2", "--gpus-per-node=1", "--run-name=" + name, "--run-uid=" + string(u.runUID(name))}, &out,
		&out); code != command.Done {
		u.Fatalf("provision ended with %d:\n%s", code, out.String())
	}
	u.equal("the holder", u.kubectl("get", "lease", "ml-dev-env", "--output=jsonpath={.spec.holderIdentity}"), string(u.runUID(name)))
	u.suspendReaper(false)
	u.nothingLeft()
	u.claimsAre("ml-dev-datasets", "ml-dev-workspace")
	u.waitEvent("ml-dev-env", "environment ml-dev-env was released, because pipelinerun "+name+" has ended") // after the receipt
	left, err := receipt.Read(u.Context(), u.clients.Kube, u.namespace, name)
	if err != nil {
		u.Fatal(err)
	}
	u.equal("what the receipt says", left.Teardown, "all pods and GPUs were released by the reaper, because pipelinerun "+name+" has ended")
}
