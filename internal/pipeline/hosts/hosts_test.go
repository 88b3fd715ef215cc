// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

var now = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)

func mark(why string) Mark { return Who("kim", why, now) }

func active(t *testing.T, client *fake.Clientset) []string {
	t.Helper()
	c := Choose(t.Context(), client, "ns", now)
	if c.UnreadRecord != nil {
		t.Fatal(c.UnreadRecord)
	}
	return c.QuarantinedNodes()
}

func TestQuarantine(t *testing.T) {
	client := fake.NewClientset()
	put := func(node, why string) Record {
		t.Helper()
		before, err := Quarantine(t.Context(), client, "ns", node, mark(why))
		if err != nil {
			t.Fatal(err)
		}
		return before
	}
	if before := put("gpu-1", "GPU 3\nis lost"); before.Active() || put("gpu-2.example.com", "slow").Active() {
		t.Errorf("before: %+v, want none", before)
	}
	if got, want := active(t, client), []string{"gpu-1", "gpu-2.example.com"}; !slices.Equal(got, want) {
		t.Errorf("quarantined: %q, want %q", got, want)
	}
	// The same again changes nothing; another reason replaces the record.
	writes := func() (n int) {
		for _, a := range client.Actions() {
			if a.GetVerb() == "patch" || a.GetVerb() == "create" {
				n++
			}
		}
		return n
	}
	count := writes()
	if before := put("gpu-1", "GPU 3 is lost"); !before.Active() || writes() != count {
		t.Errorf("before: %+v, %d more writes; want the record, and none", before, writes()-count)
	}
	put("gpu-1", "GPU 4 too")
	records, err := Records(t.Context(), client, "ns")
	if r := records["gpu-1"]; err != nil || !r.Active() || r.Quarantined.Why != "GPU 4 too" || r.Quarantined.By != "kim" ||
		!r.Quarantined.At.Equal(now) {
		t.Errorf("record %+v, %v", r, err)
	}
	before, err := EndQuarantine(t.Context(), client, "ns", "gpu-1", mark("replaced"))
	if err != nil || !before.Active() {
		t.Fatalf("releasing: %+v, %v", before, err)
	}
	if got := active(t, client); !slices.Equal(got, []string{"gpu-2.example.com"}) {
		t.Errorf("after the release: %q", got)
	}
	// A release of a node that was not quarantined is noted: its earlier faults no longer count.
	if before, err = EndQuarantine(t.Context(), client, "ns", "gpu-9", mark("")); err != nil || before.Active() {
		t.Errorf("releasing another one: %+v, %v", before, err)
	}
}

func TestQuarantineIsRefused(t *testing.T) {
	client := fake.NewClientset()
	for name, tc := range map[string]struct{ node, why string }{
		"an overlong reason": {"gpu-1", strings.Repeat("ä", MostWhy+1)}, "no name of a node": {"GPU_1", "broken"},
		"an overlong name": {strings.Repeat("a", 254), "broken"}, "a path": {"../gpu-1", "broken"},
	} {
		if _, err := Quarantine(t.Context(), client, "ns", tc.node, mark(tc.why)); fail.ReasonOf(err) != fail.InvalidInput {
			t.Errorf("%s: %v, want InvalidInput", name, err)
		}
	}
	if _, err := Quarantine(t.Context(), client, "ns", "gpu-1", mark(strings.Repeat("ä", MostWhy))); err != nil {
		t.Errorf("the longest reason: %v", err)
	}
	foreign := fake.NewClientset(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: RecordName},
		Data: map[string]string{"mine": "yes"}})
	if _, err := Quarantine(t.Context(), foreign, "ns", "gpu-1", mark("broken")); fail.ReasonOf(err) != fail.InvalidInput {
		t.Errorf("a ConfigMap of somebody else: %v, want InvalidInput", err)
	}
	if c := Choose(t.Context(), foreign, "ns", now); c.UnreadRecord == nil || len(c.Quarantined) > 0 {
		t.Errorf("a choice by a ConfigMap of somebody else: %+v", c)
	}
}

// Users who quarantine nodes at once lose nothing, also if none of them finds the ConfigMap.
func TestQuarantineConcurrently(t *testing.T) {
	client := fake.NewClientset()
	var all sync.WaitGroup
	var want []string
	for i := range 8 {
		want = append(want, fmt.Sprint("gpu-", i))
		all.Go(func() {
			if _, err := Quarantine(t.Context(), client, "ns", fmt.Sprint("gpu-", i), mark("broken")); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if got := active(t, client); !slices.Equal(got, want) {
		t.Errorf("quarantined: %q, want %q", got, want)
	}
}

func TestRecordIsBounded(t *testing.T) {
	client := fake.NewClientset()
	data := map[string]string{"not valid": "{", "gpu-x": `{}`}
	for i := range mostNodes - 2 {
		data[fmt.Sprintf("gpu-%03d", i)] = `{"quarantined":{"by":"kim","at":"2026-06-30T00:00:00Z","why":"broken"}}`
	}
	labels := map[string]string{RecordLabel: "true"}
	full := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: RecordName, Labels: labels}, Data: data}
	if err := client.Tracker().Add(full); err != nil {
		t.Fatal(err)
	}
	// Anyone who may write ConfigMaps may have written it: what is valid counts.
	c := Choose(t.Context(), client, "ns", now)
	if len(c.Quarantined) != mostNodes-2 || c.UnreadRecord == nil || !strings.Contains(c.UnreadRecord.Error(), "gpu-x") {
		t.Errorf("%d nodes, %v; want all that are valid, and the others by name", len(c.Quarantined), c.UnreadRecord)
	}
	if _, err := Quarantine(t.Context(), client, "ns", "one-more", mark("broken")); fail.ReasonOf(err) != fail.InvalidInput {
		t.Errorf("one more: %v, want InvalidInput", err)
	}
	if _, err := EndQuarantine(t.Context(), client, "ns", "gpu-001", Who("kim", "", now.Add(-2*Kept))); err != nil {
		t.Fatal(err)
	}
	if _, err := Quarantine(t.Context(), client, "ns", "one-more", mark("broken")); err != nil {
		t.Errorf("one more after an old release: %v", err)
	}
	if got := Choose(t.Context(), client, "ns", now).QuarantinedNodes(); slices.Contains(got, "gpu-001") || !slices.Contains(got, "one-more") {
		t.Errorf("quarantined: %q", got)
	}
}

func fault(node string, kind receipt.FaultKind, ago time.Duration) receipt.Fault {
	return receipt.Fault{KubernetesNode: node, Kind: kind, At: now.Add(-ago), Message: "seen"}
}

func met(run string, faults ...receipt.Fault) receipt.Memory {
	return receipt.Memory{Start: receipt.Start{Run: run, Namespace: "ns"}, Parts: []receipt.Part{{Faults: faults}}}
}

func TestAvoided(t *testing.T) {
	const day = 24 * time.Hour
	for _, tc := range []struct {
		name     string
		runs     []receipt.Memory
		released time.Duration
		want     int
	}{
		{"none", nil, 0, 0},
		{"one", []receipt.Memory{met("a", fault("gpu-1", "gpu", day))}, 0, 1},
		{"two of two runs", []receipt.Memory{met("a", fault("gpu-1", "gpu", day)), met("b", fault("gpu-1", "hang", 2*day))}, 0, 2},
		{"two of one run", []receipt.Memory{met("a", fault("gpu-1", "lost", day), fault("gpu-1", "lost", 3*day))}, 0, 2},
		{"one that shows twice", []receipt.Memory{met("a", fault("gpu-1", "lost", day), fault("gpu-1", "gpu", day+time.Minute))}, 0, 1},
		{"an old one", []receipt.Memory{met("a", fault("gpu-1", "gpu", day), fault("gpu-1", "gpu", 8*day))}, 0, 1},
		{"another node's", []receipt.Memory{met("a", fault("gpu-1", "gpu", day), fault("gpu-2", "gpu", day))}, 0, 1},
		{"before a repair", []receipt.Memory{met("a", fault("gpu-1", "gpu", 3*day)), met("b", fault("gpu-1", "gpu", 2*day))}, day, 0},
		{"before and after it", []receipt.Memory{met("a", fault("gpu-1", "gpu", 3*day)), met("b", fault("gpu-1", "gpu", day))}, 2 * day, 1},
		{"forged ones", []receipt.Memory{met("a", fault("gpu-1", "x", day), fault("gpu-1", "gpu", -9*day), fault("../x", "gpu", day))}, 0, 0},
	} {
		var record Record
		if tc.released > 0 {
			record.Released = &Mark{At: now.Add(-tc.released)}
		}
		history := History(tc.runs, now.Add(-30*day), now)
		if got := Counted(history["gpu-1"], record, now); len(got) != tc.want {
			t.Errorf("%s: %d faults count, want %d: %v", tc.name, len(got), tc.want, got)
		}
	}
}

// TestChoose reads receipts of the namespace, as provision does.
func TestChoose(t *testing.T) {
	client, today := fake.NewClientset(), time.Now().UTC()
	for i, node := range []string{"gpu-1", "gpu-1", "gpu-2", "gpu-3", "gpu-3"} {
		at := today.Add(-time.Duration(i+1) * 25 * time.Hour)
		r := receipt.Receipt{Run: fmt.Sprint("run-", i), RunUID: fmt.Sprint(i), Namespace: "ns", Environment: "env", Verdict: receipt.Failed,
			Started: at, Ended: at, Faults: []receipt.Fault{{KubernetesNode: node, Kind: receipt.GPUFault, At: at, Message: "GPU 3 is lost"}}}
		if err := receipt.Write(t.Context(), client, r); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Quarantine(t.Context(), client, "ns", "gpu-3", Who("kim", "fan", today)); err != nil {
		t.Fatal(err)
	}
	c := Choose(t.Context(), client, "ns", today)
	if err := errors.Join(c.UnreadFaults, c.UnreadRecord); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([][]string{{"gpu-3"}, {"gpu-1"}}, [][]string{c.QuarantinedNodes(), c.AvoidedNodes()}); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if why := c.Why("gpu-1"); !strings.HasPrefix(why, "2 faults in 7 days (gpu on ") ||
		!strings.Contains(why, "in run run-0: GPU 3 is lost; ") {
		t.Errorf("why: %s", why)
	}
	var file cluster.File
	file.Cluster.Name, file.Nodes.GPUNodes = "cairo", []string{"gpu-2", "gpu-3"}
	request := objects.Request{Cluster: file, Nodes: 2}
	if listed := c.For(request); len(listed.Avoided) != 0 || len(listed.Quarantined) != 1 {
		t.Errorf("among the listed nodes: %+v", listed)
	}
	err := c.TooFew(request)
	if fail.ReasonOf(err) != fail.NodesUnavailable ||
		!strings.Contains(err.Error(), "leaves 1 node of nodes.gpu_nodes of the cluster file of "+
			"cairo, want 2; quarantined: gpu-3 (by kim on ") || !strings.HasPrefix(fail.NextOf(err), "mlenv nodes release gpu-3 -n ns; ") {
		t.Errorf("two nodes: %v, next %q", err, fail.NextOf(err))
	}
	request.Nodes = 1
	if err := c.TooFew(request); err != nil {
		t.Errorf("one node: %v", err)
	}
	request.Nodes, request.Cluster.Nodes.GPUNodes = 9, nil
	if err := c.TooFew(request); err != nil {
		t.Errorf("nodes that are not listed: %v", err)
	}
}

// An account that may not read ConfigMaps learns that, and its run starts.
func TestChooseWithoutRights(t *testing.T) {
	client := fake.NewClientset()
	client.PrependReactor("*", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(corev1.Resource("configmaps"), "", errors.New("no"))
	})
	c := Choose(t.Context(), client, "ns", now)
	if fail.ReasonOf(c.UnreadRecord) != fail.PermissionDenied || fail.ReasonOf(c.UnreadFaults) != fail.PermissionDenied ||
		len(c.Quarantined)+len(c.Avoided) > 0 || c.TooFew(objects.Request{Nodes: 2}) != nil {
		t.Errorf("got %+v, want nothing but why", c)
	}
}

func TestConditions(t *testing.T) {
	node := &corev1.Node{}
	for _, c := range [][3]string{{"NPUHealthy", "True", ""}, {"KernelDeadlock", "False", "KernelHasNoDeadlock"},
		{"MemoryPressure", "False", ""},
		{"GpuMemWatch", "True", "GpuMemWatchIsNotHealthy"}, {"SysLogsXIDError", "False", "SysLogsXIDErrorIsHealthy"},
		{"NewCheck", "True", "NewCheckIsNotHealthy"}, {"ReadonlyFilesystem", "Unknown", ""}, {"Ready", "Unknown", "NodeStatusUnknown"}} {
		node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeConditionType(c[0]),
			Status: corev1.ConditionStatus(c[1]), Reason: c[2]})
	}
	var got []string
	for _, c := range Conditions(node) {
		got = append(got, fmt.Sprintf("%s=%s %s %t", c.Type, c.Status, c.By, c.Problem))
	}
	want := []string{"Ready=Unknown kubernetes true", "GpuMemWatch=True nvsentinel true", "NewCheck=True nvsentinel true",
		"KernelDeadlock=False node-problem-detector false", "MemoryPressure=False kubernetes false", "NPUHealthy=True other false",
		"ReadonlyFilesystem=Unknown node-problem-detector false", "SysLogsXIDError=False nvsentinel false"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	node.Labels = map[string]string{"nvidia.com/gpu-driver-upgrade-state": "drain-required", "nvidia.com/mig.config.state": "success",
		"dgxc.nvidia.com/nvsentinel-state": "draining", "k8saas.nvidia.com/cordon-by": "NVSentinel"}
	node.Spec.Taints = []corev1.Taint{{Key: "nvidia.com/gpu", Effect: corev1.TaintEffectNoSchedule},
		{Key: "nvidia.com/gpu-xid-error", Value: "true", Effect: corev1.TaintEffectNoSchedule},
		{Key: "node.kubernetes.io/unschedulable", Effect: corev1.TaintEffectNoSchedule}, {Key: "team", Effect: corev1.TaintEffectNoExecute}}
	if diff := cmp.Diff([]Sign{{GPUOperator, "nvidia.com/gpu-driver-upgrade-state=drain-required"},
		{NVSentinel, "dgxc.nvidia.com/nvsentinel-state=draining"}, {NVSentinel, "taint nvidia.com/gpu-xid-error=true:NoSchedule"},
		{Others, "taint team:NoExecute"}}, Signs(node)); diff != "" {
		t.Errorf("signs (-want +got):\n%s", diff)
	}
}
