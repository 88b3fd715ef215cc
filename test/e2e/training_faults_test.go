// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

// thirdNode exists only during a scenario that adds it.
const thirdNode = "node-3"

// addThirdNode adds a node for pods of environments alone, until the scenario ends.
func (u trainer) addThirdNode() {
	u.Helper()
	u.Cleanup(func() { localcluster(u.T, "up", "--nodes=2") })
	localcluster(u.T, "up", "--nodes=3")
	u.kubectl("taint", "node", thirdNode, "e2e=third:NoSchedule")
}

// toleratesThird is the end of gpu_nodes in a cluster file whose environments may use the third node.
const toleratesThird = "]\n  tolerations: [{key: e2e, operator: Exists}]"

// ordinalOn returns the number of the environment's node on a Kubernetes node.
func (u trainer) ordinalOn(node string) string {
	u.Helper()
	return strings.TrimPrefix(u.kubectl("get", "pods", "--selector=ml-dev-env.github.io/environment=ml-dev-env",
		"--output=jsonpath={.items[?(@.spec.nodeName==\""+node+"\")].metadata.name}"), "ml-dev-env-")
}

// nodeCutShort tests that a training survives the loss of a node's network for five seconds.
func nodeCutShort(u trainer) {
	name := u.holding()
	localcluster(u.T, "node", "cut", "node-2")
	defer localcluster(u.T, "node", "join", "node-2")
	const timeWithoutANetwork = 5 * time.Second
	time.Sleep(timeWithoutANetwork)
	localcluster(u.T, "node", "join", "node-2")
	u.releaseDirectly() // the node may not answer at once
	e := u.end(name).succeeded()
	e.mustContain(e.recorded(e.run.UID, "rank-0.log"), "node 0 was released")
	e.mustContain(e.recorded(e.run.UID, "rank-1.log"), "node 1 was released")
}

// holdingOnThird calls holding with an environment on node-1 and on the third node, which runs nothing else.
func (u trainer) holdingOnThird() (name string) {
	u.Helper()
	u.addThirdNode()
	u.install(u.clusterFile("gpu_nodes: [node-1, node-2]", "gpu_nodes: [node-1, "+thirdNode+toleratesThird))
	return u.holding()
}

// loseNode permanently cuts off or stops the third node, which runs one node of a training and nothing else. It calls
// breaking just before. It waits until the step reports the loss, and returns the text of that report.
func (u trainer) loseNode(how string, breaking func()) (name, lost, says string) {
	u.Helper()
	name = u.holdingOnThird()
	lost = u.ordinalOn(thirdNode)
	breaking()
	localcluster(u.T, "node", how, thirdNode)
	says = "node " + lost + ", on Kubernetes node " + thirdNode + ", is gone: its agent has not answered"
	u.waitOutput(name, "train", says)
	return name, lost, says
}

// healthyFree waits until the environment has no pods except on the third node.
func (u trainer) healthyFree() {
	u.Helper()
	ctx, cancel := u.within(timeUntilAllIsReleased)
	defer cancel()
	err := kube.WatchUntil(ctx, "pods on healthy nodes", u.clients.Kube.CoreV1().Pods(u.namespace), metav1.ListOptions{LabelSelector: ours},
		func(pods []*corev1.Pod) (bool, error) {
			left := 0
			for _, pod := range pods {
				if pod.Spec.NodeName != thirdNode {
					left++
				}
			}
			return left == 0, nil
		})
	if err != nil {
		u.Errorf("two minutes after the verdict: %v", err)
	}
}

// nodeLost tests that the training fails if a node is cut off permanently, and that only the GPUs of that node are not
// confirmed free.
func nodeLost(u trainer) {
	name, lost, says := u.loseNode("cut", func() {})
	u.healthyFree()
	e := u.endWithin(name, timeForARunToEnd+timeForTeardown).failed("train", fail.NodeLost, says)
	e.mustContain(e.receipt.Teardown, "pod ml-dev-env-"+lost+" on "+thirdNode+", whose GPUs cannot be confirmed free")
	localcluster(u.T, "up", "--nodes=2") // removes the lost pod
}

// nodeLostWithoutTekton tests the same loss while Tekton's controller is stopped: the reaper releases the environment,
// and the verdict is the step's report once Tekton is back.
func nodeLostWithoutTekton(u trainer) {
	scale := func(replicas string) {
		u.Helper()
		u.kubectl("scale", "deployment/tekton-pipelines-controller", "--namespace=tekton-pipelines", "--replicas="+replicas)
	}
	u.Cleanup(func() { scale("1") })
	name, lost, says := u.loseNode("cut", func() {
		u.suspendReaper(false) // install suspends it
		scale("0")
	})
	u.healthyFree()
	mustGo[*coordinationv1.Lease](u, "leases", u.clients.Kube.CoordinationV1().Leases(u.namespace))
	var left receipt.Receipt
	ctx, cancel := u.within(timeForARunToEnd)
	defer cancel()
	err := kube.WatchUntil(ctx, "receipts", u.clients.Kube.CoreV1().ConfigMaps(u.namespace), named(receipt.Name(name)),
		func(found []*corev1.ConfigMap) (done bool, err error) {
			if len(found) == 0 {
				return false, nil
			}
			left, err = receipt.Read(ctx, u.clients.Kube, u.namespace, name)
			if apierrors.IsNotFound(err) { // the steps have noted what they know
				return false, nil
			}
			return true, err
		})
	if err != nil {
		u.Fatal(err)
	}
	u.equal("the reaper's reason", left.Reason, string(fail.NodeLost))
	u.mustContain(left.Message, says)
	u.mustContain(left.Teardown, "the reaper released the environment", "pod ml-dev-env-"+lost+" on "+thirdNode+
		", whose GPUs cannot be confirmed free")
	scale("1")
	localcluster(u.T, "up", "--nodes=2") // removes the lost pod, which teardown waits for
	u.end(name).failed("train", fail.NodeLost, says)
}

// nodeReplaced tests that a training survives a killed rank, and after that the loss of a Kubernetes node, which
// another node replaces as soon as an administrator follows the instructions in the log.
func nodeReplaced(u trainer) {
	u.addThirdNode()
	u.install(u.clusterFile("gpu_nodes: [node-1, node-2]", "gpu_nodes: [node-1, node-2, "+thirdNode+toleratesThird))
	u.Cleanup(func() { u.kubectl("uncordon", "node-2") })
	u.kubectl("cordon", "node-2") // so that the environment starts on the third node
	flags := []string{"--param=launcher=torchrun", oneGPU, "--param=max-restarts=3", "--param=check-fabric=true"}
	name := u.start("e2e/resumes.py", append(flags, "--param=script-args=--killed,--waits")...)
	u.waitOutput(name, "train", "[0 0] rank 0 waits at step 17\n", "[1 1] rank 1 waits at step 17\n")
	u.kubectl("uncordon", "node-2")
	lost := u.ordinalOn(thirdNode)
	localcluster(u.T, "node", "cut", thirdNode)
	const taint = corev1.TaintNodeOutOfService + "=nodeshutdown:NoExecute"
	u.waitOutput(name, "train", "Kubernetes node "+thirdNode+" is left out from now on: it did not answer", "oc adm taint nodes "+thirdNode+
		" "+taint)
	u.kubectl("taint", "nodes", thirdNode, taint)
	e := u.end(name).succeeded().ranks(2)
	e.mustContain(e.log("train"), "The network is measured again, because node "+lost+" has a new pod.", "Fabric: pass: 2 nodes")
	var got []string
	for _, a := range e.receipt.Attempts {
		got = append(got, fmt.Sprintf("%d %s from %q, left out %s", a.Attempt, a.Reason, a.Checkpoint, a.LeftOut))
	}
	want := []string{
		fmt.Sprintf("1 %s from \"\", left out []", fail.RankFailed), fmt.Sprintf("2 %s from \"step-10\", left out [%s]", fail.NodeLost,
			thirdNode),
		"3  from \"step-15\", left out []",
	}
	e.equal("attempts", fmt.Sprint(got), fmt.Sprint(want))
	e.equal("excluded nodes", fmt.Sprint(e.receipt.ExcludedNodes), fmt.Sprint([]string{thirdNode}))
	var hosts []string
	for _, node := range e.receipt.Nodes {
		hosts = append(hosts, node.KubernetesNode)
	}
	slices.Sort(hosts)
	e.equal("nodes at the end", fmt.Sprint(hosts), fmt.Sprint([]string{"node-1", "node-2"}))
	out, _ := u.says(u.TempDir(), command.Done, "receipt", name)
	e.mustContain(out, "attempt 1", "RankFailed: training: rank 1 on node 1", "attempt 2", "NodeLost: training: node "+lost+
		", on Kubernetes node "+thirdNode, "left out from then on: "+thirdNode, "attempt 3", "Succeeded")
	undisturbed := u.end(u.start("e2e/resumes.py", flags...)).succeeded()
	e.equal("the final loss", e.finalLoss(), undisturbed.finalLoss())
}
