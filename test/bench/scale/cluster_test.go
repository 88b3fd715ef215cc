// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"knative.dev/pkg/apis"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/runs"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/provision"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/reaper"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/syncrepo"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/teardown"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/train"
)

// nodesVariable names the environment variable with other numbers of nodes to measure, as in 8,64.
const nodesVariable = "MLENV_BENCH_NODES"

// passes is one environment on its way through the steps on a real control plane.
type passes struct {
	b       *testing.B
	count   int
	admin   *kubernetes.Clientset
	clients *kube.Clients
	counter *counter
	pods    *observer
	all     []measurement
	// phases are in the order of their ends.
	phases           []phase
	failedHandshakes int
	log              *slog.Logger
}

// phase is a part of the environment's way, with its requests to the API server by verb and resource.
type phase struct {
	name     string
	requests map[string]traffic
}

// BenchmarkScaleOnCluster measures on the local cluster's own etcd, API server, controllers, scheduler and DNS.
func BenchmarkScaleOnCluster(b *testing.B) {
	if isolate(b) {
		return
	}
	sizes := []int{8, 64, 512}
	if only := os.Getenv(nodesVariable); only != "" {
		sizes = nil
		check(b, json.Unmarshal([]byte("["+only+"]"), &sizes))
	}
	page := scalePage("bench-scale-cluster")
	for range b.N {
		m := beginMachine(b)
		var phases []phase
		table := rows(m.when, sizes, func(count int) []measurement {
			p := passThrough(b, count)
			phases = p.phases
			return p.all
		})
		page.Print(b, "cluster", table, m.facts())
		page.Print(b, "requests", requestTable(fmt.Sprintf("%d nodes, %s", sizes[len(sizes)-1], m.when), phases), nil)
	}
}

// passThrough passes an environment of count nodes through the steps.
func passThrough(b *testing.B, count int) *passes {
	b.Helper()
	control := startControlPlane(b)
	defer control.stop()
	p := &passes{b: b, count: count, admin: adminClient(b), log: command.TextLog(io.Discard)}
	if os.Getenv(logsVariable) != "" {
		p.log = command.TextLog(os.Stderr)
	}
	p.clients, p.counter = p.newClients()
	p.prepare()
	endKubelets := startKubelets(b, count+1)
	defer endKubelets()
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	check(b, kube.WatchUntil(ctx, "nodes", p.admin.CoreV1().Nodes(), metav1.ListOptions{}, func(found []*corev1.Node) (bool, error) {
		tainted := slices.ContainsFunc(found, func(node *corev1.Node) bool { return len(node.Spec.Taints) > 0 })
		return len(found) > count && !tainted, nil
	}))
	p.awaitControllers(ctx)
	p.pods = observe(ctx, p.admin)

	p.provisioned("provision", "run", p.file())
	p.sizes()
	p.sync()
	p.train()
	p.teardown("teardown", "run")
	p.receipt()
	p.reap()
	p.admitted(control)
	p.add("TLS handshakes that failed", float64(p.failedHandshakes))
	for _, name := range []string{"kube-apiserver", "etcd", "kube-controller-manager", "kube-scheduler"} {
		p.add("peak memory of "+name+", MiB", control.memory(name))
	}
	return p
}

// awaitControllers waits until the StatefulSet controller works: after its start the controller manager needs some seconds.
func (p *passes) awaitControllers(ctx context.Context) {
	selected := map[string]string{"app": "empty"}
	empty := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "empty"}, Spec: appsv1.StatefulSetSpec{
		Replicas: new(int32(0)), Selector: &metav1.LabelSelector{MatchLabels: selected},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: selected}, Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "none", Image: "none"}}}},
	}}
	sets := p.admin.AppsV1().StatefulSets("default")
	_, err := sets.Create(ctx, empty, metav1.CreateOptions{})
	check(p.b, err)
	check(p.b, kube.UntilOne(ctx, "statefulset empty", sets, empty.Name, func(live *appsv1.StatefulSet) (bool, error) {
		return live != nil && live.Status.ObservedGeneration > 0, nil
	}))
	check(p.b, sets.Delete(ctx, empty.Name, metav1.DeleteOptions{}))
}

func (p *passes) add(what string, value float64) { p.all = append(p.all, measurement{what, value}) }

// asked adds what a phase has asked of the API server, and returns the handshakes of its connections.
func (p *passes) asked(name string, by *counter) handshakes {
	requests, shaken := by.take()
	var total traffic
	for _, t := range requests {
		total = total.plus(t)
	}
	p.add("API requests of "+name, float64(total.requests))
	p.add("watch events of "+name, float64(total.events))
	p.add("received from the API server by "+name+", MiB", float64(total.received)/(1<<20))
	p.add("sent to the API server by "+name+", KiB", float64(total.sent)/(1<<10))
	p.phases = append(p.phases, phase{name, requests})
	p.failedHandshakes += shaken.failed
	return shaken
}

// connected adds the TLS handshakes of a phase.
func (p *passes) connected(name string, h handshakes) {
	p.add("TLS handshakes of "+name, float64(h.all))
	p.add("TLS handshakes of "+name+" at once, at most", float64(h.most))
	p.add(name+": from the first handshake to the last one's end, s", h.last.Sub(h.first).Seconds())
}

func (p *passes) memory(phase string) {
	p.add("peak memory of "+phase+", MiB", peakMemory(p.b))
	resetPeak(p.b)
}

// newClients returns the clients of a step in a pod, and what counts their requests.
func (p *passes) newClients() (*kube.Clients, *counter) {
	p.b.Helper()
	counter := &counter{}
	config := adminConfig()
	config.Wrap(counter.wrap)
	clients, err := kube.NewClients(config, "ns")
	check(p.b, err)
	clients.InCluster = true
	return clients, counter
}

// prepare creates what a cluster has before the first run: kinds of Tekton, a namespace, and two volumes.
func (p *passes) prepare() {
	ctx := p.b.Context()
	for _, name := range []string{"pipelinerun", "taskrun"} {
		kind := map[string]string{"pipelinerun": "PipelineRun", "taskrun": "TaskRun"}[name]
		definition := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": name + "s.tekton.dev"},
			"spec": map[string]any{
				"group": "tekton.dev", "scope": "Namespaced", "names": map[string]any{"kind": kind, "plural": name + "s", "singular": name},
				"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true, "schema": map[string]any{
					"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}},
			},
		}}
		definitions := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
		_, err := p.clients.Objects.Resource(definitions).Create(ctx, definition, metav1.CreateOptions{})
		check(p.b, err)
	}
	_, err := p.admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}, metav1.CreateOptions{})
	check(p.b, err)
	class := p.file().Storage.ClassRWX
	_, err = p.admin.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: class},
		Provisioner: "kubernetes.io/no-provisioner"}, metav1.CreateOptions{})
	check(p.b, err)
	for _, name := range []string{"one", "two"} {
		_, err := p.admin.CoreV1().PersistentVolumes().Create(ctx, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PersistentVolumeSpec{StorageClassName: class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany},
				Capacity:               corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("10Ti")},
				PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/" + name}}}},
			metav1.CreateOptions{})
		check(p.b, err)
	}
	check(p.b, kube.WatchUntil(ctx, "the default service account", p.admin.CoreV1().ServiceAccounts("ns"), metav1.ListOptions{},
		func(found []*corev1.ServiceAccount) (bool, error) { return len(found) > 0, nil }))
}

// file returns the cluster file: one Kubernetes node more than the environment has nodes.
func (p *passes) file() cluster.File {
	const path = "../../../clusters/h-kim.yaml"
	content, err := os.ReadFile(path)
	check(p.b, err)
	file, err := cluster.Load(path, content)
	check(p.b, err)
	file.Cluster.API, file.GPUs.PerNode, file.Nodes.GPUNodes = "kubernetes.default.svc", ranksPerNode, nil
	for i := range p.count + 1 {
		file.Nodes.GPUNodes = append(file.Nodes.GPUNodes, hostName(i))
	}
	return file
}

// begin creates a PipelineRun as Tekton has it once it has started, and returns the flags of a task.
func (p *passes) begin(name, task string) run.Flags {
	started := &v1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	started.Spec.Timeouts = &v1.TimeoutFields{Pipeline: &metav1.Duration{Duration: 24 * time.Hour}}
	started.Status.StartTime = &metav1.Time{Time: time.Now()}
	started.Status.SetCondition(&apis.Condition{Type: apis.ConditionSucceeded, Status: corev1.ConditionUnknown, Reason: "Running"})
	made, err := p.clients.Tekton.TektonV1().PipelineRuns("ns").Create(p.b.Context(), started, metav1.CreateOptions{})
	check(p.b, err)
	return run.Flags{Name: name, UID: string(made.UID), Task: task}
}

// flags returns the flags of a task of a run.
func (p *passes) flags(name, task string) run.Flags {
	found, err := p.clients.Tekton.TektonV1().PipelineRuns("ns").Get(p.b.Context(), name, metav1.GetOptions{})
	check(p.b, err)
	return run.Flags{Name: name, UID: string(found.UID), Task: task}
}

// context returns the context of a step, whose handshakes count.
func (p *passes) context() context.Context { return p.counter.trace(p.b.Context()) }

// provision creates the environment for a new run.
func (p *passes) provision(name string, file cluster.File) (began, ended time.Time) {
	of := p.begin(name, "provision")
	p.counter.take()
	resetPeak(p.b)
	p.pods.reset()
	began = time.Now()
	result, err := provision.Run(p.context(), provision.Deps{Clients: p.clients, Log: p.log}, provision.Options{
		Run: of, Mode: agent.TCP, StartTimeout: time.Hour, OnBusy: "fail", OnChange: "fail", Services: objects.NoServices,
		Request: objects.Request{Cluster: file, Name: "env", Nodes: p.count, Storage: cluster.SharedStorage,
			Image: "registry.test/train:1", StepsImage: "registry.test/steps:1"},
	})
	check(p.b, err)
	if result.Nodes != p.count {
		p.b.Fatalf("provision: got %d nodes, want %d", result.Nodes, p.count)
	}
	return began, time.Now()
}

// provisioned adds a phase that creates the environment for a new run.
func (p *passes) provisioned(phase, name string, file cluster.File) {
	began, ended := p.provision(name, file)
	last := p.pods.times()
	p.add(phase+": until the last pod is created, s", last.created.Sub(began).Seconds())
	if file.Nodes.Queue != "" {
		p.add(phase+": until the last pod is admitted, s", last.admitted.Sub(began).Seconds())
	}
	p.add(phase+": until the last pod is scheduled, s", last.scheduled.Sub(began).Seconds())
	p.add(phase+": until the last pod is ready, s", last.ready.Sub(began).Seconds())
	p.add(phase+", s", ended.Sub(began).Seconds())
	p.add(phase+": after the last pod is ready, s", ended.Sub(last.ready).Seconds())
	p.connected(phase, p.asked(phase, p.counter))
	p.memory(phase)
}

// size returns the size of an answer of the API server in KiB.
func (p *passes) size(request *rest.Request) float64 {
	text, err := request.SetHeader("Accept", "application/json").DoRaw(p.b.Context())
	check(p.b, err)
	return float64(len(text)) / 1024
}

// sizes adds the sizes of what provision has led to.
func (p *passes) sizes() {
	core, apps, discovery := p.admin.CoreV1().RESTClient(), p.admin.AppsV1().RESTClient(), p.admin.DiscoveryV1().RESTClient()
	p.add("StatefulSet, KiB", p.size(apps.Get().Namespace("ns").Resource("statefulsets").Name("env")))
	p.add("a pod, KiB", p.size(core.Get().Namespace("ns").Resource("pods").Name("env-0")))
	p.add("list of the pods, KiB", p.size(core.Get().Namespace("ns").Resource("pods")))
	p.add("list of the nodes, KiB", p.size(core.Get().Resource("nodes")))
	p.add("list of the events, KiB", p.size(core.Get().Namespace("ns").Resource("events")))
	p.add("EndpointSlices, KiB", p.size(discovery.Get().Namespace("ns").Resource("endpointslices")))
	found, err := p.admin.DiscoveryV1().EndpointSlices("ns").List(p.b.Context(), metav1.ListOptions{})
	check(p.b, err)
	p.add("EndpointSlices", float64(len(found.Items)))
}

// sync sends a small folder to the nodes, as sync-repo does.
func (p *passes) sync() {
	ctx := p.context()
	p.counter.take()
	began := time.Now()
	set, detach, err := env.Of(p.clients, "env").Attach(ctx, p.log, "", p.flags("run", "sync-repo"))
	check(p.b, err)
	_, err = syncrepo.SendFolder(ctx, p.log, set, smallFolder(p.b))
	check(p.b, err)
	detach()
	p.add("sync 20 files of 1 KiB, s", time.Since(began).Seconds())
	p.connected("sync", p.asked("sync", p.counter))
	p.memory("sync")
}

// train trains until a rank fails on a node whose GPU has a fault, restarts without that node, and fails again.
func (p *passes) train() {
	ctx := p.context()
	of := p.flags("run", "train")
	task := failedTask()
	task.OwnerReferences[0].UID = types.UID(of.UID)
	task.OwnerReferences[0].APIVersion, task.OwnerReferences[0].Kind, task.OwnerReferences[0].Name = "tekton.dev/v1", "PipelineRun", "run"
	failed := task.Status
	task.Status = v1.TaskRunStatus{}
	task.Status.StartTime = &metav1.Time{Time: time.Now()}
	task.Status.SetCondition(&apis.Condition{Type: apis.ConditionSucceeded, Status: corev1.ConditionUnknown, Reason: "Running"})
	task, err := p.clients.Tekton.TektonV1().TaskRuns("ns").Create(ctx, task, metav1.CreateOptions{})
	check(p.b, err)
	p.counter.take()
	p.pods.reset()

	failing := filepath.Join(p.b.TempDir(), "fail")
	c := &course{p: p, began: time.Now(), fail: func(attempt string) { check(p.b, os.WriteFile(failing, []byte(attempt), 0o644)) }}
	_, err = train.Run(ctx, train.Deps{Clients: p.clients, Log: command.TextLog(c), Out: c}, train.Options{
		Run: of, Name: "env", Script: "train.sh", Launcher: agent.Torchrun, RanksPerNode: ranksPerNode, Timeout: time.Hour,
		MaxRestarts: 2, ProgressEvery: time.Hour, DebugRank: -1, Env: []string{failFile + "=" + failing, breakGPU + "=1"},
	})
	ended := time.Now()
	if fail.ReasonOf(err) != fail.RankFailed || c.relaunched.IsZero() {
		p.b.Fatalf("training: got %v, want RankFailed after a restart", err)
	}
	p.add("train: from the second failure until its verdict, s", ended.Sub(c.failed).Seconds())
	p.asked("train's end", p.counter)
	p.memory("train")
	task.Status = failed
	_, err = p.clients.Tekton.TektonV1().TaskRuns("ns").Update(ctx, task, metav1.UpdateOptions{})
	check(p.b, err)
}

// teardown releases the environment of a run.
func (p *passes) teardown(phase, name string) {
	of := p.flags(name, "teardown")
	p.counter.take()
	p.pods.reset()
	began := time.Now()
	_, err := teardown.Run(p.context(), teardown.Deps{Clients: p.clients, Log: p.log},
		teardown.Options{Run: of, Name: "env", Timeout: time.Hour})
	check(p.b, err)
	took := time.Since(began)
	p.add(phase+": until the last pod is deleted, s", p.pods.times().deleted.Sub(began).Seconds())
	p.add(phase+", s", took.Seconds())
	p.connected(phase, p.asked(phase, p.counter))
	p.memory(phase)
}

// receipt adds the size of the receipt.
func (p *passes) receipt() {
	config, err := p.admin.CoreV1().ConfigMaps("ns").Get(p.b.Context(), receipt.Name("run"), metav1.GetOptions{})
	check(p.b, err)
	size := 0
	for _, text := range config.Data {
		size += len(text)
	}
	p.add("receipt, KiB", float64(size)/1024)
}

// reap provisions a second time, for a run that ends without teardown, and lets the reaper release the environment.
func (p *passes) reap() {
	ctx := p.b.Context()
	p.provision("other", p.file())
	other, err := p.clients.Tekton.TektonV1().PipelineRuns("ns").Get(ctx, "other", metav1.GetOptions{})
	check(p.b, err)
	other.Status.CompletionTime = &metav1.Time{Time: time.Now()}
	other.Status.SetCondition(&apis.Condition{Type: apis.ConditionSucceeded, Status: corev1.ConditionFalse, Reason: "Failed"})
	_, err = p.clients.Tekton.TektonV1().PipelineRuns("ns").Update(ctx, other, metav1.UpdateOptions{})
	check(p.b, err)
	p.counter.take()
	resetPeak(p.b)
	p.pods.reset()
	began := time.Now()
	check(p.b, reaper.Run(ctx, p.clients, p.log, reaper.Options{}))
	took := time.Since(began)
	p.add("the reaper: until the last pod is deleted, s", p.pods.times().deleted.Sub(began).Seconds())
	p.add("the reaper, s", took.Seconds())
	p.asked("the reaper", p.counter)
	p.memory("the reaper")
}

// admitted provisions in a queue of Kueue, and tears down.
func (p *passes) admitted(control *controlPlane) {
	control.startKueue(p.b.Context(), p.admin, "ns", p.count)
	file := p.file()
	file.Nodes.Queue = "team"
	p.provisioned("provision with Kueue", "queued", file)
	p.add("Workload, KiB", p.size(p.admin.RESTClient().Get().AbsPath("apis/kueue.x-k8s.io/v1beta2/namespaces/ns/workloads")))
	p.teardown("teardown with Kueue", "queued")
	p.add("peak memory of Kueue, MiB", control.memory("kueue"))
}

// course reads train's output. In the first attempt, once rank 0 has printed its line, it asks for the status and lets the reaper look,
// and then lets a rank fail. In the second one a rank fails at once.
type course struct {
	p     *passes
	began time.Time
	fail  func(attempt string)

	mu                       sync.Mutex
	lost, failed, relaunched time.Time
}

// Write implements io.Writer.
func (c *course) Write(text []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.p.echo(text)
	has := func(part string) bool { return bytes.Contains(text, []byte(part)) }
	now := time.Now()
	switch {
	case has("Launched ") && c.lost.IsZero():
		c.p.add("train: until it is launched, s", now.Sub(c.began).Seconds())
		c.p.connected("train until it is launched", c.p.asked("train until it is launched", c.p.counter))
	case has("Launched "):
		c.relaunched = now
		c.p.add("train: from that until the next attempt is launched, s", now.Sub(c.lost).Seconds())
		c.p.add("train: of that, until the new pod is ready, s", c.p.pods.times().ready.Sub(c.lost).Seconds())
		c.p.asked("the restart", c.p.counter)
		c.failed = now
		c.fail("2")
	case has("rank 0 has started") && c.failed.IsZero():
		c.p.add("train: until rank 0's first line, s", now.Sub(c.began).Seconds())
		c.failed = now // until look sets it
		go c.look()
	case has("Attempt 1 failed"):
		c.lost = now
		c.p.add("train: from a rank's failure until its name, with all ranks stopped, s", now.Sub(c.failed).Seconds())
		c.p.asked("train until the failure's name", c.p.counter)
	}
	return len(text), nil
}

// look asks what users and the reaper ask during a training.
func (c *course) look() {
	p := c.p
	clients, counter := p.newClients()
	ask := func(what string, do func() error) {
		began := time.Now()
		if err := do(); err != nil {
			p.b.Errorf("%s: %v", what, err)
		}
		took := time.Since(began).Seconds()
		c.mu.Lock()
		defer c.mu.Unlock()
		p.add(what+", s", took)
		handshakes := p.asked(what, counter)
		if handshakes.all > 0 {
			p.connected(what, handshakes)
		}
	}
	ask("mlenv status", func() error {
		var out bytes.Buffer
		err := runs.PrintStatus(counter.trace(p.b.Context()), clients, "run", &out)
		if want := fmt.Sprintf("%d of %[1]d", ranksPerNode); err == nil && !strings.Contains(out.String(), want) {
			err = fmt.Errorf("the status is %s\nwant %s", out.String(), want)
		}
		return err
	})
	ask("the reaper's look at it", func() error { return reaper.Run(p.b.Context(), clients, p.log, reaper.Options{}) })
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed = time.Now()
	c.fail("1")
}

// echo shows a step's log to whoever keeps logs.
func (p *passes) echo(text []byte) {
	if os.Getenv(logsVariable) != "" {
		_, _ = os.Stderr.Write(text)
	}
}
