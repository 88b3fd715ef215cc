// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/cli"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/install/admin"
)

// rails is the part of a cluster file about the local cluster's RDMA devices, as in Barcelona's.
const rails = `  rdma:
    enabled: true
    attachments: [default/eno5np0-network, default/eno6np0-network, default/eno7np0-network, default/eno8np0-network]
    resources: {openshift.io/eno5np0rdma: 1, openshift.io/eno6np0rdma: 1, openshift.io/eno7np0rdma: 1, openshift.io/eno8np0rdma: 1}
`

// ncclSCC lets pods lock memory as on the clusters, with the same SCC.
const ncclSCC = `security:
  ipc_lock: true
  scc: nccl-scc

resources:
`

// withRails returns a cluster file with RDMA and the security block, with the replacements in
// oldNew.
func (u trainer) withRails(security string, oldNew ...string) string {
	changed := strings.NewReplacer(oldNew...).Replace(rails)
	return u.clusterFile("  rdma:\n    enabled: false\n", changed, "resources:\n  requests", security+"  requests")
}

// mlenv runs the command as users do. It returns its output and exit code.
func (u trainer) mlenv(args ...string) (out string, code int) {
	u.Helper()
	var output bytes.Buffer
	args = append(args, "--kubeconfig="+kubeconfig, "--namespace="+u.namespace)
	code = cli.Main(args, &output, &output)
	return output.String(), code
}

// prepare does what an administrator does once. It returns what kubectl apply prints.
func (u trainer) prepare(file string, flags ...string) string {
	u.Helper()
	manifests, code := u.mlenv(append([]string{"admin", file}, flags...)...)
	if code != 0 {
		u.Fatalf("mlenv admin: exit code %d:\n%s", code, manifests)
	}
	return u.applyText(manifests)
}

// railLine matches the output of the script rails.sh.
var railLine = regexp.MustCompile(`node (\d): NCCL_IB_HCA (\S+), GID index (\d*), gloo on (\S+), net1 has received (\d+) bytes`)

// rdmaByAdmin tests environment h-kim in a namespace that an administrator prepared: mode auto
// uses RDMA there, each node has devices with names of its own, and the traffic of the ranks uses
// net1.
func rdmaByAdmin(u trainer) {
	file := u.withRails(ncclSCC)
	u.install(file)
	for _, says := range []string{"created", "unchanged"} {
		u.mustContain(u.prepare(file), "rolebinding.rbac.authorization.k8s.io/mlenv:scc:nccl-scc:ml-dev-sa "+says)
	}
	out, code := u.mlenv("preflight", "--cluster-file="+file, "--name=h-kim", "--gpus-per-node=1")
	if code != 0 {
		u.Errorf("mlenv preflight: exit code %d", code)
	}
	u.mustContain(out, "Verdict: rdma because", "security context constraint nccl-scc", "addresses 10.0.103.0/24")

	name := u.start("e2e/rails.sh", byShell, oneGPU, "--param=name=h-kim", "--param=check-fabric=true")
	e := u.end(name).succeeded()
	u.equal("mode", e.receipt.Mode, "rdma")
	u.equal("verdict of preflight", e.tasks["preflight"].Results["mode"], "rdma")
	u.equal("verdict of check-fabric", e.tasks["check-fabric"].Results["verdict"], "pass")
	u.mustContain(e.tasks["check-fabric"].Results["transport"], "net1")
	if f := e.receipt.Fabric; f == nil || len(f.Devices) != 2 || len(f.DeviceKinds) != 1 || f.DeviceKinds[0].Product.Lowest == 0 {
		u.Errorf("the receipt has no rates of two devices of a kind: %+v", f)
	}
	out = u.tkn("pipelinerun", "logs", name)
	const bytesOfTheLargestMessage = 1 << 20
	var devices []string
	for _, line := range railLine.FindAllStringSubmatch(out, -1) {
		devices = append(devices, line[2])
		u.equal("NCCL's GID index on node "+line[1], line[3], "3")
		u.equal("gloo's interface on node "+line[1], line[4], "net1")
		// More than one of check-fabric's largest messages.
		if received, err := strconv.Atoi(line[5]); err != nil || received < bytesOfTheLargestMessage {
			u.Errorf("node %s has received %s bytes on net1: the ranks' traffic went elsewhere", line[1], line[5])
		}
	}
	// The pods' functions of the NICs depend on the functions that other pods hold. The third ones have the same names on both nodes.
	const third = "=mlx5_12,mlx5_13,mlx5_14,mlx5_15"
	if len(devices) != 2 || devices[0] == devices[1] && devices[0] != third {
		u.Errorf("the nodes have devices %v, want different ones on each\n%s", devices, out)
	}
	u.ownPod()
	u.enters(u.TempDir(), file, successorsOverRDMA(u, file)...)
}

// ownPod tests that a pod that this project did not create finds its device by mlenv-agent rdma exec.
func (u trainer) ownPod() {
	u.Helper()
	// As docs/operate/rdma.md gets it.
	steps := u.kubectl("get", "task", "mlenv-provision", `--output=jsonpath={.spec.params[?(@.name=="steps-image")].default}`)
	u.apply("own-pod.yaml", map[string]string{"REGISTRY": registryHost, "STEPS": steps})
	u.waitFor("jsonpath={.status.phase}=Succeeded", "pod/own")
	device := ownDevice.FindStringSubmatch(u.kubectl("logs", "own", "--container=train"))
	if device == nil {
		u.Fatalf("the pod found no device:\n%s", u.kubectl("logs", "own", "--container=train"))
	}
	u.mustContain(u.kubectl("logs", "own", "--container=train"), "The container's own NCCL_IB_HCA=mlx5_0 is not used.",
		"the command has NCCL_IB_HCA="+device[1]+" and gloo on net1")
}

var ownDevice = regexp.MustCompile(`Auto-detected NCCL_IB_HCA=(=mlx5_\d+): `)

// rdmaNotAllowed tests a namespace without the right to lock memory: mode auto uses TCP with the
// reason; mode rdma fails with the command that grants the right.
func rdmaNotAllowed(u trainer) {
	u.install(u.withRails(ncclSCC))
	grants := "oc adm policy add-scc-to-user nccl-scc -z ml-dev-sa -n " + u.namespace
	refused := u.end(u.start("e2e/quick.sh", byShell, oneGPU, "--param=mode=rdma"))
	u.equal("verdict", string(refused.receipt.Verdict), "Failed")
	u.equal("reason", refused.receipt.Reason, string(fail.RDMAUnavailable))
	u.mustContain(u.tkn("pipelinerun", "logs", refused.run.Name), grants)
	if _, provisioned := refused.tasks["provision"]; provisioned {
		u.Error("an environment was created although RDMA was refused")
	}
	e := u.end(u.start("e2e/quick.sh", byShell, oneGPU)).succeeded()
	u.equal("mode", e.receipt.Mode, "tcp")
	u.mustContain(e.tasks["preflight"].Results["why"], "nccl-scc")

	// Without a pinned SCC the message is OpenShift's own. An administrator, who may use every
	// SCC, also gets the answer for the service account.
	unpinned := u.withRails(strings.Replace(ncclSCC, "  scc: nccl-scc\n", "", 1))
	out, code := u.mlenv("preflight", "--mode=rdma", "--gpus-per-node=1", "--cluster-file="+unpinned)
	u.equal("exit code of mlenv preflight", strconv.Itoa(code), "1")
	u.mustContain(out, "service account ml-dev-sa, which the nodes' pods have, may not use it", grants)
	u.install(unpinned)
	_, results := u.taskEnd(u.startTkn("task", "mlenv-preflight", oneGPU, "--param=mode=rdma"))
	u.mustContain(results["message"], "IPC_LOCK", "capability may not be added")
}

// rdmaAttachments tests that faults of attachments are found before anything is created.
func rdmaAttachments(u trainer) {
	attachment := func(name, resource, subnet string) {
		u.Helper()
		config, err := json.Marshal(`{"cniVersion":"0.3.1","name":"` + name + `","type":"sriov","ipam":{"type":"whereabouts","range":"` + subnet +
			`"}}`)
		if err != nil {
			u.Fatal(err)
		}
		u.applyText(`apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata: {name: ` + name + `, annotations: {k8s.v1.cni.cncf.io/resourceName: ` + resource + `}}
spec: {config: ` + string(config) + `}
`)
	}
	attachment("one", "openshift.io/eno5np0rdma", "10.0.103.0/24")
	attachment("same-range", "openshift.io/eno6np0rdma", "10.0.103.0/24")
	attachment("wrong-resource", "openshift.io/eno9np0rdma", "10.0.106.0/24")
	own := func(names ...string) string {
		for i := range names {
			names[i] = u.namespace + "/" + names[i]
		}
		return "[" + strings.Join(names, ", ") + "]"
	}
	const all = "[default/eno5np0-network, default/eno6np0-network, default/eno7np0-network, default/eno8np0-network]"
	for attached, says := range map[string][]string{
		own("one", "nowhere"):        {"/nowhere", "it does not exist"},
		own("one", "same-range"):     {"overlaps with that of", "collectives hang"},
		own("one", "wrong-resource"): {"openshift.io/eno9np0rdma, which network.rdma.resources of the cluster file does not have"},
	} {
		out, code := u.mlenv("preflight", "--gpus-per-node=1", "--mode=rdma", "--cluster-file="+u.withRails(ncclSCC, all, attached))
		u.equal("exit code of mlenv preflight with "+attached, strconv.Itoa(code), "1")
		u.mustContain(out, says...)
	}
	// Faults that preflight cannot find: the scheduler reports Insufficient.
	wrong := u.withRails("resources:\n", all, own("wrong-resource"), "openshift.io/eno5np0rdma: 1", "openshift.io/eno9np0rdma: 1")
	u.install(wrong)
	const timeForNoPodToStart, timeForPodsToStart = "30s", "2m"
	waiting := u.startTkn("task", "mlenv-provision", "--param=nodes=2", oneGPU, "--param=mode=rdma",
		"--param=start-timeout="+timeForNoPodToStart)
	ctx, cancel := u.within(timeForARunToEnd)
	defer cancel()
	u.waitLog(u.taskPod(ctx, waiting, "provision"), "step-provision", "too little left")
	out, _ := u.mlenv("doctor")
	u.mustContain(out, "(broken: pods do not start)", "the pod asks 1 openshift.io/eno9np0rdma")
	_, results := u.taskEnd(waiting)
	u.mustContain(results["message"], "the pod asks 1 openshift.io/eno9np0rdma and 2 of 2 nodes have too little left")

	// In mode auto the pods are replaced by pods over TCP.
	e := u.end(u.start("e2e/quick.sh", byShell, oneGPU, "--param=start-timeout="+timeForPodsToStart)).succeeded()
	u.equal("verdict of preflight", e.tasks["preflight"].Results["mode"], "rdma")
	u.equal("mode", e.receipt.Mode, "tcp")
	u.mustContain(e.receipt.ModeReason, "the nodes cannot use RDMA", "the pod asks 1 openshift.io/eno9np0rdma")
	out, _ = u.mlenv("status", e.run.Name)
	u.mustContain(out, "tcp, because the nodes cannot use RDMA")
	u.mustContain(u.tkn("pipelinerun", "logs", e.run.Name), "Mode tcp, because the nodes cannot use RDMA")
}

// rdmaMemlock tests pods without IPC_LOCK: the node's limit applies, which is too low. Once their account may use nccl-scc, which the file
// does not name, the pods ask for IPC_LOCK.
func rdmaMemlock(u trainer) {
	file := u.withRails("resources:\n")
	u.install(file)
	_, results := u.taskEnd(u.startTkn("task", "mlenv-provision", "--param=nodes=2", oneGPU, "--param=mode=rdma"))
	u.equal("reason", results["reason"], string(fail.RDMAUnavailable))
	u.mustContain(results["message"], "8 MiB")
	// With mode auto the nodes decide: preflight cannot know their limit.
	e := u.end(u.start("e2e/quick.sh", byShell, oneGPU)).succeeded()
	u.equal("verdict of preflight", e.tasks["preflight"].Results["mode"], "rdma")
	u.equal("mode", e.receipt.Mode, "tcp")
	u.mustContain(e.receipt.ModeReason, "the nodes cannot use RDMA", "8 MiB")
	out, _ := u.mlenv("status", e.run.Name)
	u.mustContain(out, "tcp, because the nodes cannot use RDMA")

	u.prepare(file, "--scc=nccl-scc")
	e = u.end(u.start("e2e/quick.sh", byShell, oneGPU, "--param=mode=rdma")).succeeded()
	u.equal("constraint", e.receipt.Constraint, "nccl-scc")

	// What root has written to the shared claim is no obstacle to the user of the namespace.
	e = u.end(u.start("e2e/quick.sh", byShell, oneGPU, "--param=mode=tcp")).succeeded()
	u.equal("constraint", e.receipt.Constraint, "restricted-v2")
	u.claimsAre("ml-dev-datasets", "ml-dev-workspace")
}

// privilegedGPUs tests privileged pods, as host devices need: they see all GPUs of their node and use those that they were
// given. They have no RDMA devices here, so mode auto uses TCP.
func privilegedGPUs(u trainer) {
	file := u.clusterFile("  rdma:\n    enabled: false\n", "  rdma:\n    enabled: true\n", "resources:\n  requests",
		"security:\n  requires_privileged_scc: true\n  ipc_lock: true\n\nresources:\n  requests")
	u.prepare(file)
	u.install(file)
	e := u.end(u.start("e2e/gpus.sh", byShell, oneGPU)).succeeded()
	u.equal("mode", e.receipt.Mode, "tcp")
	u.mustContain(e.receipt.ModeReason, "looking for RDMA devices")
	log := u.tkn("pipelinerun", "logs", e.run.Name)
	for _, node := range e.receipt.Nodes {
		if len(node.GPUs) != 1 {
			u.Errorf("node %d has %d GPUs, want 1", node.Node, len(node.GPUs))
			continue
		}
		u.mustContain(log, fmt.Sprintf("node %d uses %s and lists %s\n", node.Node, node.GPUs[0], node.GPUs[0]))
	}
	u.task("provision", "--param=nodes=2", oneGPU, "--param=keep-for=30m")
	list, _ := u.says(u.TempDir(), command.Done, "shell", "0", "--", "nvidia-smi", "-L")
	u.equal("GPUs that nvidia-smi lists in a shell", strconv.Itoa(strings.Count(list, "UUID: GPU-")), "1")
	u.task("teardown")
}

// rdmaCapabilities tests that nccl-scc, which allows IPC_LOCK, refuses SYS_RESOURCE, with which
// users try to raise memlock, with OpenShift's own message.
func rdmaCapabilities(u trainer) {
	u.prepare(u.withRails(ncclSCC))
	file := u.withRails(strings.Replace(ncclSCC, "ipc_lock: true", "ipc_lock: true\n  capabilities: [SYS_RESOURCE]", 1))
	refused := []string{"nccl-scc refuses capabilities.add SYS_RESOURCE of container train: capability may not be added"}
	fix := "leave SYS_RESOURCE out of security.capabilities in the cluster file"
	out, code := u.mlenv("preflight", "--mode=rdma", "--gpus-per-node=1", "--cluster-file="+file)
	u.equal("exit code of mlenv preflight", strconv.Itoa(code), "1")
	u.mustContain(out, append(refused, fix)...)
	u.install(file)
	ended, results := u.taskEnd(u.startTkn("task", "mlenv-provision", "--param=nodes=2", oneGPU, "--param=mode=rdma"))
	u.equal("reason", results["reason"], string(fail.SecurityRefused))
	u.mustContain(results["message"], refused...)
	u.mustContain(u.kubectl("logs", ended.Status.PodName, "--container=step-provision"), fix)
}

// rdmaUnreferenced tests pods with devices but without attachments: they have no net1, and ranks
// that are configured to use it fail.
func rdmaUnreferenced(u trainer) {
	const attachments = "    attachments: [default/eno5np0-network, default/eno6np0-network, default/eno7np0-network, " +
		"default/eno8np0-network]\n"
	file := u.withRails(ncclSCC, attachments, "", "openshift.io/eno8np0rdma: 1}\n",
		"openshift.io/eno8np0rdma: 1}\n  tcp:\n    interface_exclude: net1\n")
	u.prepare(file)
	out, _ := u.mlenv("preflight", "--gpus-per-node=1", "--cluster-file="+file)
	u.mustContain(out, "without network.rdma.attachments", "Bootstrap : no socket interface found", "mlenv admin clusters/local.yaml -n "+
		u.namespace)
	u.install(file)
	ended, results := u.taskEnd(u.startTkn("task", "mlenv-provision", "--param=nodes=2", oneGPU, "--param=mode=rdma"))
	u.equal("reason", results["reason"], string(fail.RDMAUnavailable))
	u.mustContain(results["message"], "looking for ports that can be used")
	u.mustContain(u.kubectl("logs", ended.Status.PodName, "--container=step-provision"), "network.rdma.attachments of the cluster file")

	u.task("provision", "--param=nodes=2", oneGPU, "--param=mode=tcp", "--param=keep-for=30m")
	_, results = u.taskEnd(u.startTkn("task", "mlenv-check-fabric"))
	u.equal("reason", results["reason"], string(fail.NetworkBroken))
	u.mustContain(results["message"], "NoSocketInterface", "no interface of the pod matches", "network attachments")
	u.task("teardown")
}

// rdmaTraining tests that DeepSpeed trains over the rails and sends little anywhere else. Then
// doctor reports a training that hangs.
func rdmaTraining(u trainer) {
	// The expected rate is higher than the stand-in's.
	file := u.withRails(ncclSCC, "enabled: true\n", "enabled: true\n    expected: {host_rdma: 28.3GB/s}\n")
	u.prepare(file)
	u.install(file)
	u.mustContain(u.task("provision", "--param=nodes=2", oneGPU, "--param=mode=auto", "--param=keep-for=30m"), "Mode rdma because")

	// The agent gives NCCL's settings to what it starts, not to the container.
	if out := u.kubectl("exec", "ml-dev-env-0", "--container=train", "--", "env"); strings.Contains(out, "NCCL_IB_HCA=") {
		u.Errorf("the container has NCCL_IB_HCA, which docs/project/from-scripts.md denies:\n%s", out)
	}
	environment, _ := u.says(u.TempDir(), command.Done, "shell", "0", "--", "env")
	u.mustContain(environment, "\nNCCL_IB_HCA==mlx5_")

	out, code := u.mlenv("check-fabric")
	u.equal("exit code of mlenv check-fabric", strconv.Itoa(code), "0")
	u.mustContain(out, "gloo over net1", "host_rdma between nodes 0 and 1, on net1: ", "expected 28.3 GB/s")
	if rows := hostRow.FindAllString(out, -1); len(rows) != 4 {
		u.Errorf("%d rows about RDMA between the hosts' memories; want one for each of 4 rails:\n%s", len(rows), out)
	}

	synced, results := u.taskEnd(u.startTkn("task", "mlenv-sync-repo", "--param=repo-url="+u.repo))
	if !synced.IsSuccessful() {
		u.Fatalf("task sync-repo: %s", results["message"])
	}
	before := u.received()
	u.task("train", "--param=script=transformer/train.py", "--param=deepspeed-config=transformer/ds_zero2.json",
		"--param=script-args=--steps=20,--stop-at=10,--global-batch=4,--checkpoint-dir=", "--param=tree="+results["tree"])
	after := u.received()
	// Each of ten steps exchanges the gradients of 132,864 parameters once.
	const bytesOfTheGradients = 10 * 132_864 * 4
	for node := range before {
		net1, eth0 := after[node][0]-before[node][0], after[node][1]-before[node][1]
		if net1 < bytesOfTheGradients || net1 < 10*eth0 {
			u.Errorf("node %d received %d bytes on net1 and %d on eth0 while it trained, want the gradients on net1", node, net1, eth0)
		}
	}

	const timeUntilTheHangIsCancelled = "5m"
	hanging := u.startTkn("task", "mlenv-train", "--param=script=e2e/hang.py", "--param=launcher=torchrun", "--param=tree="+results["tree"],
		"--param=timeout="+timeUntilTheHangIsCancelled)
	ctx, cancel := u.within(timeForARunToEnd)
	defer cancel()
	u.waitLog(u.taskPod(ctx, hanging, "train"), "step-train", "rank 0 waits for rank 1")
	out, _ = u.mlenv("doctor", "--quiet-after=1ms")
	u.mustContain(out, "NoProgress", "no rank has printed anything", "rank ", "stacks-")
	u.tkn("taskrun", "cancel", hanging)
	u.task("teardown")
}

// hostRow matches a row of check-fabric about RDMA between the memories of hosts. The stand-in sends 1 Gb/s at most.
var hostRow = regexp.MustCompile(`(?m)^host_rdma +nodes 0 and 1, on net[1-4] +65\.5 kB +\S+ +0\.[01]\d* GB/s`)

// received returns the bytes that each of two nodes has received on net1 and on eth0.
func (u trainer) received() (nodes [2][2]int) {
	u.Helper()
	for node := range nodes {
		out := u.kubectl("exec", "ml-dev-env-"+strconv.Itoa(node), "--container=train", "--",
			"cat", "/sys/class/net/net1/statistics/rx_bytes", "/sys/class/net/eth0/statistics/rx_bytes")
		for i, text := range strings.Fields(out) {
			bytes, err := strconv.Atoi(text)
			if err != nil || i > 1 {
				u.Fatalf("reading counters of node %d: %q", node, out)
			}
			nodes[node][i] = bytes
		}
	}
	return nodes
}

// sharingPod is a pod that uses the cards of a node, too.
const sharingPod = `apiVersion: v1
kind: Pod
metadata:
  name: sharing
  annotations:
    k8s.v1.cni.cncf.io/networks: default/eno5np0-network,default/eno6np0-network,default/eno7np0-network,default/eno8np0-network
spec:
  serviceAccountName: ml-dev-sa
  containers:
  - {name: main, image: ` + trainingImage + `, command: [sleep, infinity], resources: {limits: {rdma/rdma_shared_device_eth: 1}}}
`

// rdmaShared tests RDMA as OpenShift's guide to GPUDirect RDMA sets it up, in the profile shared-devices: mlenv init finds the cards that
// all pods share, and the ranks use them by the GIDs of their own macvlans. On one node, those of another pod come before them.
func rdmaShared(u trainer) {
	file := filepath.Join(u.TempDir(), "found.yaml")
	if out, code := u.mlenv("init", "found", "--to="+file); code != 0 {
		u.Fatalf("mlenv init: exit code %d:\n%s", code, out)
	}
	u.install(file)
	u.Cleanup(func() { u.kubectl("delete", "--ignore-not-found", "securitycontextconstraints", admin.OwnSCC) })
	u.prepare(file, "--scc="+admin.OwnSCC)
	out, _ := u.mlenv("preflight", "--cluster-file="+file, "--image="+trainingImage)
	u.mustContain(out, "Verdict: rdma because", "by shared devices: 4 attachments, 1 resource", "rdma/rdma_shared_device_eth 63, 63 free")

	u.applyText(sharingPod)
	u.waitFor("condition=Ready", "pod/sharing")
	name := u.start("e2e/rails.sh", byShell, oneGPU, "--param=image="+trainingImage, "--param=check-fabric=true")
	e := u.end(name).succeeded()
	u.equal("mode", e.receipt.Mode, "rdma")
	u.equal("constraint", e.receipt.Constraint, admin.OwnSCC)
	for _, node := range e.receipt.Nodes {
		var devices []string
		for _, rail := range node.Rails {
			devices = append(devices, rail.Device)
		}
		u.equal("devices of node "+strconv.Itoa(node.Node), strings.Join(devices, " "), "mlx5_2 mlx5_3 mlx5_4 mlx5_5")
	}
	var indexes []string
	for _, line := range railLine.FindAllStringSubmatch(u.tkn("pipelinerun", "logs", name), -1) {
		indexes = append(indexes, line[3])
	}
	slices.Sort(indexes)
	u.equal("NCCL's GID indexes", strings.Join(indexes, " "), "5 9")
	u.kubectl("delete", "pod", "sharing", "--now")
}

// rdmaFaults tests that a rail that is down, and devices that the cluster file does not expect,
// are reported and not used, and that check-fabric names a cable that is cut during the
// measurement within its timeout.
func rdmaFaults(u trainer) {
	file := u.withRails(ncclSCC, "enabled: true", "enabled: true\n    devices: mlx5_0,mlx5_1")
	u.install(file)
	u.prepare(file)
	u.Cleanup(func() { localcluster(u.T, "up", "--rdma-fault=none") })
	localcluster(u.T, "up", "--rdma-fault=node-2:eno8np0=down")
	log := u.task("provision", "--param=nodes=2", oneGPU, "--param=mode=rdma", "--param=keep-for=30m")
	u.mustContain(log, "3 networks join all nodes", "network.rdma.devices", "mlx5_0")
	out, code := u.mlenv("rdma", "--check", "--cluster-file="+file)
	u.equal("exit code of mlenv rdma --check", strconv.Itoa(code), "1")
	u.mustContain(out, "DOWN", "expected 52.0 GB/s") // what one GPU moves
	out, _ = u.mlenv("doctor")
	u.mustContain(out, "PortDown", "RailMissing")
	u.task("teardown")
	localcluster(u.T, "up", "--rdma-fault=none")

	name := u.start("e2e/rails.sh", byShell, oneGPU, "--param=mode=rdma", "--param=check-fabric=true")
	u.waitOutput(name, "check-fabric", "Measuring 2 nodes")
	cable := func(state string) {
		u.Helper()
		if out, err := run(u.T, nil, "ip", "-n", "mlenv-fabric", "link", "set", "node-2-eno5np0", state); err != nil {
			u.Fatalf("%v\n%s", err, out)
		}
	}
	cable("down")
	defer cable("up")
	e := u.end(name).failed("check-fabric", fail.NetworkBroken, "net1")
	const timeForTheCheck, timeToEndItsJobs = 90 * time.Second, 10 * time.Second
	if took := e.stepTook("check-fabric"); took > timeForTheCheck+timeToEndItsJobs {
		u.Errorf("check-fabric took %s; want at most its limit of %s and %s to end", took, timeForTheCheck, timeToEndItsJobs)
	}
}

// rdmaSlowNode tests that check-fabric names the slow node of three. The third node exists only
// during this scenario.
func rdmaSlowNode(u trainer) {
	u.addThirdNode()
	file := u.clusterFile("  rdma:\n    enabled: false\n", rails, "resources:\n  requests", ncclSCC+"  requests",
		"gpu_nodes: [node-1, node-2]", "gpu_nodes: [node-1, node-2, "+thirdNode+toleratesThird)
	u.install(file)
	u.prepare(file)
	u.task("provision", "--param=nodes=3", oneGPU, "--param=mode=rdma", "--param=keep-for=30m")
	const slowed = thirdNode
	shape := func(what ...string) {
		u.Helper()
		args := append([]string{"netns", "exec", "mlenv-" + slowed, "tc", "qdisc"}, what...)
		if out, err := run(u.T, nil, "ip", args...); err != nil {
			u.Fatalf("%v\n%s", err, out)
		}
	}
	shape("add", "dev", "eno5np0", "root", "tbf", "rate", "200mbit", "burst", "256kb", "latency", "50ms")
	defer shape("del", "dev", "eno5np0", "root")
	ordinal := u.ordinalOn(slowed)
	out, code := u.mlenv("check-fabric", "--fabric-bandwidth=fail")
	u.equal("exit code of mlenv check-fabric", strconv.Itoa(code), "1")
	u.mustContain(out, "node "+ordinal+" ("+slowed+"): pairs with it exchange down to ", "rail net1 (10.0.103.0/24): ")
	u.task("teardown")
}
