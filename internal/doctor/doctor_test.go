// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
	"github.com/ml-dev-env/ml-dev-env/test/golden"
)

// asked is one case of the doctor.
type asked struct {
	name string
	make func(*world)
	want []fail.Reason
}

// worlds lists the worlds that the doctor examines, with the names of the findings in order.
func worlds() []asked {
	return []asked{
		{"all well", func(w *world) { w.job(runs) }, nil},

		// Pods do not start.
		{"IPC_LOCK is not allowed", func(w *world) {
			w.pods, w.nodes[0].dead, w.nodes[1].dead = nil, true, true
			w.set.Spec.Template.Spec.Containers = []corev1.Container{{Name: "train"}}
			w.set.Spec.Template.Annotations = map[string]string{"openshift.io/required-scc": "nccl-scc"}
			for i := range 2 {
				w.event("StatefulSet", "env", "FailedCreate",
					fmt.Sprintf(`create Pod env-%d in StatefulSet env failed error: pods "env-%d" is forbidden: unable to validate against any security `+
						`context constraint: [provider restricted-v2: .containers[0].capabilities.add: Invalid value: "IPC_LOCK": capability may not be `+
						`added, provider "nccl-scc": Forbidden: not usable by user or serviceaccount]`, i, i))
			}
		}, []fail.Reason{"SecurityRefused"}},
		{"a resource that no node has", func(w *world) {
			w.pending(1)
			w.pods[1].Spec = corev1.PodSpec{
				Containers: []corev1.Container{
					{Name: "train",
						Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"openshift.io/eno5np0rdma": resource.MustParse("1")}}}}}
			w.pods[1].Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
				Reason: corev1.PodReasonUnschedulable, LastTransitionTime: ago(time.Minute),
				Message: "0/5 nodes are available: 2 Insufficient openshift.io/eno5np0rdma, 3 node(s) didn't match Pod's node affinity/selector."}}
		}, []fail.Reason{"NodesUnavailable"}},
		{"an attachment is missing", func(w *world) {
			w.pending(1)
			w.event("Pod", "env-1", "FailedCreatePodSandBox",
				`Failed to create pod sandbox: rpc error: code = Unknown desc = Multus: [ns/env-1/uid]: error loading k8s delegates k8s args: `+
					`TryLoadPodDelegates: error in getting k8s network for pod: GetNetworkDelegates: failed getting the delegate: `+
					`getKubernetesDelegate: cannot find a network-attachment-definition (eno5np0-network) in namespace (default): not found`)
		}, []fail.Reason{"ContainerFailed"}},
		{"an attachment was not given", func(w *world) {
			w.pods[0].Annotations = map[string]string{objects.NetworksAnnotation: "default/eno5np0-network, default/eno6np0-network",
				networksGiven: `[{"name":"ovn-kubernetes","default":true},{"name":"default/eno5np0-network","interface":"net1"}]`}
		}, []fail.Reason{"AttachmentMissing"}},
		{"starting", func(w *world) { w.pending(0); w.pending(1) }, []fail.Reason{"PodsStarting"}},
		{"its run has ended", func(w *world) {
			w.run, w.lease.Spec.RenewTime, w.lease.Spec.LeaseDurationSeconds = nil, w.lease.Spec.AcquireTime, new(int32(600))
		}, []fail.Reason{"HolderGone"}},

		// A training hangs.
		{"half of it does not answer", func(w *world) {
			w.job(func(_ int, s *agent.JobStatus) { s.Quiet = 20 * time.Minute })
			w.nodes[1].dead = true
			w.nodes[0].facts.GPUs[1].Throttled = []string{"hardware thermal slowdown"}
			w.nodes[0].facts.GPUs[1].Temperature = 89
		}, []fail.Reason{"AgentUnreachable", "GPUThrottled"}},
		{"a driver hangs", func(w *world) {
			w.options.Patience = timeForTheOtherNodes
			w.job(runs)
			w.nodes[1].stuck = true
		}, []fail.Reason{"AgentStuck"}},
		{"nothing is printed", func(w *world) {
			w.job(func(node int, s *agent.JobStatus) {
				s.Quiet = time.Duration(20+node) * time.Minute
				for _, rank := range s.Ranks {
					w.nodes[node].doing = append(w.nodes[node].doing,
						agent.RankActivity{Rank: rank.Rank, Frames: []agent.Frame{{Function: "step", File: "train.py", Line: 88}}})
				}
			})
			w.nodes[1].doing[1].Frames = []agent.Frame{{Function: "load_batch", File: "data.py", Line: 41}}
			w.nodes[0].facts.GPUs[0].Utilization = 100
		}, []fail.Reason{"NoProgress"}},
		{"it waits for a debugger", func(w *world) {
			w.job(func(_ int, s *agent.JobStatus) { s.Quiet, s.Spec.DebugRank = 20*time.Minute, new(2) })
		}, []fail.Reason{"NoProgress"}},
		{"a rank failed while others wait", func(w *world) {
			w.job(func(node int, s *agent.JobStatus) {
				if node == 1 {
					s.Ranks[1].Ended, s.Ranks[1].Exit = now.Add(-4*time.Minute), agent.Exit{Code: 1}
					s.Ranks[1].Python = &agent.PythonError{Type: "ValueError", Message: "the loss is nan", File: "train.py", Line: 11,
						Seen: now.Add(-4 * time.Minute)}
				}
			})
		}, []fail.Reason{"RankFailed"}},
		{"a rank ended early", func(w *world) {
			w.job(func(node int, s *agent.JobStatus) {
				if node == 1 {
					s.Ranks[1].Ended = now.Add(-4 * time.Minute)
				}
			})
		}, []fail.Reason{"RankEnded"}},
		{"a container was killed for memory", func(w *world) {
			w.job(func(node int, s *agent.JobStatus) {
				if node == 1 {
					s.State, s.Ranks = agent.Restarted, nil
				}
			})
			w.pods[1].Status.ContainerStatuses[0].RestartCount = 1
			w.pods[1].Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 137,
				Reason: "OOMKilled", FinishedAt: ago(3 * time.Minute)}
		}, []fail.Reason{"ContainerRestarted"}},
		{"a pod was recreated", func(w *world) { w.job(runs); w.nodes[1].job, w.nodes[1].facts.Running = agent.JobStatus{}, nil },
			[]fail.Reason{"JobMissing"}},
		{"names", func(w *world) {
			first, second := "env-0.env-headless.ns.svc", "env-1.env-headless.ns.svc"
			w.nodes[0].names.Problems[second] = "lookup " + second + ": no such host"
			delete(w.nodes[0].names.Addresses, second)
			w.nodes[1].names.Addresses[first] = []string{"10.128.3.3"}
		}, []fail.Reason{"NameResolution", "NameResolution"}},
		{"a network policy", func(w *world) {
			deny := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "deny-all"},
				Spec: networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}}}
			w.others = append(w.others, deny)
		}, []fail.Reason{"TrafficBarred"}},
		{"a network policy that lets them", func(w *world) {
			deny := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "deny-all"},
				Spec: networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}}}
			allow := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "same-namespace"},
				Spec: networkingv1.NetworkPolicySpec{
					PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
					Ingress: []networkingv1.NetworkPolicyIngressRule{
						{From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{}}}}}}}
			w.others = append(w.others, deny, allow)
		}, nil},
		{"no socket interface", func(w *world) {
			w.overRDMA()
			w.job(func(node int, s *agent.JobStatus) {
				s.NCCL = printed(node, "NCCL_SOCKET_IFNAME set by environment to net1", "NET/Socket : no interface found",
					"Bootstrap : no socket interface found")
			})
		}, []fail.Reason{"NoSocketInterface", "SettingChanged"}},
		{"the IOMMU", func(w *world) {
			w.overRDMA()
			w.nodes[1].rdma.Findings = []fail.Finding{{Level: fail.Degraded, Reason: rdma.IOMMUTranslates,
				Seen: "IOMMU: it translates the devices' addresses", Next: "boot the node's kernel with iommu=pt (by a MachineConfig)"}}
			w.job(func(node int, s *agent.JobStatus) {
				s.NCCL = printed(node, "NET/IB: Got completion from peer 10.129.0.21<54862> with status=IBV_WC_LOC_PROT_ERR(4) opcode=IBV_WC_SEND(0) "+
					"reqSize=65536 vendor_err=81 req_type=Send localGid ::ffff:10.0.103.7 remoteGids::ffff:10.0.103.8 hca mlx5_6")
			})
		}, []fail.Reason{"DMARefused", "IOMMUTranslates"}},
		{"memory lock and an address twice", func(w *world) {
			w.overRDMA()
			w.nodes[1].rdma.Devices[0].Ports[0].Address = w.nodes[0].rdma.Devices[0].Ports[0].Address
			w.nodes[1].rdma.Findings = []fail.Finding{{Level: fail.Broken, Reason: rdma.MemoryLimited,
				Seen: "locking memory: 8 MiB: IPC_LOCK is not effective: registering memory would fail with ENOMEM"}}
		}, []fail.Reason{"MemoryLimited", "AddressTwice"}},
		{"rails differ while a node is silent", func(w *world) {
			w.third()
			w.overRDMA()
			w.nodes[1].dead = true
			w.nodes[2].rdma.Devices[0].Ports[0].MTU = 1500
			w.nodes[2].rdma.Devices = w.nodes[2].rdma.Devices[:1]
		}, []fail.Reason{"AgentUnreachable", "RailMissing", "RailDiffers"}},

		{"the MTU is not the expected one", func(w *world) {
			w.overRDMA()
			for _, n := range w.nodes {
				n.facts.Network.Expected.MTU = 1500
			}
		}, []fail.Reason{"MTUDiffers"}},

		// A training is slow.
		{"sockets though RDMA was wanted", func(w *world) {
			w.overRDMA()
			w.job(func(node int, s *agent.JobStatus) { s.NCCL = printed(node, sockets()...) })
		}, []fail.Reason{"SocketsInsteadOfRDMA", "NoRDMADevice"}},
		{"NCCL has settings of other devices", func(w *world) {
			w.overRDMA()
			w.nodes[0].facts.Environment["NCCL_IB_HCA"] = "=mlx5_2,mlx5_3"
			delete(w.nodes[1].facts.Environment, "NCCL_CROSS_NIC")
		}, []fail.Reason{"CrossNIC", "SettingsStale"}},
		{"racks are interleaved", func(w *world) {
			w.third()
			w.job(func(_ int, s *agent.JobStatus) { s.Spec.Nodes = 3 })
			for i, n := range w.nodes {
				n.facts.Network = &agent.Network{Mode: agent.TCP, Rack: []string{"r4", "r5", "r4"}[i]}
			}
		}, []fail.Reason{"RacksInterleaved"}},
		{"racks side by side", func(w *world) {
			w.third()
			w.job(func(_ int, s *agent.JobStatus) { s.Spec.Nodes, s.Spec.Order = 3, []int{0, 2, 1} })
			for i, n := range w.nodes {
				n.facts.Network = &agent.Network{Mode: agent.TCP, Rack: []string{"r4", "r5", "r4"}[i]}
			}
		}, nil},
		{"rails are not used", func(w *world) { w.overRDMA(); w.set.Annotations[objects.ModeAnnotation] = "tcp" }, []fail.Reason{"RDMAUnused"}},
		{"GPUs", func(w *world) {
			w.job(runs)
			a, b := &w.nodes[0].facts, &w.nodes[1].facts
			a.GPUs[0].Throttled, a.GPUs[0].Temperature = []string{"hardware slowdown", "hardware power brake"}, 71
			a.GPUs[1].Fault = "the driver asks for recovery: Reset; 2 uncorrected memory errors"
			b.GPUs = b.GPUs[:1]
			b.GPUs[0].Driver = "570.10"
		}, []fail.Reason{"GPUMissing", "GPUFaulty", "GPUThrottled", "GPUsDiffer"}},
		{"a rank is slow", func(w *world) {
			w.job(func(node int, s *agent.JobStatus) {
				if runs(node, s); node == 0 {
					s.RankSeconds = []float64{0.4, 0.41, 0.9, 0.42}
				}
			})
		}, []fail.Reason{"RankSlow"}},
		{"ranks that differ a little", func(w *world) {
			w.job(func(node int, s *agent.JobStatus) { runs(node, s); s.RankSeconds = []float64{0.4, 0.41, 0.5, 0.42} })
		}, nil},
		{"GPUs have nothing to do", func(w *world) {
			w.job(runs)
			for _, n := range w.nodes {
				n.facts.GPUs[0].Utilization, n.facts.GPUs[1].Utilization = 0, 3
			}
		}, []fail.Reason{"GPUsIdle"}},
		{"limits are near", func(w *world) {
			a, b := &w.nodes[0].facts, &w.nodes[1].facts
			a.MemoryCache, a.SharedMemory.Free, a.CPUThrottled = 0, 1e9, 40_000
			a.Workspace.Free, b.Workspace.Free = 2e10, 0
			b.Workspace.ID, b.Datasets = "another", agent.Volume{Problem: "permission denied"}
		}, []fail.Reason{"StorageNotShared", "VolumeUnusable", "VolumeFull", "SharedMemoryFull", "VolumeFull", "MemoryNearLimit",
			"CPUThrottled"}},

		// Some objects may not be read.
		{"the Secret may not be read", func(w *world) { w.forbidden = []string{"secrets"} }, []fail.Reason{"NotReadable"}},
		{"the Secret is gone", func(w *world) { w.secret = nil }, []fail.Reason{"NotReadable"}},
		{"pods may not be read", func(w *world) {
			w.forbidden = []string{"pods"}
			w.job(runs)
			w.nodes[0].facts.GPUs[0].Fault = "1 uncorrected memory error"
		}, []fail.Reason{"NotReadable", "NotReadable", "NotReadable"}},
		{"the API server is away", func(w *world) { w.away, w.options.Patience = true, timeForTheAPIServer }, []fail.Reason{"NotReadable"}},
		{"nothing may be read", func(w *world) { w.forbidden = []string{"leases", "secrets", "statefulsets"} },
			[]fail.Reason{"NotReadable", "NotReadable", "NotReadable"}},
	}
}

func TestExamine(t *testing.T) {
	for _, tc := range worlds() {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			tc.make(w)
			report, text := w.examine()
			var got []fail.Reason
			for _, f := range report.Findings {
				got = append(got, f.Reason)
				if f.Seen == "" || f.Object == "" || f.Next == "" {
					t.Errorf("finding %+v: want an object, evidence and a next command", f)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("findings (-want +got):\n%s", diff)
			}
			goldenReport(t, tc.name, text)
		})
	}
}

func goldenReport(t *testing.T, name, text string) {
	t.Helper()
	golden.File(t, filepath.Join("testdata", strings.ReplaceAll(name, " ", "-")+".txt"), text)
}

func TestNoEnvironment(t *testing.T) {
	w := newWorld(t)
	w.set, w.pods, w.lease, w.secret = nil, nil, nil, nil
	other := newWorld(t).set
	other.Name, other.Labels = "h-kim", objects.Labels("h-kim")
	other.Status.ReadyReplicas = 1
	w.others = append(w.others, other, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}})
	for i, reason := range []string{"GPUsUnavailable", "RankFailed"} {
		w.others = append(w.others, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprintf("train-%d-receipt", i),
				CreationTimestamp: ago(time.Duration(2-i) * time.Hour),
				Labels:            map[string]string{receipt.Label: "true", objects.EnvironmentLabel: "env"}},
			Data: map[string]string{
				"receipt.json": fmt.Sprintf(`{"run":"train-%d","namespace":"ns","environment":"env","verdict":"Failed","reason":%q,"message":"rank 3 `+
					`exited with 1","ended":"2026-02-03T11:00:00Z"}`, i, reason)},
		})
	}
	report, text := w.examine()
	if !report.Failed() || len(report.Findings) != 1 {
		t.Errorf("got %+v, want a finding that it is missing", report.Findings)
	}
	goldenReport(t, "no environment", text)
}

func TestNoNamespace(t *testing.T) {
	w := newWorld(t)
	w.set, w.pods, w.lease, w.secret = nil, nil, nil, nil
	report, text := w.examine()
	if !report.Failed() || len(report.Findings) != 1 || !strings.Contains(text, "looking for namespace ns: it does not exist") {
		t.Errorf("want only the finding that the namespace is missing:\n%s", text)
	}
}

// The examination takes a bounded time, however many nodes do not answer.
func TestBounded(t *testing.T) {
	w := newWorld(t)
	const timeThatPasses, timeForTheWholeExamination = 300 * time.Millisecond, time.Minute
	w.options.Patience = timeThatPasses
	w.job(runs)
	w.nodes[0].stuck, w.nodes[1].stuck = true, true
	began := time.Now()
	report, _ := w.examine()
	if took := time.Since(began); took > timeForTheWholeExamination || len(report.Findings) == 0 {
		t.Errorf("it took %s and found %+v; want the stuck nodes, in at most %s", took, report.Findings, timeForTheWholeExamination)
	}
}

// A report without findings has an empty list in JSON, too.
func TestJSON(t *testing.T) {
	report, _ := newWorld(t).examine()
	content, err := json.Marshal(report)
	if err != nil || !strings.Contains(string(content), `"findings":[]`) {
		t.Errorf("got %s, %v; want an empty list of findings", content, err)
	}
}

// TestMergedFindings: a finding about many nodes has the whole name of each, once.
func TestMergedFindings(t *testing.T) {
	var found []Finding
	var names []string
	for i := range 40 {
		name := fmt.Sprintf("node %d (env-%d on gpu-%d.example.com)", i, i, i)
		names = append(names, name)
		found = append(found, Finding{fail.Finding{Reason: VolumeUnusable, Object: name, Seen: "/datasets: stale file handle"}, Slow})
	}
	found = append(found, found[0])
	if got, want := merge(found), strings.Join(names, ", "); len(got) != 1 || got[0].Object != want {
		t.Errorf("got %+v, want one finding of %s", got, want)
	}
}
