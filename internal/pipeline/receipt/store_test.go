package receipt

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fabric"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/run"
)

func TestWriteTwiceAndRead(t *testing.T) {
	client := fake.NewClientset()
	r := Receipt{Fabric: &fabric.Report{Verdict: fabric.Pass, Bandwidth: 194_600_000_000}, Run: "train-1", RunUID: "uid-1", Namespace: "ns", Environment: "env", Verdict: Succeeded, Commit: "abc", Metrics: []byte(`{"loss":2.5}`),
		Ranks: []Rank{{Rank: 1, Node: 1, Exit: agent.Exit{Code: 3}, Started: time.Date(2026, 7, 1, 0, 0, 0, 0, time.UTC), Seconds: 1.5, Tail: []string{"boom"}}}}
	for _, verdict := range []Verdict{Succeeded, Failed} {
		r.Verdict = verdict
		if err := Write(t.Context(), client, r); err != nil {
			t.Fatal(err)
		}
		got, err := Read(t.Context(), client, "ns", "train-1")
		if err != nil {
			t.Fatal(err)
		}
		got.Metrics = slices.DeleteFunc(got.Metrics, func(b byte) bool { return strings.ContainsRune(" \n", rune(b)) })
		if diff := cmp.Diff(r, got); diff != "" {
			t.Errorf("receipt (-want +got):\n%s", diff)
		}
	}
	config, err := client.CoreV1().ConfigMaps("ns").Get(t.Context(), "train-1-receipt", metav1.GetOptions{})
	if err != nil || config.Labels["ml-dev-env/verdict"] != "Failed" || len(config.OwnerReferences) != 0 {
		t.Errorf("labels %v, owners %v, %v; want the verdict and nobody it is deleted with", config.Labels, config.OwnerReferences, err)
	}
	if _, err := Read(t.Context(), client, "ns", "train-2"); !apierrors.IsNotFound(err) {
		t.Errorf("no receipt: got %v, want NotFound", err)
	}
}

// A ConfigMap holds 1 MiB: what can be read in the record is left out first.
func TestLargeReceipt(t *testing.T) {
	client := fake.NewClientset()
	r := Receipt{Run: "train-1", Namespace: "ns"}
	for rank := range 64 {
		r.Ranks = append(r.Ranks, Rank{Rank: rank, Tail: slices.Repeat([]string{strings.Repeat("x", 1000)}, 20)})
	}
	if err := Write(t.Context(), client, r); err != nil {
		t.Fatal(err)
	}
	got, err := Read(t.Context(), client, "ns", "train-1")
	if err != nil || len(got.Ranks) != 64 || len(got.Ranks[0].Tail) != 0 {
		t.Errorf("got %d ranks, %v; want 64 without their tails", len(got.Ranks), err)
	}
	if len(r.Ranks[0].Tail) != 20 {
		t.Error("the caller's receipt was changed")
	}
}

func TestPrune(t *testing.T) {
	client := fake.NewClientset()
	add := func(environment string, n int, schedule ...string) {
		config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: fmt.Sprintf("%s-%02d-receipt", environment, n), UID: types.UID(fmt.Sprint(environment, n)),
			CreationTimestamp: metav1.NewTime(time.Date(2026, 7, 1+n, 0, 0, 0, 0, time.UTC)),
			Labels:            map[string]string{Label: "true", "ml-dev-env/environment": environment},
		}}
		if len(schedule) > 0 {
			config.Name, config.Labels[run.ScheduleLabel] = schedule[0]+"-"+config.Name, schedule[0]
		}
		if err := client.Tracker().Add(config); err != nil {
			t.Fatal(err)
		}
	}
	for n := range Keep + 3 {
		add("env", (n*7)%(Keep+3)) // not in their order
	}
	add("other", 0)
	// What people do beside a schedule keeps it its nights, and the other way round.
	for n := range Keep + 1 {
		add("env", n, "nightly")
		add("env", n, "weekly")
	}
	for range 2 {
		for _, schedule := range []string{"", "nightly"} {
			if err := Prune(t.Context(), client, "ns", "env", schedule); err != nil {
				t.Fatal(err)
			}
		}
	}
	var deleted []string
	for _, action := range client.Actions() {
		if action, ok := action.(clienttesting.DeleteActionImpl); ok {
			deleted = append(deleted, fmt.Sprint(action.Name, " ", *action.DeleteOptions.Preconditions.UID))
		}
	}
	slices.Sort(deleted)
	if diff := cmp.Diff([]string{"env-00-receipt env0", "env-01-receipt env1", "env-02-receipt env2", "nightly-env-00-receipt env0"}, deleted); diff != "" {
		t.Errorf("deleted (-want +got):\n%s", diff)
	}
}

func TestLatest(t *testing.T) {
	client := fake.NewClientset()
	if _, ok, err := Latest(t.Context(), client, "ns", "env"); ok || err != nil {
		t.Errorf("got %v, %v; want that there is none", ok, err)
	}
	for i, run := range []string{"second", "first"} {
		made := metav1.NewTime(time.Date(2026, 7, 2-i, 0, 0, 0, 0, time.UTC))
		config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: Name(run), CreationTimestamp: made, Labels: map[string]string{Label: "true", "ml-dev-env/environment": "env"}},
			Data: map[string]string{key: fmt.Sprintf(`{"run":%q}`, run)}}
		if err := client.Tracker().Add(config); err != nil {
			t.Fatal(err)
		}
	}
	if got, ok, err := Latest(t.Context(), client, "ns", "env"); got.Run != "second" || !ok || err != nil {
		t.Errorf("got %q, %v, %v; want the second, which is the newest", got.Run, ok, err)
	}
}

// A receipt that someone else has written makes no other one unreadable, and its numbers are never used as an index.
func TestInvalidReceipts(t *testing.T) {
	client := fake.NewClientset()
	for name, content := range map[string]string{
		"good": `{"run":"another","namespace":"elsewhere","verdict":"Failed"}`, "text": "hello", "rank": `{"ranks":[{"rank":1,"node":-1}]}`,
		"node": `{"nodes":[{"node":-2}]}`, "path": `{"runUID":"../../other"}`, "verdict": `{"verdict":"<b>"}`,
	} {
		config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: Name(name), Labels: map[string]string{Label: "true"}}, Data: map[string]string{key: content}}
		if err := client.Tracker().Add(config); err != nil {
			t.Fatal(err)
		}
		if name == "good" {
			continue
		}
		if _, err := Read(t.Context(), client, "ns", name); fail.ReasonOf(err) != fail.InvalidInput {
			t.Errorf("%s: got %v, want InvalidInput", name, err)
		}
	}
	all, err := List(t.Context(), client, "ns", "")
	if err == nil || len(all) != 1 || all[0].Run != "good" || all[0].Namespace != "ns" {
		t.Errorf("got %v, %v; want the good one under its own name, and the others in the error", all, err)
	}
}

// FuzzDecode reads anything as a receipt: what is accepted has no number below 0, and reads the same after it was written again.
func FuzzDecode(f *testing.F) {
	f.Add(`{"run":"a","verdict":"Failed","ranks":[{"rank":1,"node":-1}]}`)
	f.Add(`{"runUID":"../x","metrics":{"loss":1},"nodes":[{"node":1}]}`)
	f.Add(`{"verdict":"Succeeded","curve":{"points":[{"step":1}]}}`)
	f.Fuzz(func(t *testing.T, content string) {
		config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: Name("mine")}, Data: map[string]string{key: content}}
		r, err := decode(config)
		if err != nil {
			return
		}
		if r.Run != "mine" || r.Namespace != "ns" || strings.ContainsAny(r.RunUID, "/.") {
			t.Errorf("got run %s/%s with UID %q", r.Namespace, r.Run, r.RunUID)
		}
		for _, rank := range r.Ranks {
			if rank.Rank < 0 || rank.Node < 0 {
				t.Errorf("rank %d on node %d", rank.Rank, rank.Node)
			}
		}
		encoded, err := encode(r)
		if err != nil {
			t.Fatal(err)
		}
		config.Data[key] = string(encoded)
		if _, err := decode(config); err != nil {
			t.Errorf("a receipt that was written again: %v", err)
		}
	})
}
