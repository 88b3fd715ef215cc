// SPDX-License-Identifier: Apache-2.0

package train

import (
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cause"
	"github.com/ml-dev-env/ml-dev-env/internal/env/network"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
)

// TestLeaveOut gathers an environment whose node 1 ran on Kubernetes node b. The fake client deletes a pod at once and runs no
// StatefulSet controller: a reactor recreates the pod on a node that the template allows.
func TestLeaveOut(t *testing.T) {
	lost, failed := agent.Attempt{Reason: fail.NodeLost, Node: new(1)}, agent.Attempt{Reason: fail.RankFailed, Node: new(0)}
	const taint = "oc adm taint nodes b node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
	for _, tc := range []struct {
		name    string
		ended   agent.Attempt
		listed  []string
		change  func(*appsv1.StatefulSet)
		fault   string // the fault of a GPU on Kubernetes node b
		deleted bool   // the pod of node 1 is a new one
		answers bool   // node 1 answers as soon as it is asked again
		devices bool   // the first pod of node 1 may not use its GPUs any more
		words   string // of the rank on node 1 that failed
		want    []string
		says    []string
	}{
		{name: "a silent node", ended: lost, listed: []string{"a", "b", "c"}, want: []string{"b"},
			says: []string{"Kubernetes node b is left out from now on: it did not answer. Node 1 of the environment moves to another one.", taint}},
		{name: "a silent node, and no other", ended: lost, listed: []string{"a", "b"},
			says: []string{"Kubernetes node b stays in use although it has a fault (it did not answer): without it nodes.gpu_nodes of the cluster " +
				"file leaves 1 node, want 2", taint}},
		{name: "a silent node of an environment that may use any", ended: lost, says: []string{"the other nodes are not known", taint}},
		{name: "a node that was silent", ended: lost, listed: []string{"a", "b", "c"}, answers: true},
		{name: "a pod that was deleted", ended: lost, listed: []string{"a", "b", "c"}, deleted: true},
		{name: "a faulty GPU", ended: failed, listed: []string{"a", "b", "c"}, fault: "its row remapping failed", want: []string{"b"},
			says: []string{"Kubernetes node b is left out from now on: its GPUs: GPU 0 (): its row remapping failed"}},
		{name: "a pod that has lost its devices", ended: failed, listed: []string{"a", "b"}, devices: true,
			says: []string{"Node 1 on b gets a new pod: they cannot be read: running nvidia-smi: exit status 255: Failed to initialize NVML"}},
		{name: "a rank that reports a fault of its node", ended: failed, listed: []string{"a", "b", "c"}, want: []string{"b"},
			words: "Error 802: system not yet initialized", says: []string{"Kubernetes node b is left out from now on: rank 1 on it reports: " +
				"RuntimeError: Error 802"}},
		{name: "a rank that reports an error of its image", ended: failed, listed: []string{"a", "b", "c"},
			words: "CUDA error: no kernel image is available for execution on the device"},
		{name: "a faulty GPU next to claims of the node", ended: failed, listed: []string{"a", "b", "c"}, fault: "its row remapping failed",
			change: func(set *appsv1.StatefulSet) {
				set.Spec.VolumeClaimTemplates = make([]corev1.PersistentVolumeClaim, 1)
			}, says: []string{"the claims of its pod may exist only on this node"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			training, out, agents := newTraining(t, "exit 0")
			set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "env", UID: "set"}}
			set.Spec.Template.Spec.Affinity = &corev1.Affinity{}
			if tc.listed != nil {
				set.Spec.Template.Spec.Affinity.NodeAffinity = &corev1.NodeAffinity{
					RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
						MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: tc.listed}},
					}}}}
			}
			if tc.change != nil {
				tc.change(set)
			}
			set.Spec.Template.Spec.ServiceAccountName = "ml-dev-sa"
			set.Spec.Template.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "mine"}, {Name: "ml-dev-sa-dockercfg-replaced"}}
			account := &corev1.ServiceAccount{
				ObjectMeta:       metav1.ObjectMeta{Namespace: "ns", Name: "ml-dev-sa"},
				ImagePullSecrets: []corev1.LocalObjectReference{{Name: "ml-dev-sa-dockercfg-1"}},
			}
			client := fake.NewClientset(readyPod(agents[0], "0", "a"), readyPod(agents[1], "1", "b"), set, account)
			host := func() string {
				pod, err := client.CoreV1().Pods("ns").Get(t.Context(), "env-1", metav1.GetOptions{})
				if err != nil {
					t.Error(err)
				}
				return pod.Spec.NodeName
			}
			client.PrependReactor("delete", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
				live, err := client.Tracker().Get(appsv1.SchemeGroupVersion.WithResource("statefulsets"), "ns", "env") // the client is locked
				if err != nil {
					return true, nil, err
				}
				allowed, _ := objects.Placement(&live.(*appsv1.StatefulSet).Spec.Template.Spec)
				return true, nil, client.Tracker().Update(action.GetResource(), readyPod(agents[1], "2", allowed[len(allowed)-1]), "ns")
			})
			var asked atomic.Bool
			withoutFaults(agents, func(f *agent.Facts) {
				if tc.ended.Reason == fail.NodeLost && !tc.answers && f.Node == 1 && !asked.Swap(true) {
					panic(http.ErrAbortHandler)
				}
				if f.Node == 1 && host() == "b" {
					f.GPUs[0].Fault = tc.fault
				}
				if pod, err := client.CoreV1().Pods("ns").Get(t.Context(), "env-1", metav1.GetOptions{}); tc.devices && f.Node == 1 && err == nil &&
					pod.UID == "1" {
					f.GPUProblem = "running nvidia-smi: exit status 255: Failed to initialize NVML: Unknown Error"
				}
			})
			training.Clients.Kube = client
			if err := training.readPods(t.Context()); err != nil {
				t.Fatal(err)
			}
			if tc.deleted {
				training.uids[1] = "another"
			}
			training.Spec.Deadline, training.Network = time.Now().Add(time.Hour), network.Network{Settings: network.Settings{Mode: agent.TCP}}
			python := &agent.PythonError{Type: "RuntimeError", Message: tc.words}
			err := cause.Cause{Known: true, Rank: agent.RankStatus{Rank: 1, Node: 1, Exit: agent.Exit{Code: 1}, Python: python}}.Err(cause.Job{})
			if tc.ended.Reason == fail.NodeLost {
				err = onNode{node: 1, error: training.nodeGoneError(1, "its agent does not answer")}
			}
			training.leaveOutBy(t.Context(), err, &tc.ended)
			if err := training.gather(t.Context(), &tc.ended); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, tc.ended.LeftOut); diff != "" {
				t.Errorf("left out (-want +got):\n%s", diff)
			}
			if got := host(); slices.Contains(tc.ended.LeftOut, got) || tc.want == nil && got != "b" {
				t.Errorf("node 1 is on %s", got)
			}
			live, err := client.AppsV1().StatefulSets("ns").Get(t.Context(), "env", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if refs := live.Spec.Template.Spec.ImagePullSecrets; tc.want != nil && (len(refs) != 2 || refs[0].Name != "mine" ||
				refs[1].Name != "ml-dev-sa-dockercfg-1") {
				t.Errorf("the new pod gets the pull secrets %v", refs)
			}
			for _, want := range tc.says {
				if !strings.Contains(out.String(), want) {
					t.Errorf("log %q, want %q in it", out, want)
				}
			}
			if tc.says == nil && out.String() != "" {
				t.Errorf("log %q, want none", out)
			}
		})
	}
}

func TestFaulty(t *testing.T) {
	broken := rdma.Facts{Findings: []fail.Finding{{Level: fail.Note, Seen: "a note"}, {Level: fail.Broken, Seen: "there is no RDMA device"}}}
	if node, fault := faulty(make([]agent.Facts, 2), network.Network{Facts: []rdma.Facts{{}, broken}}); node != 1 ||
		fault != "there is no RDMA device" {
		t.Errorf("got node %d, %q; want node 1 without its device", node, fault)
	}
	for problem, want := range map[string]string{
		"": "", "reading nvidia-smi's answer: record on line 1: wrong number of fields": "",
		"running nvidia-smi: exit status 9: NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.": "its GPUs: they " +
			"cannot be read",
		"running nvidia-smi: Unable to determine the device handle for GPU 0000:19:00.0: GPU is lost.": "its GPUs: they cannot be read",
	} {
		_, fault := faulty([]agent.Facts{{}, {GPUProblem: problem}}, network.Network{Facts: make([]rdma.Facts, 2)})
		if !strings.HasPrefix(fault, want) || want == "" && fault != "" {
			t.Errorf("%q: got the fault %q, want %q", problem, fault, want)
		}
	}
}
