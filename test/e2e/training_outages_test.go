// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/provision"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/teardown"
)

// outage is the time for which a service of the cluster is down.
const outage = 30 * time.Second

// releaseDirectly is release for a cluster that may not answer: from this machine, without kubectl.
func (u trainer) releaseDirectly() {
	u.Helper()
	if err := os.WriteFile(filepath.Join(u.volume("ml-dev-workspace"), "release"), nil, 0o644); err != nil {
		u.Fatal(err)
	}
}

// inEachTask starts a training, and breaks something when each task of the run has started.
func (u trainer) inEachTask(breaking func()) {
	u.Helper()
	name := u.start("e2e/hold.sh", byShell, oneGPU)
	for _, task := range []string{"preflight", "provision", "sync-repo", "train", "teardown"} {
		u.startedPod(name, task, "")
		if task == "train" {
			u.waitOutput(name, task, "[0 -] node 0 holds the environment", "[1 -] node 1 holds the environment")
		}
		u.Logf("breaking during %s", task)
		breaking()
		if task == "train" {
			u.releaseDirectly()
		}
	}
	e := u.endWithin(name, 2*timeForARunToEnd).succeeded().ranks(2)
	for node := range 2 {
		e.mustContain(e.recorded(e.run.UID, fmt.Sprintf("rank-%d.log", node)), fmt.Sprintf("node %d was released", node))
	}
}

// apiServerAwayInEachTask tests a run during which the API server is away once in every task.
func apiServerAwayInEachTask(u trainer) {
	u.inEachTask(func() {
		u.killControlPlane()
		time.Sleep(outage) // no event marks the end
		localcluster(u.T, "up")
	})
}

// tektonRestarted tests a run during which Tekton's controller is killed in every task.
func tektonRestarted(u trainer) {
	u.inEachTask(func() {
		u.kubectl("delete", "pods", "--namespace=tekton-pipelines", "--selector=app=tekton-pipelines-controller", "--now")
	})
}

// etcdSlow tests a run on a cluster whose etcd stands still for most of the time.
func etcdSlow(u trainer) {
	defer u.slow("etcd", 300*time.Millisecond, 700*time.Millisecond)()
	u.endWithin(u.start("e2e/quick.sh", byShell, oneGPU), 2*timeForARunToEnd).succeeded()
}

// slow stops and resumes a component of the local cluster in turns. The returned function ends this.
func (u trainer) slow(component string, works, stands time.Duration) (end func()) {
	u.Helper()
	pid, stop, stopped := components(u.T)[component], make(chan struct{}), make(chan struct{})
	if pid == 0 {
		u.Fatalf("%s does not run", component)
	}
	go func() {
		defer close(stopped)
		for {
			_ = syscall.Kill(pid, syscall.SIGSTOP)
			select {
			case <-stop:
			case <-time.After(stands):
			}
			_ = syscall.Kill(pid, syscall.SIGCONT)
			select {
			case <-stop:
				return
			case <-time.After(works):
			}
		}
	}()
	return sync.OnceFunc(func() {
		close(stop)
		<-stopped
	})
}

// killControlPlane kills the API server and the controller manager, which the next localcluster up starts again. A
// controller manager that outlives its API server may watch again only half a minute after the API server is back.
// Until then it misses the renewed Leases of nodes, considers the nodes dead, and removes Tekton's webhook from its
// Service.
func (u trainer) killControlPlane() {
	u.Helper()
	u.kill("kube-apiserver")
	u.kill("kube-controller-manager")
}

// kill kills a component of the local cluster, which the next localcluster up starts again.
func (u trainer) kill(component string) {
	u.Helper()
	u.Cleanup(func() { localcluster(u.T, "up") })
	if err := kill(components(u.T)[component]); err != nil {
		u.Fatalf("killing %s: %v", component, err)
	}
}

// registryAway tests nodes whose image cannot be pulled until the registry is back.
func registryAway(u trainer) {
	cordon := func(verb string) { u.kubectl(verb, "node-1", "node-2") }
	cordon("cordon")
	u.Cleanup(func() { cordon("uncordon") })
	var out bytes.Buffer
	done := make(chan int, 1)
	where := []string{"--kubeconfig=" + kubeconfig, "--namespace=" + u.namespace}
	args := append([]string{"--cluster-file=" + u.clusterFile(), "--steps-image=" + u.steps, "--nodes=2", "--gpus-per-node=1",
		"--keep-for=30m"}, where...)
	go func() { done <- command.Run(u.Context(), provision.Command(), args, &out, &out) }()
	u.kubectl("wait", "--for=create", "pod/ml-dev-env-0", within(timeForTheObjectToChange))
	u.kill("registry")
	cordon("uncordon")
	u.waitEvent("ml-dev-env-0", "Failed to pull image")
	localcluster(u.T, "up")
	if code := <-done; code != command.Done {
		u.Errorf("provision ended with %d", code)
	}
	u.mustContain(out.String(), "is ready after")
	if code := command.Run(u.Context(), teardown.Command(), where, &out, &out); code != command.Done {
		u.Errorf("teardown ended with %d:\n%s", code, out.String())
	}
}

// dnsAway tests that a training does not need DNS, and that a run that needs DNS fails with a reason before it holds a
// GPU.
func dnsAway(u trainer) {
	scale := func(replicas string) {
		u.kubectl("scale", "deployment/coredns", "--namespace=kube-system", "--replicas="+replicas)
	}
	name := u.holding()
	u.Cleanup(func() {
		scale("1")
		u.kubectl("rollout", "status", "deployment/coredns", "--namespace=kube-system", within(timeForTheObjectToChange))
	})
	scale("0")
	u.kubectl("wait", "--for=delete", "pods", "--selector=k8s-app=kube-dns", "--namespace=kube-system", within(timeForTheObjectToChange))
	u.releaseDirectly()
	u.end(name).succeeded()
	u.end(u.start("e2e/quick.sh", byShell, oneGPU)).failed("preflight", fail.RepositoryUnavailable, gitHost)
}

// gitAway tests the git server's absence before the run, and while the nodes start.
func gitAway(u trainer) {
	u.kill("git")
	u.end(u.start("e2e/quick.sh", byShell, oneGPU)).failed("preflight", fail.RepositoryUnavailable, gitHost)
	u.claimsAre() // nothing was created
	localcluster(u.T, "up")
	name := u.start("e2e/quick.sh", byShell, oneGPU)
	u.startedPod(name, "provision", "")
	u.kill("git")
	u.waitOutput(name, "sync-repo", gitHost+" cannot be reached; trying again in ")
	localcluster(u.T, "up")
	u.end(name).succeeded()
}

// gitSlow tests a git server that is slow, breaks off in the middle of a transfer, and at last answers nothing.
func gitSlow(u trainer) {
	big := filepath.Join(u.TempDir(), "big")
	if err := os.Mkdir(big, 0o755); err != nil {
		u.Fatal(err)
	}
	noise := make([]byte, 128<<20) // random bytes, which git cannot compress
	_, _ = rand.Read(noise)
	if err := os.WriteFile(filepath.Join(big, "noise"), noise, 0o644); err != nil {
		u.Fatal(err)
	}
	u.repo, u.commit = serveRepository(u.T, map[string]string{"big": big, "e2e": filepath.Join("testdata", "repo")})
	name := u.start("e2e/quick.sh", byShell, oneGPU)
	u.startedPod(name, "provision", "")
	fast := u.slow("git", 5*time.Millisecond, 495*time.Millisecond)
	defer fast()
	u.waitOutput(name, "sync-repo", "Receiving objects")
	u.kill("git")
	fast()
	u.waitOutput(name, "sync-repo", "The connection to "+gitHost+" broke off; trying again in ")
	localcluster(u.T, "up")
	u.end(name).succeeded()

	defer u.slow("git", 0, time.Hour)()
	began := time.Now()
	u.end(u.start("e2e/quick.sh", byShell, oneGPU)).failed("sync-repo", fail.RepositoryUnavailable, gitHost, "within 2m0s")
	u.Logf("the silence of the git server ended a run after %s", time.Since(began).Round(time.Second))
}

// logFull tests a run whose nodes have no room for the logs of pods: the record has every line.
func logFull(u trainer) {
	for _, node := range []string{"node-1", "node-2"} {
		folder := filepath.Join(stateDir, "nodes", node, "pod-logs")
		if err := syscall.Mount("tmpfs", folder, "tmpfs", 0, "size=64k"); err != nil {
			u.Fatal(err)
		}
		u.Cleanup(func() {
			if err := syscall.Unmount(folder, syscall.MNT_DETACH); err != nil { // the kubelet has open files there
				u.Error(err)
			}
		})
	}
	e := u.end(u.start("e2e/wild.py", byShell, oneGPU)).succeeded()
	e.hasWildOutput()
	if log := e.log("train"); strings.Contains(log, "line 299999\n") {
		e.Error("the log of the step has its last lines: the disk was not full")
	}
	out, code := u.mlenv("logs", e.run.Name, "--rank=0")
	if code != 0 {
		u.Errorf("mlenv logs: exit code %d", code)
	}
	u.mustContain(out, "line 299999\n")
}

// workspaceFull tests ranks that fill the workspace.
func workspaceFull(u trainer) {
	u.smallClaim("ml-dev-workspace", "32m")
	u.end(u.start("e2e/fills.py", byShell, oneGPU)).failed("train", fail.DiskFull, "No space left on device")
}

// smallClaim creates a shared claim with a disk of this size.
func (u trainer) smallClaim(name, size string) {
	u.Helper()
	u.applyText(`{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: ` + name + `},
 spec: {storageClassName: nfs-csi, accessModes: [ReadWriteMany], resources: {requests: {storage: 1Gi}}}}`)
	u.kubectl("wait", "persistentvolumeclaim/"+name, "--for=jsonpath={.status.phase}=Bound", within(timeForTheObjectToChange))
	folder := u.volume(name)
	if err := syscall.Mount("tmpfs", folder, "tmpfs", 0, "size="+size+",mode=0777"); err != nil {
		u.Fatal(err)
	}
	u.Cleanup(func() {
		if err := syscall.Unmount(folder, 0); err != nil {
			u.Error(err)
		}
	})
}

// twoControllers tests a run during which the leader of two Tekton controllers is killed.
func twoControllers(u trainer) {
	const deployment = "deployment/tekton-pipelines-controller"
	scale := func(replicas string) {
		u.kubectl("scale", deployment, "--namespace=tekton-pipelines", "--replicas="+replicas)
		u.kubectl("rollout", "status", deployment, "--namespace=tekton-pipelines", within(timeForTheObjectToChange))
	}
	u.Cleanup(func() { scale("1") })
	scale("2")
	name := u.holding()
	leaders := u.kubectl("get", "leases", "--namespace=tekton-pipelines",
		"--output=jsonpath={range .items[*]}{.metadata.name}={.spec.holderIdentity}{\"\\n\"}{end}")
	leader := regexp.MustCompile(`(?m)reconciler\.pipelinerun\..*=(tekton-pipelines-controller-[^_\n]+)`).FindStringSubmatch(leaders)
	if leader == nil {
		u.Fatalf("no controller leads:\n%s", leaders)
	}
	u.kubectl("delete", "pod", leader[1], "--namespace=tekton-pipelines", "--now")
	u.releaseDirectly()
	u.end(name).succeeded().ranks(2)
}

// sameName tests a run that is deleted while it trains and at once created again under its name.
func sameName(u trainer) {
	started := u.tkn("pipeline", "start", "train-multi-node", "--dry-run", "--serviceaccount="+launch.ServiceAccount,
		"--use-param-defaults", "--skip-optional-workspace",
		"--param=repo-url="+u.repo, "--param=script=e2e/hold.sh", "--param=check-fabric=false", byShell, oneGPU)
	manifest := regexp.MustCompile(`generateName: .*`).ReplaceAllString(started, "name: again")
	u.applyText(manifest)
	u.waitOutput("again", "train", "[0 -] node 0 holds the environment", "[1 -] node 1 holds the environment")
	first, pod := u.runUID("again"), u.startedPod("again", "train", "")
	u.kubectl("delete", "pipelinerun", "again", "--wait=false")
	u.kubectl("wait", "--for=delete", "pipelinerun/again", within(timeForTheObjectToChange))
	u.applyText(manifest)
	if second := u.runUID("again"); second == first {
		u.Fatalf("the run was not created again")
	}
	u.startedPod("again", "train", pod.UID) // the pod of the first run may still exist
	u.waitOutput("again", "train", "[0 -] node 0 holds the environment", "[1 -] node 1 holds the environment")
	u.releaseDirectly()
	u.end("again").succeeded().ranks(2)
}

// lateForRendezvous tests that, within a minute, the log names the rank that the others wait for, and reports what that
// rank does.
func lateForRendezvous(u trainer) {
	name := u.start("e2e/late.py", "--param=launcher=torchrun", oneGPU)
	u.waitOutput(name, "train", "The other ranks wait at the rendezvous, port 29500 of node 0, for ")
	u.releaseDirectly()
	e := u.end(name).succeeded().ranks(2)
	log := e.log("train")
	e.mustContain(log, "[0 0] rank 0 met the others", "[1 1] rank 1 met the others")
	if late := regexp.MustCompile(`since the first came: rank 1 on node 1 (sleeps|is) in `); !late.MatchString(log) {
		e.Errorf("the log does not match %s:\n%s", late, log)
	}
	waited := regexp.MustCompile(`for (\S+) since the first came`).FindStringSubmatch(log)
	const timeUntilTheLateRankIsNamed = time.Minute
	if took, err := time.ParseDuration(waited[1]); err != nil || took > timeUntilTheLateRankIsNamed {
		e.Errorf("rank 1 was named after %s (%v), want %s at most", waited[1], err, timeUntilTheLateRankIsNamed)
	}
}

// wildOutput tests that the record has the output of a rank, byte for byte.
func wildOutput(u trainer) {
	e := u.end(u.start("e2e/wild.py", byShell, oneGPU)).succeeded()
	e.hasWildOutput()
	log := e.log("train")
	e.mustContain(log, "line 299999\n", "the end, without a newline")
	if strings.Contains(log, "\x1b]0;") {
		e.Error("the log has a terminal's control sequence")
	}
}

// hasWildOutput compares the record with what wild.py prints.
func (e ending) hasWildOutput() {
	e.Helper()
	var want bytes.Buffer
	want.WriteString(strings.Repeat("x", 10_000_000) + "\n")
	for b := range 256 {
		want.WriteByte(byte(b))
	}
	want.WriteString("\xff\xfe\xed\xa0\x80\x1b]0;title\x07\n")
	for number := range 300_000 {
		fmt.Fprintf(&want, "line %d\n", number)
	}
	want.WriteString("the end, without a newline")
	if got := e.recorded(e.run.UID, "rank-0.log"); got != want.String() {
		e.Errorf("the record of rank 0: %s", firstDifference(got, want.String()))
	}
}

// leaseStolen tests that a training ends if another user takes its environment by force, and that its run does not
// delete the new holder's pods.
func leaseStolen(u trainer) {
	name := u.holding()
	u.kubectl("patch", "lease", "ml-dev-env", "--type=merge",
		`--patch={"spec":{"holderIdentity":"thief"},"metadata":{"annotations":{"ml-dev-env.github.io/holder-name":"thief",`+
			`"ml-dev-env.github.io/holder-kind":"Person"}}}`)
	e := u.end(name)
	e.equal("the receipt's reason", e.receipt.Reason, string(fail.EnvironmentMissing))
	e.mustContain(e.receipt.Message, "it is held by thief")
	for node := range 2 {
		e.mustContain(e.recorded(e.run.UID, fmt.Sprintf("rank-%d.log", node)), fmt.Sprintf("node %d was told to stop", node))
	}
	u.kubectl("get", "pod", "ml-dev-env-0", "ml-dev-env-1")
	u.kubectl("delete", "lease", "ml-dev-env")
}

// evicted tests a training on a node that is drained.
func evicted(u trainer) {
	name := u.start("e2e/attempts.sh", byShell, oneGPU, "--param=max-restarts=2")
	u.waitOutput(name, "train", "[0 -] node 0 is in attempt 2\n", "[1 -] node 1 is in attempt 2\n")
	u.evict("ml-dev-env-1")
	e := u.end(name).succeeded()
	e.mustContain(e.log("train"), "Attempt 2 failed: training: node 1, on Kubernetes node ")
	e.equal("attempts", fmt.Sprint(len(e.receipt.Attempts)), "3")
}

// evict evicts a pod, as a drain does.
func (u trainer) evict(pod string) {
	u.Helper()
	if err := u.clients.Kube.PolicyV1().Evictions(u.namespace).Evict(u.Context(),
		&policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod, Namespace: u.namespace}}); err != nil {
		u.Fatal(err)
	}
}

// nodeStopped tests a node that loses its power, and starts again after the verdict.
func nodeStopped(u trainer) {
	name, _, says := u.loseNode("stop", func() {})
	u.healthyFree()
	localcluster(u.T, "node", "start", thirdNode)
	u.endWithin(name, timeForARunToEnd+timeForTeardown).failed("train", fail.NodeLost, says)
}

// nodeCutMinute tests that a training survives the loss of a node's network for a minute, after which Kubernetes marks
// the node as unreachable.
func nodeCutMinute(u trainer) {
	name := u.holdingOnThird()
	localcluster(u.T, "node", "cut", thirdNode)
	u.kubectl("wait", "node", thirdNode, "--for=condition=Ready=Unknown", within(timeForTheObjectToChange))
	localcluster(u.T, "node", "join", thirdNode)
	u.kubectl("wait", "node", thirdNode, "--for=condition=Ready", within(timeForTheObjectToChange))
	u.releaseDirectly()
	u.end(name).succeeded()
}
