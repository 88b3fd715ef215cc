// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	tektonfake "github.com/tektoncd/pipeline/pkg/client/clientset/versioned/fake"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"knative.dev/pkg/apis"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env"
	"github.com/ml-dev-env/ml-dev-env/internal/env/certs"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/syncrepo"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/teardown"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/train"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
	"github.com/ml-dev-env/ml-dev-env/test/bench/report"
)

func TestMain(m *testing.M) { agenttest.Main(m) }

const ranksPerNode = 8

func BenchmarkScale(b *testing.B) {
	page := scalePage("bench-scale")
	for range b.N {
		m := beginMachine(b)
		steps := rows(m.when, []int{8, 64, 256, 512}, func(count int) []measurement { return measure(b, count, agent.Torchrun) })
		page.Print(b, "steps", steps, nil)
		processes := rows(m.when, []int{8, 64}, func(count int) []measurement { return measure(b, count, agent.Command) })
		page.Print(b, "processes", processes, m.facts())
	}
}

// scalePage quotes the tables of the benchmarks.
func scalePage(target string) report.Page {
	return report.Page{Root: "../../..", Name: "scale", Target: target}
}

// rows measures each number of nodes, and returns a table with a column for each. A value that is always 0 has no row.
func rows(when string, sizes []int, measure func(count int) []measurement) [][]string {
	head := []string{"nodes, " + when}
	values := map[string][]float64{}
	var names []string
	for _, count := range sizes {
		head = append(head, strconv.Itoa(count))
		for _, m := range measure(count) {
			if values[m.what] == nil {
				names = append(names, m.what)
			}
			values[m.what] = append(values[m.what], m.value)
		}
	}
	table := [][]string{head}
	for _, name := range names {
		if !slices.ContainsFunc(values[name], func(value float64) bool { return value != 0 }) {
			continue
		}
		row := []string{name}
		for i, value := range values[name] {
			cell := number(value)
			if before := values[name][max(0, i-1)]; i > 0 && before > 0 {
				cell += fmt.Sprintf(" (%s x)", number(value/before))
			}
			row = append(row, cell)
		}
		table = append(table, row)
	}
	return table
}

func number(v float64) string {
	if v >= 10 || v == float64(int(v)) {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.2g", v)
}

// measurement has its unit in its name.
type measurement struct {
	what  string
	value float64
}

// measure passes an environment of count nodes through the steps.
func measure(b *testing.B, count int, launcher agent.Launcher) (all []measurement) {
	b.Helper()
	add := func(what string, value float64) { all = append(all, measurement{what, value}) }
	built := environmentObjects(b, count)
	largest, sum := 0, 0
	for _, object := range built {
		text, err := json.Marshal(object)
		check(b, err)
		largest, sum = max(largest, len(text)), sum+len(text)
	}
	add("objects that provision applies", float64(len(built)))
	add("their size, KiB", float64(sum)/1024)
	add("largest of them, KiB", float64(largest)/1024)

	agents, end := startAgents(b, count)
	defer end()
	api, clients := newCluster(agents)
	requests := func(what string) {
		add("API requests of "+what, float64(len(api.Actions())))
		add("peak memory of "+what+", MiB", peakMemory(b))
		resetPeak(b)
		api.ClearActions()
	}
	log := command.TextLog(io.Discard)
	ctx := b.Context()
	of := run.Flags{Name: "run", UID: "uid-1", Task: "train"}
	resetPeak(b)
	api.ClearActions()
	busy := cpuSeconds(b)

	began := time.Now()
	set, err := env.Of(clients, "env").Nodes(ctx, "")
	check(b, err)
	check(b, set.Each(ctx, func(ctx context.Context, client *agent.Client) error { _, err := client.Health(ctx); return err }))
	add("connect to all agents, s", time.Since(began).Seconds())
	var account bytes.Buffer
	began = time.Now()
	_, err = syncrepo.SendFolder(ctx, slog.New(slog.NewJSONHandler(&account, nil)), set, largeFolder(b))
	check(b, err)
	add("sync a file of 1.5 MiB, a second more for each wave, s", time.Since(began).Seconds())
	sent := accountOf(b, &account)
	add("waves in which nodes pass it on", sent.Waves)
	add("sent for it by the step, MiB", sent.Bytes/(1<<20))
	began = time.Now()
	_, err = syncrepo.SendFolder(ctx, log, set, smallFolder(b))
	check(b, err)
	add("sync 20 files of 1 KiB, s", time.Since(began).Seconds())
	set.Close()
	requests("connecting and sync")

	failing := filepath.Join(b.TempDir(), "fail")
	out := &follower{began: time.Now(), lines: count * ranks(launcher)}
	if out.lines > 64 {
		out.lines = 1 // train shows only the lines of rank 0
	}
	out.all = func() {
		add("connections of train", float64(sockets(b)))
		check(b, os.WriteFile(failing, []byte("1"), 0o644))
		out.failed = time.Now()
	}
	_, err = train.Run(ctx, train.Deps{Clients: clients, Log: command.TextLog(out), Out: out}, train.Options{
		Run: of, Name: "env", Script: "train.sh", Launcher: launcher, RanksPerNode: ranksPerNode, Timeout: time.Hour, ProgressEvery: time.Hour,
		HangTimeout: train.HangTimeout{}, DebugRank: -1, Env: []string{failFile + "=" + failing},
	})
	last := fmt.Sprintf("rank %d on node %d", count*ranks(launcher)-1, count-1)
	if fail.ReasonOf(err) != fail.RankFailed || !strings.Contains(err.Error(), last) {
		b.Fatalf("training: got %v, want RankFailed with %s", err, last)
	}
	add("train: until it is launched, s", out.launched.Sub(out.began).Seconds())
	add("train: until the first line of each shown rank, s", out.failed.Sub(out.began).Seconds())
	add("train: from a rank's failure until its name, with all ranks stopped, s", time.Since(out.failed).Seconds())
	requests("train")

	_, err = clients.Tekton.TektonV1().TaskRuns("ns").Create(ctx, failedTask(), metav1.CreateOptions{})
	check(b, err)
	began = time.Now()
	of.Task = "teardown"
	written, err := teardown.Run(ctx, teardown.Deps{Clients: clients, Log: log}, teardown.Options{Run: of, Name: "env", Timeout: time.Minute})
	check(b, err)
	add("teardown, s", time.Since(began).Seconds())
	requests("teardown")
	config, err := api.CoreV1().ConfigMaps("ns").Get(ctx, receipt.Name("run"), metav1.GetOptions{})
	check(b, err)
	if got := written.Cause; got == nil || got.Node != count-1 {
		b.Errorf("the receipt's cause is %v, want node %d", got, count-1)
	}
	size := 0
	for _, text := range config.Data {
		size += len(text)
	}
	add("receipt, KiB", float64(size)/1024)
	add("CPU time of the steps, s", cpuSeconds(b)-busy)
	return all
}

// ranks returns the number of ranks on each node.
func ranks(launcher agent.Launcher) int {
	return agent.JobSpec{Launcher: launcher, RanksPerNode: ranksPerNode}.RanksOfNode()
}

// environmentObjects returns the objects that provision applies.
func environmentObjects(b *testing.B, count int) []objects.Object {
	const path = "../../../clusters/h-kim.yaml"
	content, err := os.ReadFile(path)
	check(b, err)
	file, err := cluster.Load(path, content)
	check(b, err)
	file.Nodes.GPUNodes = nil
	for i := range count {
		file.Nodes.GPUNodes = append(file.Nodes.GPUNodes, fmt.Sprintf("moc-r4pcc%03du%02d", i/32, i%32))
	}
	made, err := certs.New("ns", "env", time.Now(), false)
	check(b, err)
	built, err := objects.Build(objects.Request{Cluster: file, Name: "env", Namespace: "ns", Nodes: count, Mode: agent.RDMA,
		Image: "registry.test/train:1", StepsImage: "registry.test/steps:1"}.WithDefaults(), objects.LeaseReference("env", "uid"), made)
	check(b, err)
	return built.InOrder()
}

// newCluster returns a fake API server with the pods of the agents. client-go's fake does not limit requests and runs
// no controllers. So this one deletes the StatefulSet and its pods together with the Lease.
func newCluster(e environment) (*fake.Clientset, *kube.Clients) {
	about := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "ns", Name: name, UID: "uid-of-env", Labels: objects.Labels("env")}
	}
	names, holder, count := env.Of(&kube.Clients{Namespace: "ns"}, "env").Names, "uid-1", int32(len(e.Addresses))
	known := []k8sruntime.Object{
		&corev1.Secret{ObjectMeta: about(names.ClientSecret),
			Data: map[string][]byte{"ca.crt": e.Certificates.CA, "tls.crt": e.Certificates.ClientCert, "tls.key": e.Certificates.ClientKey}},
		&appsv1.StatefulSet{ObjectMeta: about(names.StatefulSet), Spec: appsv1.StatefulSetSpec{Replicas: &count}},
		&coordinationv1.Lease{ObjectMeta: about(names.Lease), Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder}},
	}
	for i, address := range e.Addresses {
		pod := &corev1.Pod{ObjectMeta: about(names.PodName(i)), Spec: corev1.PodSpec{NodeName: fmt.Sprintf("node-%d", i)}}
		pod.Status.Phase, pod.Status.PodIP = corev1.PodRunning, address
		known = append(known, pod)
	}
	api := fake.NewClientset(known...)
	api.PrependReactor("delete", "leases", func(clienttesting.Action) (bool, k8sruntime.Object, error) {
		tracker := api.Tracker()
		err := tracker.Delete(appsv1.SchemeGroupVersion.WithResource("statefulsets"), "ns", names.StatefulSet)
		for i := range e.Addresses {
			err = errors.Join(err, tracker.Delete(corev1.SchemeGroupVersion.WithResource("pods"), "ns", names.PodName(i)))
		}
		return false, nil, err
	})
	started := &v1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "run", UID: "uid-1"}}
	return api, &kube.Clients{Kube: api, Tekton: tektonfake.NewSimpleClientset(started), Namespace: "ns", InCluster: true}
}

// failedTask returns Tekton's TaskRun of the failed train step.
func failedTask() *v1.TaskRun {
	task := &v1.TaskRun{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "run-train", Labels: map[string]string{"tekton.dev/pipelineRun": "run", "tekton.dev/pipelineTask": "train"},
		OwnerReferences: []metav1.OwnerReference{{UID: "uid-1"}},
	}}
	task.Status.StartTime, task.Status.CompletionTime = &metav1.Time{Time: time.Now()}, &metav1.Time{Time: time.Now()}
	task.Status.SetCondition(&apis.Condition{Type: apis.ConditionSucceeded, Status: corev1.ConditionFalse, Reason: "Failed"})
	task.Status.Results = []v1.TaskRunResult{{Name: "reason", Value: *v1.NewStructuredValues(string(fail.RankFailed))}}
	return task
}

// smallFolder has the script of real processes, and some files.
func smallFolder(b *testing.B) syncrepo.Folder {
	dir := b.TempDir()
	script := "#!/bin/sh\necho \"node $NODE_RANK has started\"\nif [ $NODE_RANK = $((NUM_NODES-1)) ]; then until [ -e $" + failFile +
		" ]; do sleep 0.1; done; exit 3; fi\nexec sleep 1000\n"
	check(b, os.WriteFile(filepath.Join(dir, "train.sh"), []byte(script), 0o755))
	for i := range 19 {
		check(b, os.WriteFile(filepath.Join(dir, fmt.Sprintf("module%d.py", i)), bytes.Repeat([]byte{byte('a' + i)}, 1024), 0o644))
	}
	ignore, err := tree.LoadIgnore(dir)
	check(b, err)
	return syncrepo.Folder{Dir: dir, Ignore: ignore}
}

// largeFolder has a file that many nodes pass on to each other. It does not compress.
func largeFolder(b *testing.B) syncrepo.Folder {
	dir, content := b.TempDir(), make([]byte, 3<<19)
	_, _ = rand.NewChaCha8([32]byte{}).Read(content)
	check(b, os.WriteFile(filepath.Join(dir, "data"), content, 0o644))
	return syncrepo.Folder{Dir: dir}
}

// sent is the summary that sync logs at its end.
type sent struct{ Bytes, Volumes, Waves float64 }

// accountOf reads a log of sync, in JSON.
func accountOf(b *testing.B, log io.Reader) (last sent) {
	for lines := json.NewDecoder(log); last.Volumes == 0; {
		check(b, lines.Decode(&last))
	}
	return last
}

// follower reads the output of train: the step's own lines, and the first line of each rank that is shown.
type follower struct {
	began, launched, failed time.Time
	// lines is the number of missing lines. The follower calls all after the last one.
	lines int
	all   func()
	mu    sync.Mutex
}

func (f *follower) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if bytes.Contains(p, []byte("Launched ")) {
		f.launched = time.Now()
	}
	if found := bytes.Count(p, []byte(" has started\n")); found > 0 && f.lines > 0 {
		if f.lines -= found; f.lines == 0 {
			f.all()
		}
	}
	return len(p), nil
}

// sockets returns the number of this program's open sockets.
func sockets(b *testing.B) (count int) {
	files, err := os.ReadDir("/proc/self/fd")
	check(b, err)
	for _, file := range files {
		if target, _ := os.Readlink("/proc/self/fd/" + file.Name()); strings.HasPrefix(target, "socket:") {
			count++
		}
	}
	return count
}

// resetPeak resets the peak that peakMemory returns.
func resetPeak(b *testing.B) {
	debug.FreeOSMemory()
	check(b, os.WriteFile("/proc/self/clear_refs", []byte("5"), 0))
}

// peakMemory returns this program's peak memory in MiB.
func peakMemory(b *testing.B) float64 { return peakOf(b, "self") }

// peakOf returns the peak memory of a process in MiB.
func peakOf(b *testing.B, process string) float64 {
	status, err := os.ReadFile("/proc/" + process + "/status")
	check(b, err)
	for line := range strings.Lines(string(status)) {
		var kib float64
		if _, err := fmt.Sscanf(line, "VmHWM: %f kB", &kib); err == nil {
			return kib / 1024
		}
	}
	b.Fatalf("reading /proc/%s/status: no VmHWM", process)
	return 0
}

// cpuSeconds returns the CPU time that this program has used.
func cpuSeconds(b *testing.B) float64 { return usedBy(b, syscall.RUSAGE_SELF) }

// usedBy returns the CPU time of this program, or of the programs that it started and that have ended.
func usedBy(b *testing.B, programs int) float64 {
	var usage syscall.Rusage
	check(b, syscall.Getrusage(programs, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()).Seconds()
}

// check ends the benchmark after an error.
func check(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}
