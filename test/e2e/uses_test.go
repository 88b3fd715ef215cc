// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"golang.org/x/sync/semaphore"

	"github.com/ml-dev-env/ml-dev-env/test/stepimage"
)

// testUses runs the operations of the project and its users on a cluster, in parallel, each test in a namespace of its
// own. gpus has the GPUs of a node that nothing else uses.
func testUses(t *testing.T, times *durations, gpus *semaphore.Weighted) {
	step := loadStep(t)
	images := map[string]string{"STEP": step, "REGISTRY": registryHost}
	for name, use := range map[string]func(user, map[string]string){
		"pipeline-by-tkn":    pipelineByTkn,
		"task-from-bundle":   taskFromBundle,
		"two-nodes":          twoNodes,
		"gpus":               func(u user, images map[string]string) { twoGPUs(u, images, gpus) },
		"storage":            storage,
		"pod-rules":          podRules,
		"git":                gitClones,
		"packages":           packages,
		"listening":          listening,
		"neighbour":          neighbour,
		"registry":           registryAccess,
		"audit-log":          auditLog,
		"wrong-localcluster": wrongArguments,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			times.note(t)
			u := newUser(t)
			u.awaitPullSecret()
			use(u, images)
		})
	}
}

// loadStep builds the tests' step image and loads it into the cluster.
func loadStep(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	digest, err := stepimage.Build(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	reference := strings.TrimSpace(localcluster(t, "load", "--as=e2e/step:1", dir))
	if want := registryHost + "/e2e/step@" + digest.String(); reference != want {
		t.Fatalf("load printed %q, want %q", reference, want)
	}
	return reference
}

// pipelineByTkn tests that a PipelineRun whose second task fails runs its finally task.
func pipelineByTkn(u user, images map[string]string) {
	u.apply("pipeline.yaml", images)
	started := runStarted.FindStringSubmatch(u.tkn("pipeline", "start", "two-and-finally", "--param=greeting=good-morning"))
	if started == nil {
		u.Fatal("tkn pipeline start names no run")
	}
	u.mustContain(u.tkn("pipelinerun", "logs", "--follow", started[1]),
		"[first : say] first good-morning uid=", "[second : say] failing as told", "[last : say] finally Failed")
	u.mustContain(u.tkn("pipelinerun", "list"), "Failed")
}

func taskFromBundle(u user, images map[string]string) {
	content, err := os.ReadFile("testdata/bundle-task.yaml")
	if err != nil {
		u.Fatal(err)
	}
	file := filepath.Join(u.TempDir(), "task.yaml")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(string(content), "@STEP@", images["STEP"])), 0o644); err != nil {
		u.Fatal(err)
	}
	bundle := registryHost + "/e2e/bundle:1"
	for _, args := range [][]string{{"bundle", "push", bundle, "--filenames=" + file}, {"bundle", "list", bundle}} {
		out, err := run(u.T, nil, stateDir+"/bin/tkn", args...)
		if err != nil {
			u.Fatalf("tkn %v: %v\n%s", args, err, out)
		}
		if args[1] == "list" {
			u.mustContain(out, "task.tekton.dev/bundled")
		}
	}
	u.apply("bundle-run.yaml", map[string]string{"BUNDLE": bundle})
	u.waitFor("condition=Succeeded", "taskrun/bundled-run")
	u.mustContain(u.tkn("taskrun", "logs", "bundled-run"), "[say] from-a-bundle uid=")
}

// twoNodes tests a StatefulSet on two nodes as ml-dev-env creates it: what users do to its pods,
// and DeepSpeed's rendezvous between the two.
func twoNodes(u user, images map[string]string) {
	u.apply("two-nodes.yaml", images)
	u.kubectl("rollout", "status", "statefulset/two", within(timeForAPodToStart))
	nodes := strings.Fields(u.kubectl("get", "pods", "--selector=app=two", "--output=jsonpath={.items[*].spec.nodeName}"))
	if len(nodes) != 2 || nodes[0] == nodes[1] {
		u.Errorf("the two pods are on %v, want two nodes", nodes)
	}
	for _, pair := range [][2]string{{"two-0", "two-1"}, {"two-1", "two-0"}} {
		reader, writer := pair[0], pair[1]
		u.mustContain(u.kubectl("exec", reader, "--", "cat", "/shared/"+writer), "written by "+writer)
		u.mustContain(u.kubectl("exec", reader, "--", "ls", "/own"), reader)
		if out, err := u.try("exec", reader, "--", "cat", "/own/"+writer); exitCode(err) != 1 {
			u.Errorf("%s sees the file of %s on its own claim: %s", reader, writer, out)
		}
		ip := u.kubectl("get", "pod", writer, "--output=jsonpath={.status.podIP}")
		u.mustContain(u.kubectl("exec", reader, "--", "getent", "hosts", writer+".two-headless."+u.namespace+".svc.cluster.local"), ip)
		u.mustContain(u.kubectl("exec", reader, "--", "id"), "gid=0(root)")
	}
	u.mustContain(u.kubectl("logs", "two-1"), "up as two-1")

	dir := u.TempDir()
	u.kubectl("cp", "two-0:/shared/two-1", filepath.Join(dir, "copied"))
	copied, err := os.ReadFile(filepath.Join(dir, "copied"))
	if err != nil || string(copied) != "written by two-1" {
		u.Errorf("kubectl cp copied %q, %v", copied, err)
	}
	u.kubectl("cp", filepath.Join(dir, "copied"), "two-1:/shared/back")
	u.mustContain(u.kubectl("exec", "two-0", "--", "cat", "/shared/back"), "written by two-1")
	u.mustContain(u.getThroughPortForward("two-1", "/two-0"), "written by two-0")

	u.rendezvous()
}

var forwarding = regexp.MustCompile(`Forwarding from (127\.0\.0\.1:\d+)`)

// getThroughPortForward gets a path from the pod's server through kubectl port-forward.
func (u user) getThroughPortForward(pod, path string) string {
	u.Helper()
	ctx, cancel := context.WithTimeout(u.Context(), timeForTheObjectToChange)
	defer cancel()
	cmd := exec.CommandContext(ctx, stateDir+"/bin/kubectl", "--kubeconfig="+kubeconfig, "--namespace", u.namespace, "port-forward",
		"--address=127.0.0.1", pod, ":8080")
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		u.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		u.Fatal(err)
	}
	defer func() {
		cancel()
		_ = cmd.Wait() // the test itself killed it
	}()
	buffer := make([]byte, 4096)
	n, err := stdout.Read(buffer)
	m := forwarding.FindSubmatch(buffer[:n])
	if m == nil {
		u.Fatalf("port-forward printed %q, %v", buffer[:n], err)
	}
	response, err := http.Get("http://" + string(m[1]) + path)
	if err != nil {
		u.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		u.Fatal(err)
	}
	return string(body)
}

// rendezvous runs one rank in each pod.
func (u user) rendezvous() {
	u.Helper()
	type answer struct {
		out string
		err error
	}
	answers := make(chan answer, 2)
	for rank := range 2 {
		go func() {
			out, err := u.try("exec", fmt.Sprintf("two-%d", rank), "--",
				"env", fmt.Sprintf("RANK=%d", rank), "LOCAL_RANK=0", "python3", "/scripts/allreduce.py")
			answers <- answer{out, err}
		}()
	}
	all := ""
	for range 2 {
		a := <-answers
		if a.err != nil {
			u.Errorf("a rank failed: %v\n%s", a.err, a.out)
		}
		all += a.out
	}
	u.mustContain(all, "rank 0 of 2 sum 3 deepspeed 0.17.6", "rank 1 of 2 sum 3 deepspeed 0.17.6")
}

func twoGPUs(u user, images map[string]string, gpus *semaphore.Weighted) {
	if err := gpus.Acquire(u.Context(), 2); err != nil {
		u.Fatal(err)
	}
	defer gpus.Release(2)
	u.apply("gpus.yaml", images)
	u.waitEvent("five", "Insufficient nvidia.com/gpu")
	u.mustContain(u.kubectl("get", "pod", "five", "--output=jsonpath={.status.phase}"), "Pending")
	u.waitFor("jsonpath={.status.phase}=Succeeded", "pod/two")
	out := u.kubectl("logs", "two")
	u.mustContain(out, "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-", "GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-",
		"index, name, memory.total [MiB]", "0, NVIDIA H100 80GB HBM3, 81559 MiB", "visible=GPU-")
	if got := strings.Count(out, "opened /dev/nvidia"); got != 2 {
		u.Errorf("%d GPU devices could be opened, want 2:\n%s", got, out)
	}
}

func storage(u user, images map[string]string) {
	u.apply("storage.yaml", images)
	u.waitEvent("wrong-mode", "multi node access modes are only supported on rbd `block` type volumes")
	u.mustContain(u.kubectl("get", "pvc", "wrong-mode", "--output=jsonpath={.status.phase}"), "Pending")

	// The pods start one after the other, because either of them could get the volume.
	u.waitFor("condition=Ready", "pod/holder")
	u.apply("storage-waiter.yaml", images)
	u.waitEvent("waiter", "Multi-Attach error for volume")
	u.kubectl("delete", "pod", "holder", "--wait")
	u.waitFor("jsonpath={.status.phase}=Succeeded", "pod/waiter")
	u.mustContain(u.kubectl("logs", "waiter"), "first")

	u.waitFor("jsonpath={.status.phase}=Bound", "pvc/kept")
	kept := u.kubectl("get", "pvc", "kept", "--output=jsonpath={.spec.volumeName}")
	once := u.kubectl("get", "pvc", "once", "--output=jsonpath={.spec.volumeName}")
	u.kubectl("delete", "pod", "waiter", "--wait")
	u.kubectl("delete", "pvc", "kept", "once", "--wait")
	u.kubectl("wait", "--for=delete", within(timeForTheObjectToChange), "pv/"+once)
	u.kubectl("wait", "--for=jsonpath={.status.phase}=Released", within(timeForTheObjectToChange), "pv/"+kept)
	if _, err := os.Stat(filepath.Join(stateDir, "volumes", once)); !os.IsNotExist(err) {
		u.Errorf("the folder of a deleted volume still exists (%v)", err)
	}
	if _, err := os.Stat(filepath.Join(stateDir, "volumes", kept)); err != nil {
		u.Errorf("the folder of a retained volume is gone: %v", err)
	}
	u.kubectl("delete", "pv", kept)
}

func podRules(u user, images map[string]string) {
	u.apply("podrules.yaml", images)
	var ns struct {
		Metadata struct{ Annotations map[string]string }
	}
	if err := json.Unmarshal([]byte(u.kubectl("get", "namespace", u.namespace, "--output=json")), &ns); err != nil {
		u.Fatal(err)
	}
	uid, _, _ := strings.Cut(ns.Metadata.Annotations["openshift.io/sa.scc.uid-range"], "/")
	u.waitFor("jsonpath={.status.phase}=Succeeded", "pod/ordinary")
	u.mustContain(u.kubectl("logs", "ordinary"), "uid="+uid+" gid=0", "no passwd entry", "CapEff:\t0000000000000000",
		"CapBnd:\t0000000000000000")
	spec := u.kubectl("get", "pod", "ordinary", "--output=jsonpath={.metadata.annotations} {.spec.securityContext}")
	u.mustContain(spec, `"openshift.io/scc":"restricted-v2"`, `"fsGroup":`+uid)

	content, err := os.ReadFile("testdata/podrules-refused.yaml")
	if err != nil {
		u.Fatal(err)
	}
	out, err := run(u.T, content, stateDir+"/bin/kubectl", "--namespace", u.namespace, "apply", "--filename=-")
	if err == nil {
		u.Errorf("a pod that adds a capability was admitted: %s", out)
	}
	u.mustContain(out, "unable to validate against any security context constraint", "capability may not be added")
}

func gitClones(u user, images map[string]string) {
	u.kubectl("create", "secret", "generic", "credentials",
		"--from-file="+stateDir+"/git/token", "--from-file="+stateDir+"/git/id_ed25519", "--from-file="+stateDir+"/git/known_hosts")
	u.apply("git.yaml", images)
	u.waitFor("jsonpath={.status.phase}=Succeeded", "pod/clone")
	u.mustContain(u.kubectl("logs", "clone"), "hello from the public repository", "refused without a token",
		"refused with another key", "# Public", "version https://git-lfs.github.com/spec/v1", "fetched by SHA")
	if got := strings.Count(u.kubectl("logs", "clone"), "hello from the private repository"); got != 2 {
		u.Errorf("the private repository was cloned %d times, want twice: by token and by key", got)
	}
}

func packages(u user, images map[string]string) {
	u.apply("packages.yaml", images)
	u.waitFor("jsonpath={.status.phase}=Succeeded", "pod/packages")
	u.mustContain(u.kubectl("logs", "packages"), "pip brought six 1.17.0", "apt brought hello_")
}

// listening tests that the cluster listens only on loopback and on its own addresses on the
// bridge, and that only the registry uses plain HTTP there.
func listening(u user, _ map[string]string) {
	for _, ns := range []string{"mlenv-control", "mlenv-node-1", "mlenv-node-2"} {
		out, err := exec.Command("ip", "netns", "exec", ns, "ss", "-Htln").Output()
		if err != nil {
			u.Fatal(err)
		}
		for line := range strings.Lines(string(out)) {
			local := strings.Fields(line)[3]
			if !strings.HasPrefix(local, "127.0.0.1:") && !strings.HasPrefix(local, "10.223.0.") {
				u.Errorf("%s: something listens on %s", ns, local)
			}
			if strings.HasPrefix(local, "10.223.0.") && local != registryHost && !strings.HasSuffix(local, ":22") {
				if err := handshake(local); err != nil {
					u.Errorf("%s: %s does not answer by TLS: %v", ns, local, err)
				}
			}
		}
	}
}

// neighbour tests that the machine forwards nothing from another machine to the cluster. A namespace that is connected
// to this machine, and routes the cluster's addresses through it, plays that other machine.
func neighbour(u user, _ map[string]string) {
	const netns, here, there = "e2e-neighbour", "198.51.100.1", "198.51.100.2"
	ip := func(args ...string) {
		u.Helper()
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			u.Fatalf("ip %v: %v\n%s", args, err, out)
		}
	}
	ip("netns", "add", netns)
	u.Cleanup(func() { ip("netns", "delete", netns) })
	ip("link", "add", "e2e-neighbour", "type", "veth", "peer", "name", "eth0", "netns", netns)
	ip("addr", "add", here+"/24", "dev", "e2e-neighbour")
	ip("link", "set", "e2e-neighbour", "up")
	ip("-n", netns, "addr", "add", there+"/24", "dev", "eth0")
	ip("-n", netns, "link", "set", "eth0", "up")
	ip("-n", netns, "route", "add", "default", "via", here)
	const timeToConnect = "3s"
	connect := func(address string) error {
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			u.Fatal(err)
		}
		return exec.CommandContext(u.Context(), "ip", "netns", "exec", netns, "timeout", timeToConnect, "bash", "-c",
			": > /dev/tcp/"+host+"/"+port).Run()
	}
	for _, address := range []string{registryHost, "10.223.0.2:6443", "10.223.0.2:443", "10.223.0.11:10250"} {
		if err := connect(address); err == nil {
			u.Errorf("another machine connects to %s", address)
		}
	}
	// Without a connection to this machine itself, the failures above would prove nothing.
	listener, err := net.Listen("tcp", here+":0")
	if err != nil {
		u.Fatal(err)
	}
	defer listener.Close()
	if err := connect(listener.Addr().String()); err != nil {
		u.Errorf("the other machine does not reach this one: %v", err)
	}
}

// registryAccess tests that the registry serves nothing to anonymous clients in a pod or on this machine.
func registryAccess(u user, _ map[string]string) {
	response, err := http.Get("http://" + registryHost + "/v2/training/manifests/latest")
	if err != nil {
		u.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != http.StatusUnauthorized {
		u.Errorf("an anonymous pull is answered with %s, want %d", response.Status, http.StatusUnauthorized)
	}
	reference, err := name.ParseReference(trainingImage)
	if err != nil {
		u.Fatal(err)
	}
	if _, err := remote.Head(reference, remote.WithContext(u.Context()), remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
		u.Errorf("with the credentials of this machine: %v", err)
	}
	secrets, err := os.ReadFile(stateDir + "/docker/config.json")
	if err != nil {
		u.Fatal(err)
	}
	pull := u.kubectl("get", "secret", "registry-pull", "--output=jsonpath={.data.*}")
	if decoded, err := base64.StdEncoding.DecodeString(pull); err != nil || strings.Contains(string(secrets), string(decoded)) {
		u.Errorf("the Secret of a namespace has the machine's credentials (%v)", err)
	}
}

// handshake does a TLS handshake with the address, without a client certificate. A server that
// requests a certificate and then closes the connection has used TLS too.
func handshake(address string) error {
	const timeForTheHandshake = 30 * time.Second
	dialer := &net.Dialer{Timeout: timeForTheHandshake}
	conn, err := tls.DialWithDialer(dialer, "tcp", address, &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		return err
	}
	return conn.Close()
}

func auditLog(u user, _ map[string]string) {
	u.kubectl("create", "configmap", "audited", "--from-literal=a=b")
	for _, event := range u.audited() {
		if event.ObjectRef.Name == "audited" {
			if event.Verb != "create" || event.ObjectRef.Resource != "configmaps" || event.User.Username != "localcluster-admin" {
				u.Errorf("the audit log has %+v", event)
			}
			return
		}
	}
	u.Error("the audit log does not contain the created ConfigMap")
}

func wrongArguments(u user, _ map[string]string) {
	commanding.Lock()
	defer commanding.Unlock()
	for _, test := range []struct {
		args []string
		code int
		want []string
	}{
		{[]string{"up", "--nodes=9", "--gpus=-1"}, 1, []string{"--nodes is 9", "--gpus is -1"}},
		{[]string{"up", "--gpus=3"}, 1, []string{"a cluster with 4 GPUs", "localcluster down"}},
		{[]string{"up", "--gpu-fault=node-1:9=missing", "--gpu-fault=node-4:0=throttled"}, 1, []string{"GPU 9 of node-1", "node-4"}},
		{[]string{"up", "--gpu-fault=all", "--gpu-fault=node-1:1=broken"}, 1, []string{`"all"`, `"node-1:1=broken"`}},
		{[]string{"up", "--speed=9"}, 2, []string{"unknown flag"}},
		{[]string{"logs", "nobody"}, 1, []string{`no component is named "nobody"`, "kubelet@node-1"}},
		{[]string{"load", "/nowhere.tar"}, 1, []string{"/nowhere.tar"}},
		{[]string{"launch"}, 2, []string{"unknown command"}},
	} {
		out, err := run(u.T, nil, localclusterProgram(u.T), test.args...)
		if exitCode(err) != test.code {
			u.Errorf("localcluster %v: exit code %d, want %d", test.args, exitCode(err), test.code)
		}
		u.mustContain(out, test.want...)
	}
}
