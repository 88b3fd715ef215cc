// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// kueueVersions mark pods in different ways.
var kueueVersions = []string{"v0.14.8", "v0.17.0", "v0.19.2"}

// kueueVariable names the version that the scenario kueue tests. Otherwise each night tests the next one.
const kueueVariable = "E2E_KUEUE"

// admittedByKueue tests environments that Kueue admits: one whose queue is missing, one that waits for another workload, one that a more
// urgent workload preempts, and one in a rack. Kueue stays in the cluster.
func admittedByKueue(u trainer) {
	u.queues(cmp.Or(os.Getenv(kueueVariable), kueueVersions[time.Now().YearDay()%len(kueueVersions)]))
	u.kubectl("label", "node", "node-1", "node-2", "example.com/rack=a")
	u.Cleanup(func() { u.kubectl("label", "node", "node-1", "node-2", "example.com/rack-") })
	inQueue := func(name string, flags ...string) {
		u.Helper()
		u.install(u.clusterFile("gpu_nodes: [node-1, node-2]", "gpu_nodes: [node-1, node-2]\n  queue: "+name), flags...)
	}
	inQueue("nowhere")
	u.end(u.start("e2e/quick.sh", byShell, oneGPU)).failed("preflight", fail.QueueUnavailable, "namespace "+u.namespace+
		" has no LocalQueue nowhere")

	inQueue("team-a")
	releases := u.holdsGPUs("first", "")
	name := u.start("e2e/saves.py", "--param=launcher=torchrun", oneGPU, "--param=stop-grace=2m", "--param=max-restarts=1",
		"--param=queue-priority=usual")
	u.waitOutput(name, "provision", "waiting for its queue", "it is number 1 in its ClusterQueue: couldn't assign flavors to pod set",
		"insufficient unused quota for nvidia.com/gpu in flavor h100, 2 more needed")
	out, _ := u.mlenv("doctor")
	u.mustContain(out, "LocalQueue team-a has not admitted it")
	releases()

	u.waitOutput(name, "train", "[0 0] rank 0 starts after step 0\n", "[1 1] rank 1 starts after step 0\n")
	// The ResourceFlavor has this node selector.
	u.mustContain(u.kubectl("get", "pod", "ml-dev-env-1", "--output=jsonpath={.spec.nodeSelector}"), `"kubernetes.io/os":"linux"`)
	u.mustContain(u.kubectl("get", "pod", "ml-dev-env-1", "--output=jsonpath={.metadata.labels}"), `"kueue.x-k8s.io/priority-class":"usual"`)
	releases = u.holdsGPUs("urgent", ", kueue.x-k8s.io/priority-class: urgent")
	u.waitOutput(name, "train", "Attempt 1 failed", "Preempted to accommodate a workload")
	releases()
	e := u.end(name)
	u.continuesWhereItSaved(e)
	e.mustContain(e.receipt.Attempts[0].Message, "Preempted to accommodate a workload")

	u.Cleanup(func() { // objects that belong to no namespace
		u.kubectl("delete", "clusterrolebinding/mlenv-observer-"+u.namespace, "clusterrole/mlenv-observer")
	})
	inQueue("team-b", "--admin")
	// Kueue fills one Kubernetes node with pods that request few GPUs.
	e = u.end(u.start("e2e/quick.sh", byShell, oneGPU)).failed("provision", fail.NodesUnavailable,
		"its queue assigned Kubernetes node node-", "but each needs one of its own")
	e.mustContain(e.log("provision"), "Kueue is asked for nodes with the same value of label example.com/rack.",
		"next: request all GPUs of a Kubernetes node by gpus-per-node")
	u.end(u.start("e2e/quick.sh", byShell, fmt.Sprintf("--param=gpus-per-node=%d", gpusOfNode))).succeeded()
}

// queues adds Kueue to the cluster, where it stays, and two queues to the namespace.
func (u trainer) queues(version string) {
	u.Helper()
	u.Logf("Kueue %s", version)
	localcluster(u.T, "up", "--kueue="+version)
	api := "v1beta1"
	if version == kueueVersions[len(kueueVersions)-1] { // from 0.20 on it is not served
		api = "v1beta2"
		for crd := range strings.FieldsSeq(u.kubectl("get", "crd", "--output=name")) {
			if strings.HasSuffix(crd, ".kueue.x-k8s.io") {
				u.kubectl("patch", crd, "--type=json", `--patch=[{"op": "test", "path": "/spec/versions/0/name", "value": "v1beta1"},
 {"op": "replace", "path": "/spec/versions/0/served", "value": false}]`)
			}
		}
	}
	queues := filepath.Join(u.TempDir(), "queue.yaml")
	content, err := os.ReadFile(filepath.Join("testdata", "queue.yaml"))
	if err == nil {
		err = os.WriteFile(queues, bytes.ReplaceAll(content, []byte("v1beta1"), []byte(api)), 0o644)
	}
	if err != nil {
		u.Fatal(err)
	}
	u.kubectl("apply", "--filename="+queues)
	u.Cleanup(func() { u.kubectl("delete", "--filename="+queues) })
	for name, clusterQueue := range map[string]string{"team-a": "gpus", "team-b": "racks"} {
		u.applyText(fmt.Sprintf("{apiVersion: kueue.x-k8s.io/%s, kind: LocalQueue, "+
			"metadata: {name: %s, namespace: %s}, spec: {clusterQueue: %s}}", api, name, u.namespace, clusterQueue))
		u.kubectl("wait", "localqueue/"+name, "--for=condition=Active", within(timeForTheObjectToChange))
	}
}

// holdsGPUs runs a Job in queue team-a, which holds two GPUs until the returned function is called. labels are more labels of it.
func (u trainer) holdsGPUs(name, labels string) (releases func()) {
	u.Helper()
	u.awaitPullSecret()
	u.applyText(fmt.Sprintf(`{apiVersion: batch/v1, kind: Job, metadata: {name: %s, labels: {kueue.x-k8s.io/queue-name: team-a%s}},
 spec: {parallelism: 2, completions: 2, suspend: true, template: {spec: {restartPolicy: Never, terminationGracePeriodSeconds: 0,
  tolerations: [{key: e2e, operator: Exists}],
  containers: [{name: wait, image: %s, command: [sleep, "1000"],
   resources: {requests: {cpu: 10m, memory: 10Mi}, limits: {nvidia.com/gpu: 1}}}]}}}}`, name, labels, trainingImage))
	u.kubectl("wait", "job/"+name, "--for=jsonpath={.status.ready}=2", within(timeForTheObjectToChange))
	return func() { u.kubectl("delete", "job", name) }
}
