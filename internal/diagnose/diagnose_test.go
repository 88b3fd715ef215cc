// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/test/golden"
)

// TestExplain compares the findings and the progress of every case with testdata/cases.txt.
func TestExplain(t *testing.T) {
	const path = "testdata/cases.txt"
	cases := snapshots()
	for name, s := range reports(t) {
		cases["report: "+name] = s
	}
	var got strings.Builder
	for _, name := range slices.Sorted(maps.Keys(cases)) {
		fmt.Fprintf(&got, "== %s\n", name)
		for _, f := range Explain(cases[name], now) {
			fmt.Fprintf(&got, "%s: %s%s", f.Reason, f.Object, sinceText(f.Since, now))
			if f.Final {
				got.WriteString(", final")
			}
			if f.Rail {
				got.WriteString(", not without RDMA")
			}
			fmt.Fprintf(&got, "\n  seen: %s\n  next: %s\n", f.Seen, strings.ReplaceAll(f.Next, "\n", "\n        "))
		}
		for _, line := range Progress(cases[name], now) {
			fmt.Fprintf(&got, "> %s\n", line)
		}
	}
	golden.File(t, path, got.String())
}

func TestFindingsThatWaitingCannotHelpComeFirst(t *testing.T) {
	s := snapshotOf(2)
	s.pod(0, waiting("ErrImagePull", "dial tcp 10.1.2.3:443: i/o timeout"))
	s.pod(1, waiting("InvalidImageName", "invalid reference format"))
	var got []bool
	for _, f := range Explain(s, now) {
		got = append(got, f.Final)
	}
	if diff := cmp.Diff([]bool{true, false}, got); diff != "" {
		t.Errorf("final, in order (-want +got):\n%s", diff)
	}
}

// TestFindingsOfManyPods: a finding about many pods has the whole name of each.
func TestFindingsOfManyPods(t *testing.T) {
	s := snapshotOf(70)
	var names []string
	for i := range 70 {
		s.pod(i, waiting("InvalidImageName", "invalid reference format"))
		names = append(names, s.Pods[i].Name)
	}
	found := Explain(s, now)
	if want := "pods " + strings.Join(names[:69], ", ") + " and " + names[69]; len(found) != 1 || found[0].Object != want {
		t.Errorf("got %+v, want one finding of %s", found, want)
	}
}

func TestErrHasReasonAndAdvice(t *testing.T) {
	err := fail.Finding{Reason: fail.GPUsUnavailable, Object: "pod ml-dev-env-1", Seen: "none free", Next: "oc get nodes 100%"}.Err(
		"waiting for")
	got := []string{string(fail.ReasonOf(err)), err.Error(), fail.NextOf(err)}
	want := []string{"GPUsUnavailable", "waiting for pod ml-dev-env-1: none free", "oc get nodes 100%"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("error (-want +got):\n%s", diff)
	}
}

func TestProgressOfAPull(t *testing.T) {
	pulls := func() Snapshot {
		return withPods(1, waiting("ContainerCreating", "")).with("Pulling", `Pulling image "`+image+`"`)
	}
	tests := []struct {
		name  string
		after string
		text  string
		want  string
	}{
		{name: "still", want: "ml-dev-env-0: on node-1, pulling image quay.io/example/training:1 since 10s"},
		{name: "done", after: "Pulled",
			text: `Successfully pulled image "quay.io/example/training:1" in 1m2.345s (1m2.345s including waiting). Image size: 12100000000 bytes.`,
			want: "ml-dev-env-0: on node-1, starting"},
		{name: "failed", after: "Failed", text: `Failed to pull image "quay.io/example/training:1": unexpected EOF`,
			want: "ml-dev-env-0: on node-1, starting"},
		{name: "volume's owner", after: "VolumePermissionChangeInProgress", text: "Setting volume ownership for x/volumes/y, processed " +
			"30000 files.",
			want: "ml-dev-env-0: on node-1, pulling image quay.io/example/training:1 since 10s"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := pulls()
			if tt.after != "" {
				s = s.with(tt.after, tt.text)
			}
			if diff := cmp.Diff([]string{tt.want}, Progress(s, now)); diff != "" {
				t.Errorf("progress (-want +got):\n%s", diff)
			}
		})
	}
}

// The quota's current numbers count, not an older refusal's.
func TestQuotaIsReadAnew(t *testing.T) {
	s := refusedBy(1,
		`exceeded quota: gpus, requested: requests.nvidia.com/gpu=4, used: requests.nvidia.com/gpu=6, limited: requests.nvidia.com/gpu=8`)
	list := func(n string) corev1.ResourceList {
		return corev1.ResourceList{"requests.nvidia.com/gpu": resource.MustParse(n)}
	}
	s.Quotas = []corev1.ResourceQuota{{
		ObjectMeta: metav1.ObjectMeta{Name: "gpus", Namespace: space},
		Status:     corev1.ResourceQuotaStatus{Used: list("7"), Hard: list("10")},
	}}
	got := Explain(s, now)[0].Seen
	if want := "quota gpus is exceeded: requests.nvidia.com/gpu: each asks 4, used 7 of 10"; got != want {
		t.Errorf("seen: got %q, want %q", got, want)
	}
}

// Events of the newer API have no first and last timestamp.
func TestTimesOfEvents(t *testing.T) {
	tests := []struct {
		name        string
		event       corev1.Event
		first, last time.Duration
	}{
		{"old", corev1.Event{FirstTimestamp: ago(time.Hour), LastTimestamp: ago(time.Minute)}, time.Hour, time.Minute},
		{"new", corev1.Event{EventTime: metav1.NewMicroTime(now.Add(-time.Hour))}, time.Hour, time.Hour},
		{"series", corev1.Event{
			EventTime: metav1.NewMicroTime(now.Add(-time.Hour)),
			Series:    &corev1.EventSeries{LastObservedTime: metav1.NewMicroTime(now.Add(-time.Second))},
		}, time.Hour, time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			first, last := times(&tt.event)
			if diff := cmp.Diff([]time.Duration{tt.first, tt.last}, []time.Duration{now.Sub(first), now.Sub(last)}); diff != "" {
				t.Errorf("ages (-want +got):\n%s", diff)
			}
		})
	}
}

func TestReadVerdict(t *testing.T) {
	tests := []struct {
		name, text string
		want       schedulerMessage
	}{
		{
			name: "by node", text: "0/3 nodes are available: 1 Insufficient nvidia.com/gpu, 2 node(s) had untolerated taint {a: b}. preemption: " +
				"0/3 nodes are available: 3 Preemption is not helpful for scheduling.",
			want: schedulerMessage{
				text: "1 Insufficient nvidia.com/gpu, 2 node(s) had untolerated taint {a: b}", nodes: 3,
				rejections: []rejection{{1, "Insufficient nvidia.com/gpu"}, {2, "node(s) had untolerated taint {a: b}"}},
			},
		},
		{
			name: "a comma in a reason", text: "0/1 nodes are available: 1 node(s) had taint {a: b}, that the pod didn't tolerate.",
			want: schedulerMessage{
				text: "1 node(s) had taint {a: b}, that the pod didn't tolerate", nodes: 1,
				rejections: []rejection{{1, "node(s) had taint {a: b}, that the pod didn't tolerate"}},
			},
		},
		{
			name: "the whole pod", text: `0/2 nodes are available: persistentvolumeclaim "a" is being deleted. preemption: not eligible`,
			want: schedulerMessage{text: `persistentvolumeclaim "a" is being deleted`, nodes: 2,
				whole: `persistentvolumeclaim "a" is being deleted`},
		},
		{name: "no nodes at all", text: "no nodes available to schedule pods", want: schedulerMessage{text: "no nodes available to schedule pods",
			whole: "no nodes available to schedule pods"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, readSchedulerMessage(tt.text), cmp.AllowUnexported(schedulerMessage{}, rejection{})); diff != "" {
				t.Errorf("verdict (-want +got):\n%s", diff)
			}
		})
	}
}

func TestTolerates(t *testing.T) {
	taint := corev1.Taint{Key: "team", Value: "vision", Effect: corev1.TaintEffectNoSchedule}
	tests := []struct {
		toleration corev1.Toleration
		want       bool
	}{
		{corev1.Toleration{Key: "team", Value: "vision"}, true},
		{corev1.Toleration{Key: "team", Value: "audio"}, false},
		{corev1.Toleration{Key: "team", Operator: corev1.TolerationOpExists}, true},
		{corev1.Toleration{Key: "team", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}, false},
		{corev1.Toleration{Operator: corev1.TolerationOpExists}, true},
		{corev1.Toleration{}, false},
	}
	for _, tt := range tests {
		spec := &corev1.PodSpec{Tolerations: []corev1.Toleration{tt.toleration}}
		if got := untolerated(&corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{taint}}}, spec) == nil; got != tt.want {
			t.Errorf("%+v: got %v, want %v", tt.toleration, got, tt.want)
		}
	}
}

func TestMatches(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"gpus": "8", "zone": "r2"}}}
	require := func(key string, op corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: op, Values: values}}}
	}
	tests := []struct {
		name string
		term corev1.NodeSelectorTerm
		want bool
	}{
		{"in", require("zone", corev1.NodeSelectorOpIn, "r1", "r2"), true},
		{"not in", require("zone", corev1.NodeSelectorOpNotIn, "r2"), false},
		{"not in, absent", require("rack", corev1.NodeSelectorOpNotIn, "r2"), true},
		{"exists", require("rack", corev1.NodeSelectorOpExists), false},
		{"does not exist", require("rack", corev1.NodeSelectorOpDoesNotExist), true},
		{"more", require("gpus", corev1.NodeSelectorOpGt, "4"), true},
		{"less", require("gpus", corev1.NodeSelectorOpLt, "4"), false},
		{"more than no number", require("zone", corev1.NodeSelectorOpGt, "4"), false},
		{"nothing", corev1.NodeSelectorTerm{}, false},
		{"name",
			corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn,
				Values: []string{"a"}}}}, true},
	}
	for _, tt := range tests {
		spec := &corev1.PodSpec{Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{tt.term}}}}}
		if got := isCandidate(node, spec); got != tt.want {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestWords(t *testing.T) {
	if got, want := firstNames([]string{"a", "b", "c", "d"}, 2), "a, b and 2 more"; got != want {
		t.Errorf("list: got %q, want %q", got, want)
	}
	long := oneLine(strings.Repeat("é ", 400))
	if !strings.HasSuffix(long, "...") || len(long) > maxWords+3 || strings.Contains(long, "\ufffd") {
		t.Errorf("words: got %d bytes: %q", len(long), long)
	}
	for d, want := range map[time.Duration]string{40 * time.Second: "40s", 130 * time.Second: "2m10s", 2 * time.Minute: "2m",
		time.Hour: "1h0m", -time.Second: "0s"} {
		if got := age(now.Add(-d), now); got != want {
			t.Errorf("age of %s: got %q, want %q", d, got, want)
		}
	}
}

// FuzzExplain puts odd words wherever the cluster reports something.
func FuzzExplain(f *testing.F) {
	cases := snapshots()
	for _, name := range slices.Sorted(maps.Keys(cases)) {
		s := cases[name]
		for _, ev := range s.Events {
			f.Add(ev.Reason, ev.Message)
		}
		for i := range s.Pods {
			for _, c := range s.Pods[i].Status.Conditions {
				f.Add(c.Reason, c.Message)
			}
		}
	}
	// Parsing this as a quantity takes forever.
	f.Add("FailedCreate", "exceeded quota: a, requested: pods=1E-999999999, used: pods=1, limited: pods=1")
	f.Fuzz(func(t *testing.T, reason, text string) {
		s := snapshotOf(2)
		s.pod(0, unschedulable(text))
		s.pod(1, waiting(reason, text))
		s.pod(2, crashed(1, corev1.ContainerStateTerminated{ExitCode: 1, Reason: reason, Message: text}))
		s.pod(3, on, func(p *corev1.Pod) {
			p.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: reason, Message: text}
		})
		s = s.with(reason, text).claim(space, "ml-dev-workspace", "nfs-csi").says("ml-dev-workspace", reason, text).says("ml-dev-workspace",
			"ProvisioningFailed", text)
		s.event("StatefulSet", env, "FailedCreate", text)
		s.event("StatefulSet", env, "FailedCreate", "create Pod ml-dev-env-9 in StatefulSet ml-dev-env failed error: "+text)
		for _, known := range []Snapshot{s, s.node("node-1", "4")} {
			for _, finding := range Explain(known, now) {
				if finding.Reason == "" || finding.Object == "" || finding.Seen == "" || finding.Next == "" {
					t.Errorf("%q %q: a finding without reason, object, evidence or advice: %+v", reason, text, finding)
				}
			}
			if got := len(Progress(known, now)); got != 2 {
				t.Errorf("got %d lines of progress, want 2", got)
			}
		}
	})
}
