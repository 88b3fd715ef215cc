//go:build e2e

package e2e

import (
	"fmt"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// kueue tests environments that Kueue admits: one whose queue is missing, one that waits for another workload, and one
// that a more urgent workload preempts. Kueue stays in the cluster.
func kueue(u trainer) {
	localcluster(u.T, "up", "--kueue")
	u.kubectl("apply", "--filename=testdata/queue.yaml")
	u.Cleanup(func() { u.kubectl("delete", "--filename=testdata/queue.yaml") })
	u.applyText("{apiVersion: kueue.x-k8s.io/v1beta1, kind: LocalQueue, metadata: {name: team-a, namespace: " + u.namespace + "}, spec: {clusterQueue: gpus}}")
	u.kubectl("wait", "localqueue/team-a", "--for=condition=Active", within(timeForTheObjectToChange))
	inQueue := func(name string) {
		u.Helper()
		u.install(u.clusterFile("gpu_nodes: [node-1, node-2]", "gpu_nodes: [node-1, node-2]\n  queue: "+name))
	}
	inQueue("nowhere")
	u.end(u.start("e2e/quick.sh", byShell, oneGPU)).failed("preflight", fail.QueueUnavailable, "namespace "+u.namespace+" has no LocalQueue nowhere")

	u.awaitPullSecret()
	// job holds two GPUs until it is deleted.
	job := func(name, labels string) {
		u.Helper()
		u.applyText(fmt.Sprintf(`{apiVersion: batch/v1, kind: Job, metadata: {name: %s, namespace: %s, labels: {kueue.x-k8s.io/queue-name: team-a%s}},
 spec: {parallelism: 2, completions: 2, suspend: true, template: {spec: {restartPolicy: Never, terminationGracePeriodSeconds: 0,
  containers: [{name: wait, image: %s, command: [sleep, "1000"], resources: {requests: {cpu: 10m, memory: 10Mi}, limits: {nvidia.com/gpu: 1}}}]}}}}`,
			name, u.namespace, labels, trainingImage))
		u.kubectl("wait", "job/"+name, "--for=jsonpath={.status.ready}=2", within(timeForTheObjectToChange))
	}
	inQueue("team-a")
	job("first", "")
	name := u.start("e2e/attempts.sh", byShell, oneGPU, "--param=max-restarts=2")
	u.waitOutput(name, "provision", "waiting for its queue", "it is number 1 in its ClusterQueue: couldn't assign flavors to pod set", "insufficient unused quota for nvidia.com/gpu in flavor h100, 2 more needed")
	out, _ := u.mlenv("doctor")
	u.mustContain(out, "LocalQueue team-a has not admitted it")
	u.kubectl("delete", "job", "first")

	u.waitOutput(name, "train", "[0 -] node 0 is in attempt 2\n", "[1 -] node 1 is in attempt 2\n")
	// The ResourceFlavor has this node selector.
	u.mustContain(u.kubectl("get", "pod", "ml-dev-env-1", "--output=jsonpath={.spec.nodeSelector}"), `"kubernetes.io/os":"linux"`)
	job("urgent", ", kueue.x-k8s.io/priority-class: urgent")
	u.waitOutput(name, "train", "Attempt 2 failed: ", "Preempted to accommodate a workload")
	u.kubectl("delete", "job", "urgent")
	e := u.end(name).succeeded()
	e.equal("attempts", fmt.Sprint(len(e.receipt.Attempts)), "3")
	e.mustContain(e.receipt.Attempts[1].Message, "Preempted to accommodate a workload")
}
