// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// metrics are the last metrics of docs/examples/transformer.
type metrics struct {
	Step           int
	Passed         bool
	HeldoutLoss    float64 `json:"heldout_loss"`
	UnigramEntropy float64 `json:"unigram_entropy"`
	WeightsAgree   bool    `json:"weights_agree"`
}

// metrics reads the metrics from the receipt and compares them with the run's result.
func (e ending) metrics() metrics {
	e.Helper()
	var m metrics
	if err := json.Unmarshal(e.receipt.Metrics, &m); err != nil {
		e.Fatalf("metrics %q: %v", e.receipt.Metrics, err)
	}
	// Tekton 1.9 leaves the results of failed tasks out of the run's results, and 1.15 does not.
	if result := e.results["metrics"]; result != "" || e.run.IsSuccessful() {
		e.equal("result metrics", compact(e, result), compact(e, string(e.receipt.Metrics)))
	}
	return m
}

func compact(e ending, text string) string {
	e.Helper()
	var value any
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		e.Fatalf("%q: %v", text, err)
	}
	canonical, err := json.Marshal(value)
	if err != nil {
		e.Fatal(err)
	}
	return string(canonical)
}

// transformer starts the example on two nodes. Each rank needs much CPU time to import DeepSpeed.
func (u trainer) transformer(config string, ranksPerNode int, args []string, flags ...string) string {
	u.Helper()
	return u.start("transformer/train.py",
		append([]string{"--param=deepspeed-config=transformer/" + config, "--param=nodes=2", "--param=gpus-per-node=2",
			fmt.Sprintf("--param=ranks-per-node=%d", ranksPerNode), "--param=script-args=" + strings.Join(args, ",")}, flags...)...)
}

// deepspeedShared trains one process in a development environment, and then the same model on two nodes with shared
// storage. Then it trains without gradient exchange, and that run must fail.
func deepspeedShared(u trainer) {
	args := []string{"--steps=100", "--global-batch=4"}
	reference := u.singleProcess(args...)
	u.nothingLeft()
	args = append(args, "--reference-loss="+strconv.FormatFloat(reference, 'f', -1, 64))

	e := u.end(u.transformer("ds_zero2.json", 2, args)).succeeded().ranks(4)
	m := e.metrics()
	if !m.Passed || !m.WeightsAgree || m.HeldoutLoss >= m.UnigramEntropy || m.HeldoutLoss < 0.95*reference || m.HeldoutLoss > 1.05*reference {
		e.Errorf("two nodes ended with %+v; want passed, weights that agree, a loss below the entropy and within 5%% of one process's %.4f", m,
			reference)
	}
	e.equal("the receipt's storage", e.receipt.Storage, string(cluster.SharedStorage))
	e.equal("NCCL_IB_DISABLE", e.receipt.NCCL["NCCL_IB_DISABLE"], "1")
	e.mustContain(e.log("train"), "4 ranks on cpu, gloo, fp32", "ZeRO-2", "[0 0] step 100/100 loss", "progress: step 100 of 100 ")

	e = u.end(u.transformer("ds_zero2.json", 2, append(args, "--no-gradient-exchange"))).failed("train", fail.RankFailed, "exited with 1")
	if m := e.metrics(); m.Passed || m.WeightsAgree {
		e.Errorf("without gradient exchange the training ended with %+v", m)
	}
	e.mustContain(e.log("train"), "comparing the weights' SHA-256", fmt.Sprintf("of the reference: want within 5%% of %.4f", reference))
	u.claimsAre("ml-dev-datasets", "ml-dev-workspace")
}

var heldoutLoss = regexp.MustCompile(`held-out loss ([0-9.]+), unigram entropy`)

// singleProcess trains in a development environment of one node, in a user's shell, and returns
// the held-out loss in nats per byte.
func (u trainer) singleProcess(args ...string) float64 {
	u.Helper()
	name := u.startTkn("pipeline", "dev-environment", "--param=repo-url="+u.repo, "--param=nodes=1", oneGPU)
	const kept = "The environment is kept until"
	u.waitOutput(name, "teardown", kept)
	out := u.kubectl("exec", "ml-dev-env-0", "--container=train", "--", agent.Program, "exec", "sh", "-c",
		"cd "+agent.Current+" && exec python3 transformer/train.py --single --checkpoint-dir= "+strings.Join(args, " "))
	found := heldoutLoss.FindStringSubmatch(out)
	if found == nil {
		u.Fatalf("the single process printed no loss:\n%s", out)
	}
	loss, err := strconv.ParseFloat(found[1], 64)
	if err != nil {
		u.Fatal(err)
	}
	// The log prints this command to release the environment.
	u.kubectl("delete", "lease", "ml-dev-env")
	e := u.end(name).succeeded()
	e.mustContain(e.log("teardown"), "To end it now: mlenv down ml-dev-env -n "+u.namespace)
	return loss
}

// deepspeedNodeStorage stops and resumes from checkpoints on each node's own claim.
func deepspeedNodeStorage(u trainer) {
	const folder = "checkpoints/e2e"
	args := []string{"--steps=60", "--global-batch=4", "--node-local-checkpoints", "--checkpoint-dir=/workspace/" + folder}
	perNode := "--param=storage=volumeClaimTemplates"
	first := u.end(u.transformer("ds_zero3.json", 1, append(args, "--stop-at=30"), perNode)).succeeded().ranks(2)
	if m := first.metrics(); m.Step != 30 {
		u.Errorf("the training stopped after %+v, want step 30", m)
	}
	first.equal("the receipt's storage", first.receipt.Storage, string(cluster.NodeStorage))
	workspaces := []string{"ml-dev-workspace-ml-dev-env-0", "ml-dev-workspace-ml-dev-env-1"}
	first.equal("the claims with the record", strings.Join(first.receipt.Record.Claims, " "), strings.Join(workspaces, " "))
	u.nothingLeft()
	u.claimsAre("ml-dev-datasets-ml-dev-env-0", "ml-dev-datasets-ml-dev-env-1", workspaces[0], workspaces[1])
	for _, claim := range workspaces {
		latest, err := os.ReadFile(filepath.Join(u.volume(claim), folder, "latest"))
		u.equal(fmt.Sprintf("the newest checkpoint on %s (%v)", claim, err), string(latest), "step-000030")
	}

	second := u.end(u.transformer("ds_zero3.json", 1, append(args, "--resume"), perNode)).succeeded()
	second.mustContain(second.log("train"), "resumed from /workspace/"+folder+" at step 30")
	if m := second.metrics(); m.Step != 60 || !m.Passed || m.HeldoutLoss >= m.UnigramEntropy {
		u.Errorf("the training ended with %+v, want step 60 and a loss below the entropy", m)
	}
}

// torchrunScript runs a shell script that calls torchrun, under the random user ID of the
// namespace.
func torchrunScript(u trainer) {
	e := u.end(u.start("e2e/torchrun.sh", byShell, "--param=gpus-per-node=2", "--param=requirements=e2e/requirements.txt")).succeeded().ranks(
		2)
	uids := u.kubectl("get", "namespace", u.namespace, `--output=jsonpath={.metadata.annotations.openshift\.io/sa\.scc\.uid-range}`)
	uid, _, _ := strings.Cut(uids, "/")
	log := e.log("train")
	for node := range 2 {
		e.mustContain(log, fmt.Sprintf("[%d -] node %d of 2: 2 GPUs, 4 ranks in all; uid %s gid 0\n", node, node, uid),
			fmt.Sprintf("[%d -] hostfile: ml-dev-env-0.ml-dev-env-headless.%s.svc slots=2\n", node, u.namespace),
			fmt.Sprintf("[%d -] hostfile: ml-dev-env-1.ml-dev-env-headless.%s.svc slots=2\n", node, u.namespace))
	}
	for rank := range 4 {
		e.mustContain(log, fmt.Sprintf("[%d -] rank %d on ml-dev-env-%d, CPU", rank/2, rank, rank/2))
	}
}
