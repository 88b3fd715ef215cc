// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/env/certs"
	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

func day() *v1.TimeoutFields {
	return &v1.TimeoutFields{Pipeline: &metav1.Duration{Duration: 24 * time.Hour}}
}

func whole() []string {
	return []string{"claim env-datasets", "claim env-workspace", "lease env lease-1", "pod env-0", "pod env-1", "statefulset env"}
}

func claims() []string { return []string{"claim env-datasets", "claim env-workspace"} }

func TestCheckPlace(t *testing.T) {
	// The certificate of the test server is for example.com and 127.0.0.1.
	other := httptest.NewTLSServer(http.NotFoundHandler())
	defer other.Close()
	for _, tc := range []struct {
		name     string
		timeouts *v1.TimeoutFields
		change   func(*provisioner)
		want     fail.Reason // "" for success
		words    string
		next     string
	}{
		{"fits", day(), func(p *provisioner) { p.options.TrainingTimeout = 20 * time.Hour }, "", "", ""},
		{"by hand", nil, func(p *provisioner) { p.options.Run.Name, p.options.TrainingTimeout = "", 20*time.Hour }, "", "", ""},
		{"another cluster", day(), func(p *provisioner) { p.clients.Config = &rest.Config{Host: other.URL} }, fail.WrongCluster, "example.com",
			"oc whoami --show-server"},
		{"a cluster that cannot be told", day(), func(p *provisioner) { p.clients.Config = &rest.Config{Host: "http://127.0.0.1:1"} }, "", "",
			""},
		{"the default timeout is too short", nil, func(p *provisioner) { p.options.TrainingTimeout = 24 * time.Hour }, fail.TimeoutTooShort,
			"pipeline 1h, want 24h", "tkn pipeline start ... --pipeline-timeout=24h12m --tasks-timeout=24h7m --finally-timeout=5m"},
		{"a kept environment is waited for in finally", day(), func(p *provisioner) {
			p.options.TrainingTimeout, p.options.KeepFor = time.Hour, 48*time.Hour
		}, fail.TimeoutTooShort,
			"pipeline 24h, want 48h", "tkn pipeline start ... --pipeline-timeout=48h11m --tasks-timeout=6m --finally-timeout=48h5m"},
		{"no such run", nil, func(p *provisioner) { p.options.Run.Name = "other" }, fail.Internal, "pipelinerun ns/other", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newPlace(t).withRun(tc.timeouts)
			step := p.provisioner(tc.change)
			// The run started some milliseconds ago, and the step would round that up.
			step.now = func() time.Time { return time.Now().Add(-time.Second) }
			err := step.checkTarget(t.Context())
			if tc.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || fail.ReasonOf(err) != tc.want || !strings.Contains(err.Error(), tc.words) {
				t.Errorf("got %s: %v; want %s with %q", fail.ReasonOf(err), err, tc.want, tc.words)
			}
			if next := fail.NextOf(err); !strings.Contains(next, tc.next) || strings.HasPrefix(tc.next, "tkn") && next != tc.next {
				t.Errorf("advice %q, want %q", next, tc.next)
			}
		})
	}
}

func TestProvisionTwice(t *testing.T) {
	p := newPlace(t).withRun(day())
	want := Result{Name: "env", Mode: agent.TCP, Storage: cluster.SharedStorage, Nodes: 2, ImageDigest: "registry.test/train@sha256:" +
		strings.Repeat("1", 64)}
	for i, message := range []string{"2 nodes, 2 GPUs each, storage rwx, mode tcp", "The environment exists already, as requested."} {
		got, err := p.provisioner().run(t.Context())
		if err != nil {
			t.Fatalf("time %d: %v\n%s", i+1, err, p.messages())
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("time %d: result (-want +got):\n%s", i+1, diff)
		}
		if diff := cmp.Diff(whole(), p.left()); diff != "" {
			t.Errorf("time %d: objects (-want +got):\n%s", i+1, diff)
		}
		if !strings.Contains(p.messages(), message) {
			t.Errorf("time %d: log %s\nwant %q in it", i+1, p.messages(), message)
		}
	}
}

// If nodes turn out to be unable to use RDMA, they use TCP if the requested mode is auto; otherwise the step fails. The
// agents of a test have no RDMA device.
func TestNodesWithoutRDMA(t *testing.T) {
	for _, tc := range []struct {
		mode, requested agent.Mode
		fallsBack       bool
	}{
		{"rdma", "auto", true},
		{"rdma", "rdma", false},
		{"rdma", "", false},
	} {
		t.Run(string(tc.mode+" for "+tc.requested), func(t *testing.T) {
			p := newPlace(t).withRun(day())
			var usable string
			p.wrong = func(f *agent.Facts) {
				if f.Network != nil {
					usable = string(f.Network.Mode) + " " + f.Environment["NCCL_IB_DISABLE"] + " " + f.Environment["NCCL_NET"]
				}
			}
			got, err := p.provisioner(func(s *provisioner) {
				s.options.Mode, s.options.RequestedMode, s.request.Mode = tc.mode, tc.requested, agent.RDMA
				s.request.Cluster.Network.RDMA.Enabled, s.request.Cluster.Security.RequiresPrivilegedSCC = true, true
			}).run(t.Context())
			if !tc.fallsBack {
				if fail.ReasonOf(err) != fail.RDMAUnavailable {
					t.Errorf("got %s: %v, want RDMAUnavailable", fail.ReasonOf(err), err)
				}
				return
			}
			if err != nil {
				t.Fatalf("%v; log %s", err, p.messages())
			}
			if got.Mode != agent.TCP || !strings.Contains(got.Why, "the nodes cannot use RDMA: using RDMA on nodes 0 and 1: looking for RDMA "+
				"devices") {
				t.Errorf("mode %s because %q; want TCP for lack of devices", got.Mode, got.Why)
			}
			if !strings.Contains(p.messages(), "Mode tcp, because the nodes cannot use RDMA") ||
				!strings.Contains(p.messages(), "storage rwx, mode tcp") {
				t.Errorf("log %s", p.messages())
			}
			facts, err := p.agents[0].Client.Facts(t.Context())
			if err != nil || usable != "tcp 1 Socket" || facts.Network.Mode != agent.TCP {
				t.Errorf("got %v, ranks have %q, want the mode tcp and NCCL on sockets", err, usable)
			}
		})
	}
}

// Barcelona's pods ask for no capability. If their account may use a constraint that allows IPC_LOCK they ask for it, and the receipt names
// the constraint. The fake API server admits nothing: a reactor answers dry runs as OpenShift does, and allowed is the constraint.
func TestPodsLockMemory(t *testing.T) {
	for _, allowed := range []string{"nccl-scc", ""} {
		t.Run(allowed, func(t *testing.T) {
			p := newPlace(t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "ml-dev-sa", Namespace: "ns"}}).withRun(day())
			p.kube.Resources = append(p.kube.Resources, &metav1.APIResourceList{GroupVersion: "security.openshift.io/v1"})
			dryRuns := 0
			p.kube.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
				pod := action.(clienttesting.CreateAction).GetObject().(*corev1.Pod).DeepCopy()
				if dryRuns++; allowed == "" && objects.AsksIPCLock(&pod.Spec) {
					return true, nil, apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("unable to validate against any security "+
						`context constraint: [provider restricted-v2: .containers[0].capabilities.add: Invalid value: "IPC_LOCK": capability may not `+
						`be added]`))
				}
				pod.Annotations = map[string]string{objects.AdmittedByAnnotation: allowed,
					"security.openshift.io/validated-scc-subject-type": "serviceaccount"}
				return true, pod, nil
			})
			p.admittedBy = allowed
			provision := func() (Result, error) {
				return p.provisioner(func(s *provisioner) {
					// The agents of a test have no RDMA device, so the nodes use TCP in the end.
					s.options.Mode, s.options.RequestedMode, s.request.Mode = "rdma", "auto", agent.RDMA
					network := &s.request.Cluster.Network.RDMA
					network.Enabled, network.Attachments, network.Resources = true, []string{"rail"}, map[string]int{"openshift.io/rail": 1}
				}).run(t.Context())
			}
			got, err := provision()
			if err != nil || got.Constraint != allowed {
				t.Fatalf("got constraint %q, %v, want %q; log %s", got.Constraint, err, allowed, p.messages())
			}
			const says = "Locked memory: the pods ask for IPC_LOCK, which security context constraint nccl-scc allows them"
			if strings.Contains(p.messages(), says) != (allowed != "") {
				t.Errorf("constraint %q, but the log says\n%s", allowed, p.messages())
			}
			set, err := p.kube.AppsV1().StatefulSets("ns").Get(t.Context(), "env", metav1.GetOptions{})
			if err != nil || objects.AsksIPCLock(&set.Spec.Template.Spec) != (allowed != "") {
				t.Errorf("constraint %q, but the pods are %v, %v", allowed, set.Spec.Template.Spec.Containers[0].SecurityContext, err)
			}
			// The second time it keeps what exists, whatever the account may use by then.
			asked := dryRuns
			allowed = ""
			if _, err := provision(); err != nil || !strings.Contains(p.messages(), "The environment exists already, as requested.") {
				t.Errorf("again: %v; log %s", err, p.messages())
			}
			if dryRuns != asked {
				t.Errorf("%d dry runs for an environment that exists", dryRuns-asked)
			}
		})
	}
}

// Pods that cannot get RDMA devices never start, so provision cannot query their nodes. In mode auto they start over TCP.
func TestPodsWithoutRails(t *testing.T) {
	const noDevice, noGPU = "0/2 nodes are available: 2 Insufficient openshift.io/eno9np0rdma.", "0/2 nodes are available: 2 Insufficient " +
		"nvidia.com/gpu, 2 Insufficient openshift.io/eno9np0rdma."
	for _, tc := range []struct {
		name      string
		requested agent.Mode
		message   string
		want      fail.Reason // "" for TCP
	}{
		{"auto", "auto", noDevice, ""},
		{"rdma", "rdma", noDevice, fail.NodesUnavailable},
		{"GPUs are missing too", "auto", noGPU, fail.GPUsUnavailable},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newPlace(t).withRun(day())
			p.noRail = tc.message
			got, err := p.provisioner(func(s *provisioner) {
				s.options.Mode, s.options.RequestedMode, s.request.Mode = "rdma", tc.requested, agent.RDMA
				if tc.want != "" {
					s.options.StartTimeout = timeUntilTheStepWaits
				}
				network := &s.request.Cluster.Network.RDMA
				network.Enabled, network.Attachments, network.Resources = true, []string{"ns/wrong"}, map[string]int{"openshift.io/eno9np0rdma": 1}
			}).run(t.Context())
			if tc.want != "" {
				if fail.ReasonOf(err) != tc.want {
					t.Errorf("got %s: %v, want %s", fail.ReasonOf(err), err, tc.want)
				}
				return
			}
			if err != nil {
				t.Fatalf("%v; log %s", err, p.messages())
			}
			if got.Mode != agent.TCP || !strings.Contains(got.Why, "the nodes cannot use RDMA: waiting for pods env-0 and env-1: the pod asks 1 "+
				"openshift.io/eno9np0rdma") {
				t.Errorf("mode %s because %q; want TCP for lack of devices", got.Mode, got.Why)
			}
			if diff := cmp.Diff(whole(), p.left()); diff != "" {
				t.Errorf("objects (-want +got):\n%s", diff)
			}
		})
	}
}

// A training of a run must not command the other nodes. People may train from inside of what they develop in.
func TestNodesThatTrain(t *testing.T) {
	for keepFor, want := range map[time.Duration]agent.Peer{0: agent.AgentPeer, time.Hour: agent.LaunchPeer} {
		step := newPlace(t).provisioner(func(p *provisioner) { p.options.KeepFor = keepFor })
		made, _, err := step.certificates(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		block, _ := pem.Decode(made.ServerCert)
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		if got := agent.PeerOf(&tls.ConnectionState{PeerCertificates: []*x509.Certificate{certificate}}); got != want {
			t.Errorf("kept for %s: got kind %d, want %d", keepFor, got, want)
		}
	}
}

func TestBusyEnvironment(t *testing.T) {
	theirs := func() *coordinationv1.Lease {
		now := metav1.NowMicro()
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "env", UID: "theirs",
			Annotations: map[string]string{lease.HolderName: "H. Kim", lease.HolderKind: "Person"}},
			Spec: coordinationv1.LeaseSpec{HolderIdentity: new("h-kim"), LeaseDurationSeconds: new(int32(3600)), RenewTime: &now, AcquireTime: &now}}
	}
	t.Run("fail", func(t *testing.T) {
		p := newPlace(t, theirs()).withRun(day())
		_, err := p.provisioner().run(t.Context())
		if fail.ReasonOf(err) != fail.EnvironmentBusy || !strings.Contains(err.Error(), "held by H. Kim") {
			t.Errorf("got %s: %v, want EnvironmentBusy", fail.ReasonOf(err), err)
		}
		if diff := cmp.Diff([]string{"lease env theirs"}, p.left()); diff != "" {
			t.Errorf("objects (-want +got):\n%s", diff)
		}
	})
	t.Run("wait in vain", func(t *testing.T) {
		p := newPlace(t, theirs()).withRun(day())
		_, err := p.provisioner(func(s *provisioner) { s.options.OnBusy, s.options.StartTimeout = "wait", timeUntilTheStepWaits }).run(
			t.Context())
		if fail.ReasonOf(err) != fail.EnvironmentBusy || !strings.Contains(err.Error(), "held by H. Kim") {
			t.Errorf("got %s: %v, want EnvironmentBusy", fail.ReasonOf(err), err)
		}
		if diff := cmp.Diff([]string{"lease env theirs"}, p.left()); diff != "" {
			t.Errorf("objects (-want +got):\n%s", diff)
		}
	})
	t.Run("wait", func(t *testing.T) {
		p := newPlace(t, theirs()).withRun(day())
		var once sync.Once
		// The fake does not replay what happened before a watch began, so the test deletes the Lease from here: the fake
		// delays the request until the watch has begun.
		p.kube.PrependWatchReactor("leases", func(clienttesting.Action) (bool, watch.Interface, error) {
			once.Do(func() {
				go func() {
					p.must(p.kube.CoordinationV1().Leases("ns").Delete(context.Background(), "env", metav1.DeleteOptions{}))
				}()
			})
			return false, nil, nil
		})
		if _, err := p.provisioner(func(s *provisioner) { s.options.OnBusy = "wait" }).run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(whole(), p.left()); diff != "" {
			t.Errorf("objects (-want +got):\n%s", diff)
		}
		if !strings.Contains(p.messages(), "Waiting for environment env: it is held by H. Kim") {
			t.Errorf("log %s, want the holder for which it waits", p.messages())
		}
	})
}

// The same holder takes over what an earlier step that was killed at once left, with everything that the step had created
// so far.
func TestHalfFinishedEnvironmentIsAdopted(t *testing.T) {
	for _, tc := range []struct {
		name    string
		applied int // number of objects that were applied, in order
	}{{"lease", 0}, {"secrets", 3}, {"claims", 5}, {"statefulset", 7}} {
		t.Run(tc.name, func(t *testing.T) {
			p := newPlace(t).withRun(day())
			killed := p.provisioner()
			held, err := killed.lease().Acquire(t.Context(), killed.leaseRequest())
			if err != nil {
				t.Fatal(err)
			}
			made, err := certs.New("ns", "env", time.Now(), false)
			if err != nil {
				t.Fatal(err)
			}
			built, err := objects.Build(killed.request, held.OwnerReference(), made)
			if err != nil {
				t.Fatal(err)
			}
			for _, object := range built.InOrder()[:tc.applied] {
				if claim, ok := object.(*corev1.PersistentVolumeClaim); ok {
					claim.Status.Phase = corev1.ClaimBound
				}
				// The StatefulSet has no pods yet, because its controller is slow.
				if err := p.kube.Tracker().Add(object); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := p.provisioner().run(t.Context()); err != nil {
				t.Fatalf("%v\n%s", err, p.messages())
			}
			if diff := cmp.Diff(whole(), p.left()); diff != "" {
				t.Errorf("objects (-want +got):\n%s", diff)
			}
		})
	}
}

func TestChangedRequest(t *testing.T) {
	running := func(p *place) {
		_, err := p.agents[1].Client.StartJob(context.Background(), "job-7",
			agent.JobSpec{Run: "train-0", Launcher: agent.Command, Script: "sleep", Args: []string{"1000"}, Nodes: 2, RanksPerNode: 1})
		p.must(err)
	}
	slow := func(p *place) { p.busy = true }
	other := func(p *place) { p.wrong = func(f *agent.Facts) { f.Protocol++ } }
	// The agents' answers from before their containers ended do not matter.
	ended := func(p *place) {
		p.wrong = func(f *agent.Facts) { f.Running = []string{"job-7"} }
		pods, err := p.kube.CoreV1().Pods("ns").List(context.Background(), metav1.ListOptions{})
		p.must(err)
		for _, pod := range pods.Items {
			pod.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}}
			p.must(p.kube.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), &pod, "ns"))
		}
	}
	image := func(s *provisioner) { s.request.Image = "127.0.0.1:1/train:2" }
	templates := func(s *provisioner) { s.request.Storage = cluster.NodeStorage }
	recreate := func(s *provisioner) { s.options.OnChange = "recreate" }
	soon := func(s *provisioner) { s.options.StartTimeout = timeUntilTheStepWaits }
	for _, tc := range []struct {
		name   string
		before func(*place)
		change []func(*provisioner)
		want   fail.Reason // "" for success
		words  []string
		left   []string
	}{
		{"is refused", nil, []func(*provisioner){image, templates}, fail.EnvironmentDiffers,
			[]string{"image: 127.0.0.1:1/train:1 -> 127.0.0.1:1/train:2 (needs new pods)", "storage mode: rwx -> volumeClaimTemplates (immutable: " +
				"needs a new StatefulSet)"}, whole()},
		{"is recreated on demand", nil, []func(*provisioner){image, recreate}, "", nil, whole()},
		{"not while a job runs", running, []func(*provisioner){image, recreate}, fail.EnvironmentDiffers, []string{"node 1 runs job-7"}, whole()},
		{"not while a node does not answer", slow, []func(*provisioner){image, recreate}, fail.EnvironmentDiffers,
			[]string{"node", "does not report whether it runs a training"}, whole()},
		{"not while an agent speaks another protocol", other, []func(*provisioner){image, recreate}, fail.EnvironmentDiffers,
			[]string{"does not report whether it runs a training", "it speaks protocol"}, whole()},
		{"although containers that ended had run one", ended, []func(*provisioner){image, recreate}, "", nil, whole()},
		{"recreated and not ready in time", func(p *place) { p.notReady = true }, []func(*provisioner){image, recreate, soon},
			fail.GPUsUnavailable, nil, claims()},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newPlace(t).withRun(day())
			if _, err := p.provisioner().run(t.Context()); err != nil {
				t.Fatalf("%v\n%s", err, p.messages())
			}
			if tc.before != nil {
				tc.before(p)
			}
			_, err := p.provisioner(tc.change...).run(t.Context())
			if tc.want == "" && err != nil || tc.want != "" && fail.ReasonOf(err) != tc.want {
				t.Errorf("got %v, want reason %q\n%s", err, tc.want, p.messages())
			}
			for _, words := range tc.words {
				if err != nil && !strings.Contains(err.Error(), words) {
					t.Errorf("error %v, want %q in it", err, words)
				}
			}
			if diff := cmp.Diff(tc.left, p.left()); diff != "" {
				t.Errorf("objects (-want +got):\n%s", diff)
			}
		})
	}
}

// If a new environment fails for any reason, nothing of it stays except claims.
func TestFailureReleasesEverything(t *testing.T) {
	soon := func(s *provisioner) { s.options.StartTimeout = timeUntilTheStepWaits }
	second := func(f *agent.Facts, change func()) {
		if f.Node == 1 {
			change()
		}
	}
	for _, tc := range []struct {
		name   string
		place  func(*place)
		change func(*provisioner)
		want   fail.Reason
		words  []string
	}{
		{"not ready in time", func(p *place) { p.notReady = true }, soon, fail.GPUsUnavailable, []string{"the start-timeout of 2s has passed"}},
		{"a GPU is missing", func(p *place) { p.wrong = func(f *agent.Facts) { second(f, func() { f.GPUs = f.GPUs[1:] }) } }, nil,
			fail.GPUMissing,
			[]string{"node 1 (env-1 on node-1): 1 can be used, want 2; there are 1 (GPU-b)"}},
		{"GPUs cannot be read", func(p *place) {
			p.wrong = func(f *agent.Facts) { second(f, func() { f.GPUs, f.GPUProblem = nil, "exit status 9" }) }
		}, nil, fail.GPUMissing, []string{"node 1", "they cannot be read: exit status 9"}},
		{"a GPU is faulty", func(p *place) {
			p.wrong = func(f *agent.Facts) { second(f, func() { f.GPUs[0].Fault = "the driver asks for recovery: Reset" }) }
		}, nil, fail.GPUMissing, []string{"node 1", "GPU 0 (GPU-a): the driver asks for recovery: Reset"}},
		{"another GPU", func(p *place) { p.wrong = func(f *agent.Facts) { second(f, func() { f.GPUs[1].Model = "NVIDIA L4" }) } }, nil,
			fail.GPUMissing,
			[]string{"GPU 1 is a NVIDIA L4, want NVIDIA H100 80GB HBM3"}},
		{"storage is not shared", func(p *place) { p.separate = true }, nil, fail.StorageNotShared,
			[]string{"checking /workspace: node 1 does not see the files of node 0", "checking /datasets: node 1 does not see the files of node 0"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newPlace(t).withRun(day())
			tc.place(p)
			change := tc.change
			if change == nil {
				change = func(*provisioner) {}
			}
			_, err := p.provisioner(change).run(t.Context())
			if err == nil || fail.ReasonOf(err) != tc.want || fail.NextOf(err) == "" {
				t.Fatalf("got %s: %v; want %s with advice", fail.ReasonOf(err), err, tc.want)
			}
			for _, words := range tc.words {
				if !strings.Contains(err.Error(), words) {
					t.Errorf("error %v, want %q in it", err, words)
				}
			}
			if diff := cmp.Diff(claims(), p.left()); diff != "" {
				t.Errorf("objects (-want +got):\n%s", diff)
			}
		})
	}
}

// overdue is a context whose deadline passes when the test closes its channel.
type overdue struct {
	context.Context
	passed chan struct{}
}

func (o overdue) Done() <-chan struct{} { return o.passed }

func (o overdue) Err() error {
	select {
	case <-o.passed:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// A test's resolver knows no environment. The deadline passes when both nodes have asked.
func TestNamesThatAreUnknown(t *testing.T) {
	p := newPlace(t).withRun(day())
	ctx := overdue{t.Context(), make(chan struct{})}
	var mu sync.Mutex
	var once sync.Once
	asked := [2]int{}
	p.nameless = func(node int) {
		mu.Lock()
		defer mu.Unlock()
		if asked[node]++; asked[0] >= 2 && asked[1] >= 2 {
			once.Do(func() { close(ctx.passed) })
		}
	}
	_, err := p.provisioner().run(ctx)
	if fail.ReasonOf(err) != fail.NameResolution ||
		!strings.Contains(fail.NextOf(err), "endpointslices -n ns -l kubernetes.io/service-name=env-headless") {
		t.Fatalf("got %s: %v, want NameResolution with advice", fail.ReasonOf(err), err)
	}
	for _, words := range []string{"checking names on node 0: ", "checking names on node 1: ", ".env-headless.ns.svc"} {
		if !strings.Contains(err.Error(), words) {
			t.Errorf("error %v, want %q in it", err, words)
		}
	}
	if diff := cmp.Diff(claims(), p.left()); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
}

func TestToldToEnd(t *testing.T) {
	p := newPlace(t).withRun(day())
	p.notReady = true
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p.said = func(message string) {
		if strings.HasPrefix(message, "  ") { // the beginning of the message about the pods
			cancel()
		}
	}
	_, err := p.provisioner().run(ctx)
	if fail.ReasonOf(err) != fail.Cancelled {
		t.Errorf("got %s: %v, want Cancelled", fail.ReasonOf(err), err)
	}
	if diff := cmp.Diff(claims(), p.left()); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
}

// Deleting a Lease deletes its environment, so there is nothing left to wait for.
func TestLeaseIsDeleted(t *testing.T) {
	for _, tc := range []struct {
		name    string
		withRun bool // the run is deleted too, whose garbage the Lease is
		want    fail.Reason
		says    string
	}{
		{"alone", false, fail.EnvironmentMissing, "ns/env: its lease was deleted"},
		{"with its run", true, fail.Cancelled, "the run was deleted"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newPlace(t).withRun(day())
			p.notReady = true
			var once sync.Once
			// The step watches its Lease from the moment when it has taken it.
			p.kube.PrependWatchReactor("leases", func(clienttesting.Action) (bool, watch.Interface, error) {
				once.Do(func() {
					go func() {
						if tc.withRun {
							p.must(p.tekton.TektonV1().PipelineRuns("ns").Delete(context.Background(), "train-1", metav1.DeleteOptions{}))
						}
						p.must(p.kube.CoordinationV1().Leases("ns").Delete(context.Background(), "env", metav1.DeleteOptions{}))
					}()
				})
				return false, nil, nil
			})
			_, err := p.provisioner().run(t.Context())
			if fail.ReasonOf(err) != tc.want || !strings.Contains(err.Error(), tc.says) || (fail.NextOf(err) == "") != tc.withRun {
				t.Errorf("got %s: %v; want %s with %q", fail.ReasonOf(err), err, tc.want, tc.says)
			}
		})
	}
}

// A StatefulSet that another client created is in the way. It stays, and the step deletes the Lease that it took in vain.
func TestForeignStatefulSet(t *testing.T) {
	p := newPlace(t, &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "env", UID: "foreign"}}).withRun(day())
	_, err := p.provisioner().run(t.Context())
	if fail.ReasonOf(err) != fail.EnvironmentDiffers || !strings.Contains(err.Error(), "did not create") {
		t.Errorf("got %s: %v, want EnvironmentDiffers", fail.ReasonOf(err), err)
	}
	if diff := cmp.Diff([]string{"statefulset env"}, p.left()); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
}

func TestCheckStorage(t *testing.T) {
	facts := func(ids ...string) (facts []agent.Facts) {
		for i, id := range ids {
			volume := agent.Volume{ID: id}
			if id == "" {
				volume.Problem = "read-only file system"
			}
			facts = append(facts, agent.Facts{Node: i, KubernetesNode: fmt.Sprintf("node-%d", i), Workspace: volume,
				Datasets: agent.Volume{ID: "d" + id}})
			if id != "" && ids[0] != id && i > 0 {
				facts[i].Datasets.ID = facts[0].Datasets.ID
			}
		}
		return facts
	}
	for _, tc := range []struct {
		name  string
		mode  cluster.StorageMode
		facts []agent.Facts
		want  string
	}{
		{"shared", cluster.SharedStorage, facts("a", "a", "a"), ""},
		{"one is apart", cluster.SharedStorage, facts("a", "b", "a"), "checking /workspace: node 1 does not see the files of node 0, want one " +
			"shared volume"},
		{"two are apart", cluster.SharedStorage, facts("a", "b", "b"), "checking /workspace: node 1 does not see the files of node 0, want one " +
			"shared volume"},
		{"cannot be written", cluster.SharedStorage,
			[]agent.Facts{{Node: 0, KubernetesNode: "node-0", Workspace: agent.Volume{Problem: "read-only file system"},
				Datasets: agent.Volume{ID: "d"}}},
			"checking /workspace on node 0 (node-0): it cannot be written: read-only file system"},
		{"each its own", cluster.NodeStorage, []agent.Facts{{Workspace: agent.Volume{ID: "a"}, Datasets: agent.Volume{ID: "c"}},
			{Node: 1, Workspace: agent.Volume{ID: "b"}, Datasets: agent.Volume{ID: "d"}}}, ""},
		{"shared by mistake", cluster.NodeStorage, []agent.Facts{{Workspace: agent.Volume{ID: "a"}, Datasets: agent.Volume{ID: "c"}},
			{Node: 1, Workspace: agent.Volume{ID: "a"}, Datasets: agent.Volume{ID: "d"}}},
			"checking /workspace: nodes 0 and 1 have the same volume, want one each"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := "", checkStorage(tc.facts, tc.mode)
			if err != nil {
				got = err.Error()
				if fail.ReasonOf(err) != fail.StorageNotShared {
					t.Errorf("reason %s, want StorageNotShared", fail.ReasonOf(err))
				}
				if strings.Contains(got, "cannot be written") && !strings.Contains(fail.NextOf(err), "docs/operate/rdma.md") {
					t.Errorf("advice %q, want the page about NFS and root", fail.NextOf(err))
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestRunsBeforeTheStatefulSetSaysSo(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "env-0", Namespace: "team", Labels: objects.Labels("env")}}
	client := fake.NewClientset(pod)
	p := &provisioner{clients: &kube.Clients{Kube: client}, request: objects.Request{Name: "env"}}
	live := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "env", Namespace: "team"}}
	for _, want := range []bool{false, true} {
		if got, err := p.runs(t.Context(), live); got != want || err != nil {
			t.Errorf("runs() = %t, %v; want %t", got, err, want)
		}
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{
			{Name: objects.TrainContainer, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
		if err := client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), pod, pod.Namespace); err != nil {
			t.Fatal(err)
		}
	}
}
