// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/crane"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	buildv1 "github.com/openshift/api/build/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	mldevenv "github.com/ml-dev-env/ml-dev-env"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/buildimage"
)

// smallBase has a shell and little else.
const smallBase = registryHost + "/base/git:latest"

// folder returns a build folder with this Dockerfile.
func (u trainer) folder(dockerfile string) string {
	u.Helper()
	dir := u.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte(dockerfile), 0o644); err != nil {
		u.Fatal(err)
	}
	return dir
}

// build is one run of build-image on this machine.
type build struct {
	code int
	out  string
}

func (u trainer) build(flags ...string) build {
	var out bytes.Buffer
	code := command.Run(u.Context(), buildimage.Command(mldevenv.Images()),
		append([]string{"--kubeconfig=" + kubeconfig, "--namespace=" + u.namespace}, flags...), &out, &out)
	return build{code, out.String()}
}

// built fails unless the build produced an image.
func (u trainer) built(b build, parts ...string) build {
	u.Helper()
	if b.code != command.Done {
		u.Fatalf("build-image ended with %d:\n%s", b.code, shortened(b.out))
	}
	u.mustContain(b.out, parts...)
	return b
}

// notBuilt fails unless the build failed with the reason.
func (u trainer) notBuilt(name string, b build, reason fail.Reason, parts ...string) {
	u.Helper()
	if b.code != command.Failed && b.code != command.WrongUsage {
		u.Errorf("%s: build-image ended with %d, want a failure:\n%s", name, b.code, shortened(b.out))
		return
	}
	if b.code == command.Failed {
		parts = append(parts, "build-image failed: "+string(reason)+": ", "\n  next: ")
	}
	for _, part := range parts {
		if !strings.Contains(b.out, part) {
			u.Errorf("%s: %q is missing in:\n%s", name, part, shortened(b.out))
		}
	}
}

// buildFailures causes each failure by its input.
func buildFailures(u trainer) {
	file := "--cluster-file=" + u.clusterFile()
	withoutSecret := "--cluster-file=" + u.clusterFile(withPullSecret, "")
	smallMemory := u.clusterFile("  name: "+trainingImage+"\n", "  flavour: cpu\n  build_resources:\n    limits:\n      memory: 300Mi\n")
	failures := []struct {
		name, dockerfile string
		flags            []string
		reason           fail.Reason
		parts            []string
	}{
		{"base-missing", "FROM " + registryHost + "/e2e/no-such-base:1\nRUN true\n", []string{file}, fail.ImageUnavailable,
			[]string{"the base image " + registryHost + "/e2e/no-such-base:1 does not exist", "correct image.base in the cluster file"}},
		{"base-private", "FROM " + u.privateBase() + "\nRUN true\n", []string{withoutSecret}, fail.ImageUnavailable,
			[]string{"requires credentials", "kubectl create secret docker-registry base-image --docker-server=" + registryHost}},
		{"conflict", "FROM " + trainingImage + "\nARG PIP_CERT\nRUN pip install requests==2.32.3 urllib3==1.20\n", []string{file},
			fail.DependencyConflict,
			[]string{"requests 2.32.3 depends on urllib3", "The user requested urllib3==1.20"}},
		{"syntax", "FROM " + smallBase + "\nRUM true\n", []string{file}, fail.DockerfileInvalid,
			[]string{"line 2: ", "unknown instruction: RUM"}},
		{"timeout", "FROM " + smallBase + "\nRUN sleep 300\n", []string{file, "--build-timeout=25s"}, fail.BuildTimeout,
			[]string{"it did not end within 25s"}},
		// An earlier stage prints the error text of another failure.
		{"run-exits", "FROM " + smallBase + " AS tools\nRUN echo Temporary failure in name resolution\nFROM " + smallBase +
			"\nCOPY --from=tools /etc/passwd /tools\nRUN echo all is well && sh -c 'echo it is not; exit 7'\n", []string{file}, fail.BuildStepFailed,
			[]string{"exit code 7 of RUN echo all is well", "  it is not\n"}},
		// Only the pod's status shows that a process was killed.
		{"memory", "FROM " + smallBase + "\nRUN exec 2>/dev/null; dd if=/dev/zero of=/dev/null bs=1G count=1 || exit 2\n",
			[]string{"--cluster-file=" + smallMemory}, fail.OutOfMemory,
			[]string{"it was killed for memory in RUN", "raise image.build_resources.limits.memory"}},
		{"heredoc", "FROM " + smallBase + "\nRUN <<EOF\ntrue\nEOF\n", []string{file}, fail.DockerfileInvalid,
			[]string{"line 2: a heredoc (<<EOF)"}},
		{"no-account", "FROM " + smallBase + "\nRUN true\n", []string{file}, fail.BuildUnavailable,
			[]string{`serviceaccounts "nobody" not found`, "serviceaccount nobody -n " + u.namespace}},
		{"no-volume", "FROM " + smallBase + "\nRUN true\n", []string{file}, fail.InvalidInput, []string{"ConfigMaps [gone]"}},
	}
	// build-image keeps the fields that another client has set.
	u.buildConfig("no-account", "serviceAccount: nobody")
	u.buildConfig("no-volume", "strategy: {dockerStrategy: {volumes: [{name: gone, source: {type: ConfigMap, configMap: {name: gone}}, "+
		"mounts: [{destinationPath: /gone}]}]}}")
	results := make([]build, len(failures))
	var all sync.WaitGroup
	slots := make(chan struct{}, 2)
	for i, failure := range failures {
		folder := u.folder(failure.dockerfile)
		all.Go(func() {
			slots <- struct{}{}
			results[i] = u.build(append(failure.flags, "--folder="+folder, "--flavour="+failure.name)...)
			<-slots
		})
	}
	all.Wait()
	for i, failure := range failures {
		u.notBuilt(failure.name, results[i], failure.reason, failure.parts...)
	}
	u.notBuilt("mistakes", u.build(file, "--flavour=cpv", "--build-timeout=-1s", "--build-args=X", "--env=A=$HOME"), fail.InvalidInput,
		`looking for flavour "cpv": did you mean cpu?`, `--build-timeout "-1s"`, `--build-args "X": want KEY=VALUE`, "builds change the sign")
	u.kubectl("annotate", "imagestream", buildimage.StreamName, "localcluster/no-registry=true")
	u.notBuilt("no-registry", u.build(file, "--folder="+u.folder("FROM "+smallBase+"\nRUN true\n"), "--flavour=no-registry"),
		fail.BuildUnavailable,
		"internal registry is not enabled", "managementState")
	u.noBuildPods()
}

// buildConfig creates a flavour's BuildConfig, and sets one field of its spec.
func (u trainer) buildConfig(flavour, field string) {
	u.Helper()
	fields := "source: {type: Binary, binary: {}}"
	if !strings.HasPrefix(field, "strategy:") {
		fields += "\n  strategy: {dockerStrategy: {}}"
	}
	u.applyText("apiVersion: build.openshift.io/v1\nkind: BuildConfig\nmetadata: {name: ml-dev-env-" + flavour + "}\nspec:\n  " + fields +
		"\n  " + field + "\n")
}

// buildBlocked tests builds that never run, which the server cancels.
func buildBlocked(u trainer) {
	u.kubectl("annotate", "namespace", u.namespace, "localcluster/build-start-time=30s")
	const limits = "  build_resources:\n    limits:\n      memory: 2Gi\n"
	const cancelled = "OpenShift cancelled the build, because it did not run in time"
	file := u.clusterFile()
	u.buildsFail([]blockedBuild{
		{"no-push-secret", file, []string{"--push-secret=absent"}, fail.PushRefused,
			[]string{"its push secret absent is missing", "docker-registry absent"}},
		{"no-pull-secret", file, []string{"--pull-secret=absent"}, fail.ImageUnavailable, []string{`secret "absent" not found`, cancelled}},
		{"no-node", u.clusterFile("  name: "+trainingImage+"\n", "  flavour: cpu\n  build_resources:\n    requests:\n      memory: 999Ti\n"), nil,
			fail.NodesUnavailable,
			[]string{"no node fits its pod", cancelled}},
	})
	u.kubectl("create", "quota", "small", "--hard=limits.memory=1Gi")
	u.waitFor("jsonpath={.status.hard}", "quota/small")
	u.buildsFail([]blockedBuild{
		{"over-quota", u.clusterFile("  name: "+trainingImage+"\n", "  flavour: cpu\n"+limits), nil, fail.QuotaExceeded,
			[]string{"exceeded quota: small", cancelled, "describe quota small"}},
		{"no-limits", file, nil, fail.QuotaExceeded, []string{"failed quota: small: must specify limits.memory", cancelled}},
	})
	u.noBuildPods()
}

type blockedBuild struct {
	name, clusterFile string
	flags             []string
	reason            fail.Reason
	parts             []string
}

// buildsFail starts all builds at the same time.
func (u trainer) buildsFail(all []blockedBuild) {
	u.Helper()
	folder := u.folder("FROM " + smallBase + "\nRUN true\n")
	results := make([]build, len(all))
	var running sync.WaitGroup
	for i, b := range all {
		running.Go(func() {
			results[i] = u.build(append(b.flags, "--cluster-file="+b.clusterFile, "--folder="+folder, "--flavour="+b.name)...)
		})
	}
	running.Wait()
	for i, b := range all {
		u.notBuilt(b.name, results[i], b.reason, b.parts...)
	}
}

// buildsDisabled tests clusters without the build APIs, and users without the right to Docker builds.
func buildsDisabled(u trainer) {
	flags := []string{"--cluster-file=" + u.clusterFile(), "--folder=" + u.folder("FROM "+smallBase+"\nRUN true\n"), "--flavour=disabled"}
	for _, group := range []string{"image.openshift.io", "build.openshift.io"} {
		u.without("apiservice/v1."+group, func() {
			u.notServed("/apis/" + group + "/v1")
			u.notBuilt("without "+group, u.build(flags...), fail.BuildUnavailable, "this cluster has no API "+group+"/v1", "name a finished image")
		})
		u.waitFor("condition=Available", "apiservice/v1."+group)
	}
	account := []string{"--kubeconfig=" + u.kubeconfigOf("mlenv-pipeline")}
	u.without("clusterrolebinding/system:build-strategy-docker-binding", func() {
		u.notBuilt("without the right", u.build(append(flags, account...)...), fail.PermissionDenied,
			"build strategy Docker is not allowed", "system:build-strategy-docker system:serviceaccount:"+u.namespace+":mlenv-pipeline")
		u.kubectl("create", "rolebinding", "docker", "--clusterrole=system:build-strategy-docker", "--serviceaccount="+u.namespace+
			":mlenv-pipeline")
		u.built(u.build(append(flags, account...)...), "Built ")
	})
}

// without deletes an object of the cluster, and recreates it afterwards.
func (u trainer) without(object string, meanwhile func()) {
	u.Helper()
	var saved map[string]any
	if err := json.Unmarshal([]byte(u.kubectl("get", object, "--output=json")), &saved); err != nil {
		u.Fatal(err)
	}
	delete(saved, "status")
	metadata := saved["metadata"].(map[string]any)
	saved["metadata"] = map[string]any{"name": metadata["name"]}
	text, err := json.Marshal(saved)
	if err != nil {
		u.Fatal(err)
	}
	again := func() {
		if _, err := u.try("get", object); err != nil {
			u.applyText(string(text))
		}
	}
	u.Cleanup(again)
	u.kubectl("delete", object)
	meanwhile()
	again()
}

// notServed waits until the API server no longer serves the path. That happens a moment after the deletion of the
// APIService.
func (u trainer) notServed(path string) {
	u.Helper()
	ctx, cancel := u.within(timeForTheObjectToChange)
	defer cancel()
	for {
		if _, err := u.try("get", "--raw", path); err != nil {
			return
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			u.Fatalf("%s is still served", path)
		}
	}
}

// kubeconfigOf returns the path of a kubeconfig with the service account's token.
func (u trainer) kubeconfigOf(account string) string {
	u.Helper()
	config, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		u.Fatal(err)
	}
	for name := range config.AuthInfos {
		config.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: strings.TrimSpace(u.kubectl("create", "token", account))}
	}
	path := filepath.Join(u.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		u.Fatal(err)
	}
	return path
}

// packageMissing needs a base with pip, which is large.
func packageMissing(u trainer) {
	folder := u.folder("FROM " + trainingImage + "\nARG PIP_CERT\nRUN pip install no-such-package-of-anybody==1.0\n")
	u.notBuilt("package-missing", u.build("--cluster-file="+u.clusterFile(), "--folder="+folder, "--flavour=package-missing"),
		fail.PackageNotFound,
		"No matching distribution found for no-such-package-of-anybody==1.0")
}

// noBuildPods waits until no build's pod is running. A build's phase is final before its pod has ended.
func (u trainer) noBuildPods() {
	u.Helper()
	ctx, cancel := u.within(timeForTheObjectToChange)
	defer cancel()
	var running []string
	err := kube.WatchUntil(ctx, "the build pods", u.clients.Kube.CoreV1().Pods(u.namespace),
		metav1.ListOptions{LabelSelector: buildv1.BuildLabel}, func(pods []*corev1.Pod) (bool, error) {
			running = nil
			for _, pod := range pods {
				if pod.Status.Phase == corev1.PodRunning {
					running = append(running, pod.Name)
				}
			}
			return len(running) == 0, nil
		})
	if err != nil {
		u.Errorf("the build pods %v still run: %v", running, err)
	}
}

// privateBase returns an image that the registry serves only with the credentials that the local
// cluster created.
func (u trainer) privateBase() string {
	u.Helper()
	const private = registryHost + "/private/e2e-base:1"
	username, password := u.registryCredentials()
	if err := crane.Copy(smallBase, private, crane.WithAuth(&authn.Basic{Username: username, Password: password}),
		crane.WithContext(u.Context())); err != nil {
		u.Fatal(err)
	}
	return private
}

func (u trainer) registryCredentials() (username, password string) {
	u.Helper()
	line, err := os.ReadFile(stateDir + "/registry/private-credentials")
	if err != nil {
		u.Fatal(err)
	}
	username, password, _ = strings.Cut(strings.TrimSpace(string(line)), ":")
	return username, password
}

// buildDisk tests a build whose disk is full.
func buildDisk(u trainer) {
	u.kubectl("annotate", "namespace", u.namespace, "localcluster/build-disk-size=1500Mi")
	u.notBuilt("disk",
		u.build("--cluster-file="+u.clusterFile(), "--folder="+u.folder("FROM "+smallBase+"\nRUN dd if=/dev/zero of=/big bs=1M count=3000\n"),
			"--flavour=disk"),
		fail.DiskFull, "No space left on device", "ephemeral_storage")
	u.noBuildPods()
}

// buildPush tests a build whose account may not push.
func buildPush(u trainer) {
	u.kubectl("delete", "rolebinding", "system:image-builders")
	u.notBuilt("push", u.build("--cluster-file="+u.clusterFile(), "--folder="+u.folder("FROM "+smallBase+"\nRUN true\n"), "--flavour=push"),
		fail.PushRefused, "the registry refused the image", "oc policy add-role-to-user system:image-builder -z builder -n "+u.namespace)
	u.noBuildPods()
}

// builtOnce builds an image from a base that needs a secret. Unchanged inputs start no new build. A base that changed
// under its tag starts one.
func builtOnce(u trainer) {
	u.privateSecret("base")
	file := "--cluster-file=" + u.clusterFile(namedImage, "  flavour: cpu\n"+withPullSecret+"  base_pull_secret: base\n")
	folder := "--folder=" + u.folder("ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\nARG SECRET_OF_A_BUILD=none\nENV KEPT=yes\nRUN echo "+
		"$SECRET_OF_A_BUILD > /built\n")
	private := u.privateBase()
	// Two calls of one user at the same time start only one build.
	twin := make(chan build, 1)
	go func() { twin <- u.build(file, folder, "--flavour=own", "--base-image="+private) }()
	first := u.built(u.build(file, folder, "--flavour=own", "--base-image="+private), "Built "+registryHost+"/"+u.namespace+
		"/ml-dev-env@sha256:")
	u.equal("the image of the other call", imageIn(u.built(<-twin)), imageIn(first))
	u.equal("the builds",
		strings.TrimSpace(u.kubectl("get", "builds", "--output=name", "--selector="+buildv1.BuildConfigLabel+"=ml-dev-env-own")),
		"build.build.openshift.io/ml-dev-env-own-1")
	u.besideEachOther()
	again := u.built(u.build(file, folder, "--flavour=own", "--base-image="+private), "Nothing is built: ")
	// The API server has read the digest of the private base, with the namespace's Secret.
	u.mustContain(u.kubectl("get", "imagestreamtag", buildimage.StreamName+":own",
		"--output=jsonpath={.image.dockerImageMetadata.Config.Labels}"), private+"@sha256:")
	u.equal("the image", imageIn(again), imageIn(first))

	const moving = registryHost + "/e2e/moving-base:1"
	u.moveBase(moving, smallBase)
	before := u.built(u.build(file, folder, "--flavour=moved", "--base-image="+moving))
	began := time.Now()
	u.built(u.build(file, folder, "--flavour=moved", "--base-image="+moving), "Nothing is built: "+imageIn(before))
	u.Logf("build-image with unchanged inputs took %.1f s", time.Since(began).Seconds())
	u.built(u.build(file, folder, "--flavour=moved", "--base-image="+moving, "--build-args=SECRET_OF_A_BUILD=other"),
		"its arguments have changed")
	u.moveBase(moving, registryHost+"/"+u.namespace+"/ml-dev-env:own")
	u.built(u.build(file, folder, "--flavour=moved", "--base-image="+moving, "--build-args=SECRET_OF_A_BUILD=other"),
		"The base has changed from "+moving+"@sha256:")
	u.built(u.build(file, "--image="+moving), "Nothing is built: image "+moving+" is named.")
	u.leavesNoTrace()
}

// besideEachOther tests two builds of one flavour at the same time: first with the same inputs and --force, then with
// different inputs.
func (u trainer) besideEachOther() {
	u.Helper()
	file, quick := "--cluster-file="+u.clusterFile(), "--folder="+u.folder("FROM "+smallBase+"\nRUN true\n")
	sleeping := "--folder=" + u.folder("FROM "+smallBase+"\nRUN echo sleeping && sleep 300\n")
	slow := make(chan build, 1)
	go func() { slow <- u.build(file, sleeping, "--flavour=beside") }()
	forced := make(chan build, 2)
	for range 2 {
		go func() { forced <- u.build(file, quick, "--flavour=forced", "--force") }()
	}
	var names []string
	for range 2 {
		out := u.built(<-forced).out
		u.Cleanup(func() {
			if u.Failed() {
				u.printLater("one of two forced builds:\n%s", shortened(out))
			}
		})
		named := buildName.FindAllString(out, -1)
		slices.Sort(named)
		names = append(names, strings.Join(slices.Compact(named), " and "))
	}
	slices.Sort(names)
	u.equal("the builds that the callers name", strings.Join(names, ", "), "ml-dev-env-forced-1, ml-dev-env-forced-2")
	u.waitBuild("ml-dev-env-beside-1", "sleeping")
	u.built(u.build(file, quick, "--flavour=beside"), "ml-dev-env-beside-2")
	u.equal("the phase of the first build", u.kubectl("get", "build", "ml-dev-env-beside-1", "--output=jsonpath={.status.phase}"),
		string(buildv1.BuildPhaseRunning))
	u.kubectl("patch", "build", "ml-dev-env-beside-1", "--type=merge", `--patch={"status":{"cancelled":true}}`)
	u.notBuilt("beside", <-slow, fail.Cancelled, "build ml-dev-env-beside-1: it was cancelled")
}

var buildName = regexp.MustCompile(`ml-dev-env-forced-\d+`)

// leavesNoTrace tests that a build uses the proxy and the certificates, and that the image's settings, history and
// files contain neither.
func (u trainer) leavesNoTrace() {
	u.Helper()
	const proxy = "http://proxy.invalid:3128"
	file := "--cluster-file=" + u.clusterFile("network:\n", "network:\n  proxy: {https: \""+proxy+"\"}\n")
	folder := u.folder("FROM " + smallBase + "\nARG PIP_CERT\nRUN echo through $HTTPS_PROXY and $https_proxy && grep -m 1 CERTIFICATE " +
		"$PIP_CERT && touch /built\n")
	b := u.built(u.build(file, "--folder="+folder, "--flavour=proxied", `--env=QUOTED=a "b" (c)`), "\nthrough "+proxy+" and "+proxy+"\n",
		"\n-----BEGIN CERTIFICATE-----\n")
	config, err := crane.Config(imageIn(b), crane.WithContext(u.Context()))
	if err != nil {
		u.Fatal(err)
	}
	image, err := crane.Pull(imageIn(b), crane.WithContext(u.Context()))
	if err != nil {
		u.Fatal(err)
	}
	files := mutate.Extract(image)
	defer files.Close()
	found := map[string]bool{}
	for archive := tar.NewReader(files); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			u.Fatal(err)
		}
		found["/"+strings.Trim(header.Name, "/")] = header.Typeflag == tar.TypeReg
	}
	if !strings.Contains(string(config), `"QUOTED=a \"b\" (c)"`) {
		u.Errorf("the image's settings lack QUOTED as --env gave it:\n%s", config)
	}
	if strings.Contains(string(config), "proxy.invalid") {
		u.Errorf("the image's settings name the proxy:\n%s", config)
	}
	if !found["/built"] {
		u.Errorf("/built is missing among the image's %d files", len(found))
	}
	for name, isFile := range found {
		if isFile && strings.HasPrefix(name, "/etc/mlenv-ca/") {
			u.Errorf("the image has %s", name)
		}
	}
}

func (u trainer) moveBase(to, from string) {
	u.Helper()
	if err := crane.Copy(from, to, crane.WithContext(u.Context())); err != nil {
		u.Fatal(err)
	}
}

var imageByDigest = regexp.MustCompile(`(?:Built|Nothing is built:) (\S+@sha256:[0-9a-f]{64})`)

func imageIn(b build) string {
	if found := imageByDigest.FindStringSubmatch(b.out); found != nil {
		return found[1]
	}
	return ""
}

// buildInterrupted interrupts builds by Ctrl-C, by cancelling the run, and by deleting the pod.
func buildInterrupted(u trainer) {
	file := "--cluster-file=" + u.clusterFile()
	slow := "--folder=" + u.folder("FROM "+smallBase+"\nRUN echo sleeping && sleep 300\n")

	cmd := exec.CommandContext(u.Context(), u.program, "build-image", "--kubeconfig="+kubeconfig, "--namespace="+u.namespace, file, slow,
		"--flavour=ctrl-c")
	seen := &finder{text: "\nsleeping\n", done: func() { _ = cmd.Process.Signal(syscall.SIGINT) }}
	cmd.Stdout, cmd.Stderr = seen, seen
	err := cmd.Run()
	if exitCode(err) != command.Failed || !seen.seen {
		u.Errorf("Ctrl-C: build-image ended with %v:\n%s", err, shortened(seen.all.String()))
	}
	u.mustContain(seen.all.String(), "build-image failed: Cancelled: building: interrupted; build ml-dev-env-ctrl-c-1 is cancelled")
	u.phaseIs("ml-dev-env-ctrl-c-1", buildv1.BuildPhaseCancelled)

	done := make(chan build, 1)
	go func() { done <- u.build(file, slow, "--flavour=pod-deleted") }()
	u.waitBuild("ml-dev-env-pod-deleted-1", "sleeping")
	u.kubectl("delete", "pod", "ml-dev-env-pod-deleted-1-build", "--wait=false")
	u.notBuilt("pod deleted", <-done, fail.BuildPodLost, "its pod was deleted")

	// Builds the cluster file's flavour; the test does not wait for the end of this build.
	u.install("../../clusters/local.yaml")
	name := u.start("e2e/quick.sh", byShell, oneGPU, "--param=build-timeout=15m", "--param=timeout=10m")
	u.waitOutput(name, "build-image", "Build ml-dev-env-cpu-1 runs on node ")
	u.tkn("pipelinerun", "cancel", name, "--grace=CancelledRunFinally")
	e := u.end(name)
	e.equal("the receipt's reason", e.receipt.Reason, string(fail.Cancelled))
	u.phaseIs("ml-dev-env-cpu-1", buildv1.BuildPhaseCancelled)
	u.noBuildPods()
}

// waitBuild waits until the build has printed the text.
func (u trainer) waitBuild(name, text string) {
	u.Helper()
	pod := name + "-build"
	u.kubectl("wait", "--for=create", "pod/"+pod, within(timeForAPodToStart))
	u.kubectl("wait", "--for=jsonpath={.status.phase}=Running", "pod/"+pod, within(timeForAPodToStart))
	u.waitLog(pod, "docker-build", text)
}

// phaseIs waits until the build has ended and compares its phase.
func (u trainer) phaseIs(name string, want buildv1.BuildPhase) {
	u.Helper()
	ctx, cancel := u.within(timeForTheObjectToChange)
	defer cancel()
	var phase buildv1.BuildPhase
	err := kube.WatchUntil(ctx, "build "+name, u.builds.Builds(u.namespace), named(name), func(found []*buildv1.Build) (bool, error) {
		if len(found) == 0 {
			return false, fmt.Errorf("build %s not found", name)
		}
		phase = found[0].Status.Phase
		return phase == want || phase == buildv1.BuildPhaseFailed || phase == buildv1.BuildPhaseComplete, nil
	})
	if err != nil || phase != want {
		u.Errorf("build %s is %s (%v), want %s", name, phase, err, want)
	}
}

// buildingFlags are the flags of a run that builds its image.
var buildingFlags = []string{byShell, "--param=gpus-per-node=1", "--pipeline-timeout=1h", "--param=build-timeout=30m", "--param=timeout=5m",
	"--param=start-timeout=10m"}

// smallArgs omit the parts of flavour cpu that a training script does not need.
var smallArgs = []string{"WITH_SERVICES=false", "WITH_LIBRARIES=false", "DEEPSPEED_OPS=shm_comm"}

// timeForARunThatBuilds is the maximum time of a run that builds its image.
const timeForARunThatBuilds = 30 * time.Minute

// builtByRuns starts two runs at the same time that need the same image, of the cluster file's
// flavour. One build runs and both train in its image. The base already has DeepSpeed with its compiled op, because
// compiling it takes minutes; builtInFull compiles all ops.
func builtByRuns(u trainer) {
	file := u.localFile("  base: "+registryHost+"/base/debian-torch:trixie\n", "  base: "+trainingImage+"\n")
	u.install(file)
	flags := append(slices.Clone(buildingFlags), "--param=build-args="+strings.Join(smallArgs, ","))
	one := u.start("e2e/torchrun.sh", append(flags, "--param=name=one")...)
	other := u.start("e2e/torchrun.sh", append(flags, "--param=name=other")...)
	first, second := u.endWithin(one, timeForARunThatBuilds).succeeded().ranks(2), u.endWithin(other, timeForARunThatBuilds).succeeded().ranks(
		2)
	u.equal("the image of both", first.results["image"], second.results["image"])
	builds, err := u.builds.Builds(u.namespace).List(u.Context(), metav1.ListOptions{})
	if err != nil {
		u.Fatal(err)
	}
	if len(builds.Items) != 1 || builds.Items[0].Status.Phase != buildv1.BuildPhaseComplete {
		u.Errorf("%d builds; want one, with phase Complete: %+v", len(builds.Items), builds.Items)
	}
	u.mustContain(first.log("build-image")+second.log("build-image"), "Sending the folder of cpu", "; following it.")
	u.enters(u.TempDir(), file, successorsOfBuilds()...)
}

// builtInFull trains in an image of the whole flavour. Then the development scenarios use the image.
func builtInFull(u trainer) {
	u.install("../../clusters/local.yaml")
	e := u.endWithin(u.start("e2e/torchrun.sh", buildingFlags...), timeForARunThatBuilds).succeeded().ranks(2)
	u.nothingLeft()
	developmentServices(e.results["image"])(u)
}

// gpuFlavours builds the GPU flavours on stand-ins for NVIDIA's bases. It logs the times and sizes that
// tasks/mlenv-build-image/images/README.md lists.
func gpuFlavours(u trainer) {
	const file = "--cluster-file=../../clusters/local.yaml"
	u.install("../../clusters/local.yaml")
	repository, commit := serveRepository(u.T, map[string]string{".": filepath.Join("testdata", "videollama2")})
	for _, of := range []struct {
		flavour, base string
	}{{"pytorch-2.9-numpy2", "pytorch-25.09-py3"}, {"pytorch-2.8-numpy1", "pytorch-25.08-py3"}} {
		base := imageIn(u.built(u.build(file, "--folder=../images/substitute-base", "--flavour=substitute", "--base-image="+smallBase,
			"--build-args=STANDS_FOR="+of.base)))
		began := time.Now()
		b := u.built(u.build(file, "--flavour="+of.flavour, "--base-image="+base, "--build-args=VIDEOLLAMA2_REPO="+repository,
			"--build-args=VIDEOLLAMA2_COMMIT="+commit),
			"installed VideoLLaMA2 "+commit, "unchanged: torch ")
		u.Logf("building %s took %s; it has %s in addition to the %s of its base", of.flavour, time.Since(began).Round(time.Second),
			humanize.Bytes(u.sizeOf(imageIn(b))-u.sizeOf(base)), humanize.Bytes(u.sizeOf(base)))
	}
}

// sizeOf returns the total size of an image's layers in the registry.
func (u trainer) sizeOf(image string) (size int64) {
	u.Helper()
	pulled, err := crane.Pull(image, crane.WithContext(u.Context()))
	if err != nil {
		u.Fatal(err)
	}
	manifest, err := pulled.Manifest()
	if err != nil {
		u.Fatal(err)
	}
	for _, layer := range manifest.Layers {
		size += layer.Size
	}
	return size
}

// apiServerAway tests that a build continues while the API server is down, and that build-image
// follows it until it ends.
func apiServerAway(u trainer) {
	done := make(chan build, 1)
	folder := u.folder("FROM " + smallBase + "\nRUN echo sleeping && sleep 45 && echo awake\n")
	go func() { done <- u.build("--cluster-file="+u.clusterFile(), "--folder="+folder, "--flavour=away") }()
	u.waitBuild("ml-dev-env-away-1", "sleeping")
	u.killControlPlane()
	const timeWithoutAnAPIServer = 20 * time.Second
	time.Sleep(timeWithoutAnAPIServer) // no event marks the end
	localcluster(u.T, "up")
	b := u.built(<-done, "Built ")
	for _, line := range []string{"\nsleeping\n", "\nawake\n"} {
		if n := strings.Count(b.out, line); n != 1 {
			u.Errorf("the log has %q %d times, want once:\n%s", line, n, shortened(b.out))
		}
	}
}
