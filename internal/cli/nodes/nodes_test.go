// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/hosts"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

func gpuNode(name string, change ...func(*corev1.Node)) *corev1.Node {
	four := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("4")}
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Capacity: four, Allocatable: four,
		Conditions: []corev1.NodeCondition{{Type: "KernelDeadlock", Status: "False"}, {Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}
	for _, c := range change {
		c(n)
	}
	return n
}

// aCluster has a node in every state. forbidden are verbs and resources that the user lacks.
func aCluster(t *testing.T, forbidden ...string) *kube.Clients {
	t.Helper()
	client := fake.NewClientset(
		gpuNode("gpu-1"), gpuNode("gpu-2"), gpuNode("gpu-10", func(n *corev1.Node) { n.Spec.Unschedulable = true }),
		gpuNode("gpu-3", func(n *corev1.Node) {
			n.Status.Conditions[1].Status, n.Status.Conditions[1].Message = "Unknown", "kubelet is silent"
		}),
		gpuNode("gpu-4", func(n *corev1.Node) {
			n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: "GpuMemWatch", Status: "True",
				Reason: "GpuMemWatchIsNotHealthy", Message: "ErrorCode:DCGM_FR_FAULTY_MEMORY GPU:3"})
		}), gpuNode("gpu-5"),
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "cpu-1"}},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "p"},
			Spec: corev1.PodSpec{NodeName: "gpu-1", Containers: []corev1.Container{
				{Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("3")},
					Requests: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("3")}}}}}},
	)
	client.PrependReactor("create", "selfsubjectreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &authenticationv1.SelfSubjectReview{Status: authenticationv1.SelfSubjectReviewStatus{
			UserInfo: authenticationv1.UserInfo{Username: "kim"}}}, nil
	})
	now := time.Now().UTC()
	for i, node := range []string{"gpu-2", "gpu-2", "gone", "gpu-1"} {
		at := now.Add(-time.Duration(i+1) * 25 * time.Hour)
		r := receipt.Receipt{Run: fmt.Sprint("run-", i), RunUID: fmt.Sprint(i), Namespace: "ns", Environment: "env", Verdict: receipt.Failed,
			Started: at, Ended: at, Faults: []receipt.Fault{{KubernetesNode: node, Kind: receipt.GPUFault, At: at, Message: "GPU 3 is lost"}}}
		if err := receipt.Write(t.Context(), client, r); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := hosts.Quarantine(t.Context(), client, "ns", "gpu-5", hosts.Who("ada", "the fan is broken", now)); err != nil {
		t.Fatal(err)
	}
	client.PrependReactor("*", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if slices.Contains(forbidden, a.GetVerb()+" "+a.GetResource().Resource) {
			return true, nil, apierrors.NewForbidden(a.GetResource().GroupResource(), "", errors.New("no"))
		}
		return false, nil, nil
	})
	return &kube.Clients{Kube: client, Namespace: "ns"}
}

func states(all list) map[string]string {
	got := map[string]string{}
	for _, n := range all {
		got[n.Name] = fmt.Sprintf("%s %s/%s %s %d", n.State, number(n.Free), number(n.GPUs), n.faults(), n.Counted)
	}
	return got
}

func TestList(t *testing.T) {
	all, notes, err := read(t.Context(), aCluster(t), false, time.Now())
	if err != nil || len(notes) > 0 {
		t.Fatal(notes, err)
	}
	want := map[string]string{"gpu-1": "ready 1/4 1 gpu 1", "gpu-2": "avoided 4/4 2 gpu 2", "gpu-3": "not-ready 4/4 - 0",
		"gpu-4": "unhealthy 4/4 - 0", "gpu-5": "quarantined 4/4 - 0", "gpu-10": "cordoned 4/4 - 0", "gone": "missing unknown/unknown 1 gpu 1"}
	if diff := cmp.Diff(want, states(all)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	var out strings.Builder
	if err := all.print(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"NODE    STATE        GPUS     FREE     CONDITIONS          FAULTS IN 30 DAYS  WHY\n",
		"unhealthy    4        4        Ready, GpuMemWatch  -", "not-ready    4        4        not Ready           -",
		"Ready=Unknown: kubelet is silent",
		"GpuMemWatch=True: ErrorCode:DCGM_FR_FAULTY_MEMORY GPU:3", "by ada on ", ": the fan is broken", "2 faults in 7 days (gpu on "} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("want %q in\n%s", want, &out)
		}
	}
	if i := strings.Index(out.String(), "\ngpu-10 "); i < strings.Index(out.String(), "\ngpu-5 ") {
		t.Errorf("want gpu-10 last:\n%s", &out)
	}
}

// What the user may not read is unknown, and is no failure.
func TestListWithoutRights(t *testing.T) {
	for _, tc := range []struct {
		name      string
		forbidden []string
		want      map[string]string
		unknown   []string
	}{
		{"nodes", []string{"list nodes"}, map[string]string{"gpu-1": "unknown unknown/unknown 1 gpu 1",
			"gpu-2": "avoided unknown/unknown 2 gpu 2",
			"gpu-5": "quarantined unknown/unknown - 0", "gone": "unknown unknown/unknown 1 gpu 1"}, []string{"gpus", "conditions", "free"}},
		{"pods elsewhere", []string{"list pods"}, map[string]string{"gpu-1": "ready unknown/4 1 gpu 1"}, []string{"free"}},
		{"receipts", []string{"list configmaps", "get configmaps"},
			map[string]string{"gpu-1": "ready 1/4 unknown 0", "gpu-2": "ready 4/4 unknown 0"},
			[]string{"quarantine", "faults"}},
		{"anything", []string{"list nodes", "list configmaps", "get configmaps"}, map[string]string{}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			all, notes, err := read(t.Context(), aCluster(t, tc.forbidden...), false, time.Now())
			if err != nil || len(notes) == 0 {
				t.Fatalf("notes %q, %v; want why something is unknown", notes, err)
			}
			got := states(all)
			for name, want := range tc.want {
				if got[name] != want {
					t.Errorf("%s: %q, want %q", name, got[name], want)
				}
			}
			if len(all) > 0 && !slices.Equal(all[0].Unknown, tc.unknown) {
				t.Errorf("unknown: %q, want %q", all[0].Unknown, tc.unknown)
			}
			content, err := json.Marshal(all)
			if err != nil || strings.Contains(string(content), "null") {
				t.Errorf("%s, %v; want no null", content, err)
			}
		})
	}
}

// invoke returns what a command prints.
func invoke(t *testing.T, run func(cmd *cobra.Command) error) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := &cobra.Command{}
	cmd.SetOut(&out)
	cmd.SetContext(t.Context())
	err := run(cmd)
	return out.String(), err
}

func TestQuarantineAndRelease(t *testing.T) {
	clients := aCluster(t)
	put := func(node, why string) (string, error) {
		return invoke(t, func(cmd *cobra.Command) error { return quarantine(cmd, clients, node, why) })
	}
	out, err := put("gpu-1", "slow")
	if err != nil || !strings.Contains(out, "do not use Kubernetes node gpu-1.") ||
		!strings.Contains(out, "mlenv nodes release gpu-1 -n ns\n") ||
		!strings.Contains(out, "an administrator runs: oc adm cordon gpu-1\n") {
		t.Errorf("got %q, %v", out, err)
	}
	if out, err = put("gpu-5", "its GPUs, too"); err != nil || !strings.Contains(out, "It was quarantined before, by ada on ") {
		t.Errorf("again: %q, %v", out, err)
	}
	if _, err := put("gpu-77", "slow"); fail.ReasonOf(err) != fail.InvalidInput {
		t.Errorf("no such node: %v, want InvalidInput", err)
	}
	out, err = invoke(t, func(cmd *cobra.Command) error { return release(cmd, clients, "gpu-1", "") })
	if err != nil || !strings.Contains(out, "may use Kubernetes node gpu-1 again.") {
		t.Errorf("release: %q, %v", out, err)
	}
	out, err = invoke(t, func(cmd *cobra.Command) error { return release(cmd, clients, "gpu-2", "GPU 3 replaced") })
	if err != nil || !strings.Contains(out, "was not quarantined") || !strings.Contains(out, "no longer count") {
		t.Errorf("release of a node that was not quarantined: %q, %v", out, err)
	}
	if out, _ = invoke(t, func(cmd *cobra.Command) error { return release(cmd, clients, "gpu-10", "") }); !strings.Contains(out,
		"oc adm uncordon gpu-10") {
		t.Errorf("release of a cordoned node: %q", out)
	}
	all, _, err := read(t.Context(), clients, false, time.Now().Add(time.Second))
	if got := states(all); err != nil || got["gpu-2"] != "ready 4/4 2 gpu 0" || got["gpu-1"] != "ready 1/4 1 gpu 0" {
		t.Errorf("after the releases: %q, %v", got, err)
	}
	// Without the right to read nodes any name is accepted.
	clients = aCluster(t, "get nodes")
	if _, err := put("gpu-77", "slow"); err != nil {
		t.Errorf("without the right to read nodes: %v", err)
	}
}

func TestUsageOfCommands(t *testing.T) {
	for _, args := range [][]string{{"quarantine", "gpu-1"}, {"quarantine", "gpu-1", "--why= "}, {"quarantine", "--why=x"},
		{"quarantine", "gpu-1", "--why=" + strings.Repeat("x", hosts.MostWhy+1)}, {"release"}, {"release", "a", "b"}, {"gpu-1"}} {
		cmd := Command()
		cmd.SetArgs(args)
		cmd.SetOut(&bytes.Buffer{})
		cmd.SetErr(&bytes.Buffer{})
		if err := cmd.Execute(); err == nil {
			t.Errorf("mlenv nodes %q succeeded", args)
		}
	}
}

// A user who may not list ConfigMaps everywhere gets the faults of the namespaces that allow it, and learns which do not.
func TestMemoriesEverywhere(t *testing.T) {
	client := fake.NewClientset()
	for _, namespace := range []string{"mine", "theirs"} {
		if _, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		r := receipt.Receipt{Run: "run", RunUID: "uid", Namespace: namespace, Environment: "env"}
		if err := receipt.Write(t.Context(), client, r); err != nil {
			t.Fatal(err)
		}
	}
	allowed := []string{"mine"}
	client.PrependReactor("list", "configmaps", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if slices.Contains(allowed, a.GetNamespace()) {
			return false, nil, nil
		}
		return true, nil, apierrors.NewForbidden(corev1.Resource("configmaps"), "", errors.New("no"))
	})
	clients := &kube.Clients{Kube: client, Namespace: "mine"}
	all, missing, err := memories(t.Context(), clients, true)
	if err != nil || len(all) != 1 || len(missing) != 1 || !strings.Contains(missing[0], "theirs") {
		t.Errorf("got %d runs without %q, %v; want that of mine", len(all), missing, err)
	}
	allowed = nil
	if _, _, err := memories(t.Context(), clients, true); fail.ReasonOf(err) != fail.PermissionDenied {
		t.Errorf("without any right: %v, want PermissionDenied", err)
	}
	allowed = []string{metav1.NamespaceAll}
	all, missing, err = memories(t.Context(), clients, true)
	if err != nil || len(all) != 2 || len(missing) > 0 {
		t.Errorf("with all rights: %d runs, missing %q, %v; want both", len(all), missing, err)
	}
}
