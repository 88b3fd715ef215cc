// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	tektonfake "github.com/tektoncd/pipeline/pkg/client/clientset/versioned/fake"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/nccl"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
)

func TestMain(m *testing.M) { agenttest.Main(m) }

// now is the time at which all examinations of the tests begin.
var now = time.Date(2026, 2, 3, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }

// kubernetesNode returns the name of the Kubernetes node on which a node runs.
func kubernetesNode(node int) string { return "gpu-" + string(rune('a'+node)) }

// world is an environment env of two nodes in namespace ns. It is healthy unless a test changes it. Real agents over real
// TLS answer with the values of this struct. The fake API server validates nothing and does not support field selectors.
type world struct {
	t      *testing.T
	set    *appsv1.StatefulSet
	pods   []*corev1.Pod
	lease  *coordinationv1.Lease
	run    *v1.PipelineRun
	secret *corev1.Secret
	others []runtime.Object
	// forbidden lists resources that may not be read.
	forbidden []string
	// away reports whether the API server does not answer.
	away    bool
	nodes   []*answers
	options Options
	// spare is the third node, for a world that needs one.
	spare    *answers
	sparePod *corev1.Pod
}

// answers has the answers of a node's agent.
type answers struct {
	facts agent.Facts
	rdma  rdma.Facts
	names agent.Resolution
	// job is the job that the agent knows; there is none if its ID is "".
	job agent.JobStatus
	// doing is the activity of its ranks.
	doing []agent.RankActivity
	// A dead agent does not listen. A stuck one does not answer requests for which it must query devices.
	dead, stuck bool

	agent *agenttest.Node
}

func meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), Labels: objects.Labels("env")}
}

// An examination waits timeForTheNodes in no test, timeForTheOtherNodes in tests in which one node is stuck, and timeForTheAPIServer
// if the API server is away.
const timeForTheNodes, timeForTheOtherNodes, timeForTheAPIServer = time.Minute, 3 * time.Second, 10 * time.Second

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, options: Options{Now: func() time.Time { return now }, Patience: timeForTheNodes}}
	w.set = &appsv1.StatefulSet{ObjectMeta: meta("env"), Spec: appsv1.StatefulSetSpec{Replicas: new(int32(2))}}
	w.set.Annotations = map[string]string{objects.ModeAnnotation: string(agent.TCP)}
	w.set.Spec.Template.Labels = objects.Labels("env")
	w.set.Spec.Template.Spec.ServiceAccountName = "ml-dev-sa"
	w.run = &v1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "train-1", UID: "job-1"}}
	w.lease = &coordinationv1.Lease{ObjectMeta: meta("env"), Spec: coordinationv1.LeaseSpec{HolderIdentity: new("job-1"),
		AcquireTime: &metav1.MicroTime{Time: now.Add(-time.Hour)}}}
	w.lease.Annotations = map[string]string{lease.HolderName: "train-1", lease.HolderKind: "PipelineRun"}
	agents := agenttest.Start(t, 3)
	made := agents[0].Certificates()
	w.secret = &corev1.Secret{ObjectMeta: meta("env-agent-client"), Data: map[string][]byte{"ca.crt": made.CA, "tls.crt": made.ClientCert,
		"tls.key": made.ClientKey}}
	for i, a := range agents {
		pod := &corev1.Pod{ObjectMeta: meta(fmt.Sprintf("env-%d", i)), Spec: corev1.PodSpec{NodeName: kubernetesNode(i)}}
		pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: a.Config.PodIP,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			ContainerStatuses: []corev1.ContainerStatus{
				{Name: "train", Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: ago(time.Hour)}}}}}
		w.pods = append(w.pods, pod)
		w.nodes = append(w.nodes, &answers{agent: a, facts: factsOf(i)})
	}
	w.spare, w.nodes = w.nodes[2], w.nodes[:2]
	w.sparePod, w.pods = w.pods[2], w.pods[:2]
	for _, n := range append(w.nodes, w.spare) {
		n.names = agent.Resolution{Addresses: map[string][]string{}, Problems: map[string]string{}}
		for i, pod := range w.pods {
			n.names.Addresses[fmt.Sprintf("env-%d.env-headless.ns.svc", i)] = []string{pod.Status.PodIP}
		}
	}
	return w
}

// third adds a third node to the environment.
func (w *world) third() {
	w.nodes, w.pods, w.set.Spec.Replicas = append(w.nodes, w.spare), append(w.pods, w.sparePod), new(int32(3))
}

// factsOf returns the facts of a healthy node with two GPUs.
func factsOf(node int) agent.Facts {
	volume := agent.Volume{ID: "one", Size: 1e12, Free: 5e11}
	f := agent.Facts{
		Health: agent.Health{Protocol: agent.Protocol, Version: "test"}, Node: node, Pod: fmt.Sprintf("env-%d", node),
		KubernetesNode: kubernetesNode(node),
		GPUsExpected:   2, MemoryLimit: 256e9, MemoryUsed: 250e9, MemoryCache: 200e9, Workspace: volume, Datasets: volume,
		SharedMemory: agent.Volume{Size: 64e9, Free: 60e9},
		Environment:  map[string]string{"NCCL_IB_DISABLE": "1"}, CPUPeriods: 100_000, CPUThrottled: 10,
	}
	for i := range 2 {
		f.GPUs = append(f.GPUs, agent.GPU{Index: i, UUID: fmt.Sprintf("GPU-%d-%d", node, i), Model: "NVIDIA H100 80GB HBM3", Driver: "580.95.05",
			Utilization: 97, Temperature: 60})
	}
	return f
}

// serve makes the agents answer with the values of the world.
func (w *world) serve() {
	for _, n := range w.nodes {
		n.agent.Wrap(func(inner http.Handler) http.Handler {
			return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				answer := func(value any) {
					if err := json.NewEncoder(rw).Encode(value); err != nil {
						w.t.Error(err)
					}
				}
				if r.Method == http.MethodPut {
					w.t.Errorf("%s %s: a doctor changes nothing", r.Method, r.URL.Path)
				}
				switch {
				case r.URL.Path == "/v1/facts" && n.stuck:
					<-r.Context().Done()
				case r.URL.Path == "/v1/facts":
					answer(n.facts)
				case r.URL.Path == "/v1/rdma":
					answer(n.rdma)
				case r.URL.Path == "/v1/resolve":
					answer(n.names)
				case r.URL.Path == "/v1/jobs/"+n.job.ID+"/stacks":
					answer(n.doing)
				case r.URL.Path == "/v1/jobs/"+n.job.ID:
					answer(n.job)
				default:
					inner.ServeHTTP(rw, r)
				}
			})
		})
		if n.dead {
			n.agent.End()
		}
	}
}

// examine returns the doctor's report about the world, as users read it.
func (w *world) examine() (Report, string) {
	w.t.Helper()
	w.serve()
	known := w.others
	add := func(there bool, object runtime.Object) {
		if there {
			known = append(known, object)
		}
	}
	add(w.set != nil, w.set)
	add(w.lease != nil, w.lease)
	add(w.secret != nil, w.secret)
	for _, pod := range w.pods {
		add(pod != nil, pod)
	}
	client := fake.NewClientset(known...)
	client.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if verb := action.GetVerb(); verb != "get" && verb != "list" {
			w.t.Errorf("%s %s: a doctor changes nothing", verb, action.GetResource().Resource)
		}
		if w.away {
			return true, nil, context.DeadlineExceeded
		}
		for _, resource := range w.forbidden {
			if action.GetResource().Resource == resource {
				return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "",
					fmt.Errorf(`User "kim" cannot %s resource %q in API group "" in the namespace "ns"`, action.GetVerb(), resource))
			}
		}
		return false, nil, nil
	})
	tekton := tektonfake.NewSimpleClientset()
	if w.run != nil {
		if err := tekton.Tracker().Add(w.run); err != nil {
			w.t.Fatal(err)
		}
	}
	report := Examine(w.t.Context(), &kube.Clients{Kube: client, Tekton: tekton, Namespace: "ns", InCluster: true}, "env", w.options)
	var text bytes.Buffer
	report.Print(&text)
	return report, addresses.ReplaceAllString(text.String(), "ADDRESS")
}

// addresses matches the addresses of the agents, which differ in every run.
var addresses = regexp.MustCompile(`127\.\d+\.\d+\.\d+`)

// job gives both nodes their part of a job, as changed by change.
func (w *world) job(change func(node int, s *agent.JobStatus)) {
	for i, n := range w.nodes {
		n.job = agent.JobStatus{
			ID: "job-1", Node: i, State: agent.Running, Started: now.Add(-30 * time.Minute), Quiet: 5 * time.Second,
			Record: "/workspace/.mlenv/runs/job-1",
			Spec:   agent.JobSpec{Run: "train-1", Launcher: agent.Torchrun, Script: "train.py", Nodes: 2, RanksPerNode: 2},
		}
		for local := range 2 {
			n.job.Ranks = append(n.job.Ranks, agent.RankStatus{Rank: 2*i + local, LocalRank: local, Node: i, PID: 100 + local,
				Started: now.Add(-30 * time.Minute)})
		}
		change(i, &n.job)
		if n.job.State == agent.Running {
			n.facts.Running = []string{"job-1"}
		}
	}
}

func runs(int, *agent.JobStatus) {}

// printed is NCCL's output on a node: %[1]d is its rank.
func printed(node int, lines ...string) *nccl.Summary {
	reader := nccl.NewReader()
	for _, line := range lines {
		fmt.Fprintf(reader, "env-%d:7:8 [0] NCCL %s %s\n", node, level(line), strings.ReplaceAll(line, "RANK", fmt.Sprint(node)))
	}
	if err := reader.Close(); err != nil {
		panic(err)
	}
	s := reader.Summary()
	return &s
}

// level is NCCL's mark of a line's log level.
func level(line string) string {
	if strings.Contains(line, "Got completion") {
		return "WARN"
	}
	return "INFO"
}

// sockets returns the log of a rank that communicates over TCP.
func sockets() []string {
	return []string{
		"NET/IB : No device found.", "Using network Socket", "comm 0xbb0 rank RANK nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0",
		"ncclCommInitRankConfig comm 0xbb0 rank RANK nranks 2 cudaDev 0 nvmlDev 0 busId 61000 commId 0x6e - Init COMPLETE",
		"Channel 00/0 : 1[0] -> RANK[0] [receive] via NET/Socket/0",
	}
}

// overRDMA switches the environment to mode rdma, with two rails per node and NCCL set for them.
func (w *world) overRDMA() {
	w.set.Annotations[objects.ModeAnnotation] = string(agent.RDMA)
	for i, n := range w.nodes {
		n.rdma = rdma.Facts{PodInterface: "eth0", Interfaces: []rdma.Interface{{Name: "eth0", Index: 2}},
			GPUDirect: rdma.GPUDirect{Peermem: true, DMABUF: rdma.No}}
		for rail := range 2 {
			n.rdma.Interfaces = append(n.rdma.Interfaces, rdma.Interface{Name: fmt.Sprintf("net%d", rail+1), Index: 3 + rail})
			link := rdma.Link{Speed: 32, Width: 16}
			n.rdma.Devices = append(n.rdma.Devices, rdma.Device{
				Name: fmt.Sprintf("mlx5_%d", 6+2*i+rail), PCI: fmt.Sprintf("0000:%d3:00.2", rail), Uverbs: "uverbs0", PCIe: link, PCIeMaximum: link,
				Ports: []rdma.Port{{Number: 1, State: "ACTIVE", PhysicalState: "LinkUp", LinkLayer: rdma.Ethernet, Rate: 400 * rdma.Gbps,
					Netdev: fmt.Sprintf("net%d", rail+1), MTU: 9000,
					GIDIndex: 3, Address: netip.MustParsePrefix(fmt.Sprintf("10.0.%d.%d/24", 103+rail, 7+i))}},
			})
		}
	}
	var all []rdma.Facts
	for _, n := range w.nodes {
		all = append(all, n.rdma)
	}
	for i, n := range w.nodes {
		n.facts.Network = &agent.Network{Mode: agent.RDMA}
		n.facts.Environment = rdma.NewPlan(all, i, rdma.Expected{}, nil).Environment()
	}
}

// event adds an event about an object of the environment.
func (w *world) event(kind, name, reason, text string) {
	w.others = append(w.others, &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprintf("%s-%d", name, len(w.others))},
		Reason: reason, Message: text,
		InvolvedObject: corev1.ObjectReference{Kind: kind, Name: name, Namespace: "ns"}, FirstTimestamp: ago(2 * time.Minute),
		LastTimestamp: ago(10 * time.Second)})
}

// pending makes a pod Pending: none of its containers runs.
func (w *world) pending(node int) {
	w.pods[node].Status = corev1.PodStatus{Phase: corev1.PodPending}
	w.nodes[node].dead = true
}
