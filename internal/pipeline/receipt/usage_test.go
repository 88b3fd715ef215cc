// SPDX-License-Identifier: Apache-2.0

package receipt

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// ended returns the receipt of a run of an hour on 8 GPUs that ended so long ago.
func ended(name string, ago time.Duration) Receipt {
	end := time.Now().Add(-ago).UTC().Truncate(time.Second)
	return Receipt{
		Run: name, RunUID: "uid-" + name, Namespace: "ns", Environment: "env", User: "ada", Verdict: Failed, Reason: fail.RankFailed,
		Started: end.Add(-time.Hour), Ended: end, GPUs: &GPUs{Count: 8, Since: end.Add(-time.Hour)}, Training: &Training{Script: "train.py"},
		Nodes: []Node{{KubernetesNode: "gpu-1", GPUs: make([]string, 4)}, {Node: 1, KubernetesNode: "gpu-2", GPUs: make([]string, 4)}},
	}
}

func namesOf(t *testing.T, client kubernetes.Interface) (names []string) {
	t.Helper()
	all, err := Usages(t.Context(), client, "ns")
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range all.Runs {
		if u.Goodput.Seconds.Sum() != 3600 || u.User != "ada" || u.Script != "train.py" || u.Reason != "RankFailed" || u.Nodes["gpu-2"] != 4 {
			t.Errorf("usage of %s: %+v", u.Run, u)
		}
		names = append(names, u.Run)
	}
	slices.Sort(names)
	return names
}

// What deletes a receipt keeps its usage: a user, teardown, and another run of the same name. Nothing counts twice.
func TestUsageOutlivesReceipts(t *testing.T) {
	client := fake.NewClientset()
	for _, r := range []Receipt{ended("by-hand", time.Hour), ended("old", UsageKept+time.Hour), ended("again", time.Hour),
		ended("stays", time.Hour)} {
		if err := Write(t.Context(), client, r); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"again", "by-hand", "old", "stays"}
	if got := namesOf(t, client); !slices.Equal(got, want) {
		t.Fatalf("with all receipts: %v, want %v", got, want)
	}
	for _, name := range []string{"by-hand", "old"} {
		r, err := Read(t.Context(), client, "ns", name)
		if err == nil {
			err = Delete(t.Context(), client, r, time.Now())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := Begin(t.Context(), client, Start{Run: "again", Namespace: "ns", RunUID: "uid-2", Environment: "env"}); err != nil {
		t.Fatal(err)
	}
	want = []string{"again", "by-hand", "stays"} // the usage of 30 days
	if got := namesOf(t, client); !slices.Equal(got, want) {
		t.Errorf("after deletions: %v, want %v", got, want)
	}
	// A deletion that was interrupted has kept the usage of a receipt that is still there.
	if err := keepUsage(t.Context(), client, "ns", "env", []Usage{ended("stays", time.Hour).Usage()}, time.Now()); err != nil {
		t.Fatal(err)
	}
	if got := namesOf(t, client); !slices.Equal(got, want) {
		t.Errorf("after an interrupted deletion: %v, want %v", got, want)
	}
	if all, err := List(t.Context(), client, "ns", ""); err != nil || len(all) != 1 {
		t.Errorf("%d receipts, %v; want that of stays alone", len(all), err)
	}
}

func TestPruneKeepsUsage(t *testing.T) {
	client := fake.NewClientset()
	for i := range Keep + 3 {
		if err := Write(t.Context(), client, ended(fmt.Sprint("run-", i), time.Duration(i)*time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	if err := Prune(t.Context(), client, "ns", "env", "", time.Now()); err != nil {
		t.Fatal(err)
	}
	left, err := List(t.Context(), client, "ns", "env")
	if got := namesOf(t, client); err != nil || len(left) != Keep || len(got) != Keep+3 {
		t.Errorf("%d receipts and the usage of %d runs, %v; want %d and %d", len(left), len(got), err, Keep, Keep+3)
	}
}

// A ConfigMap of somebody else is not overwritten, and the receipts stay.
func TestUsageOfForeignConfigMap(t *testing.T) {
	foreign := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "env-usage"}, Data: map[string]string{"mine": "yes"}}
	client := fake.NewClientset(foreign)
	r := ended("by-hand", time.Hour)
	if err := Write(t.Context(), client, r); err != nil {
		t.Fatal(err)
	}
	if err := Delete(t.Context(), client, r, time.Now()); fail.ReasonOf(err) != fail.InvalidInput ||
		!strings.Contains(err.Error(), "env-usage") {
		t.Errorf("got %v, want InvalidInput that names the ConfigMap", err)
	}
	if _, err := Read(t.Context(), client, "ns", "by-hand"); err != nil {
		t.Errorf("the receipt is gone: %v", err)
	}
}

// Usage that does not fit drops the oldest runs, and says until when it is incomplete.
func TestUsageHasNoRoom(t *testing.T) {
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	var many []Usage
	for i := range 3000 {
		many = append(many, Usage{Run: fmt.Sprint("run-", i), Script: strings.Repeat("x", 200), Ended: now.Add(-time.Duration(i) * time.Minute)})
	}
	var s UsageSums
	content, err := s.add(many, now)
	const runsThatFit = 1000
	if err != nil || len(content) > maxSize || len(s.Runs) < runsThatFit || s.Runs[0].Run != "run-0" {
		t.Fatalf("%d bytes with %d runs, %v; want at most %d", len(content), len(s.Runs), err, maxSize)
	}
	if diff := cmp.Diff(now.Add(-time.Duration(len(s.Runs))*time.Minute), s.LostUntil); diff != "" {
		t.Errorf("lost until (-want +got):\n%s", diff)
	}
	if _, err := s.add(nil, now.Add(UsageKept+24*time.Hour)); err != nil || len(s.Runs) != 0 || !s.LostUntil.IsZero() {
		t.Errorf("after a month: %d runs, lost until %s, %v", len(s.Runs), s.LostUntil, err)
	}
}

// Anyone who may write ConfigMaps in one namespace could otherwise spoil the sum of all.
func TestForgedUsage(t *testing.T) {
	client := fake.NewClientset()
	forged := ended("forged", time.Hour)
	forged.LeftOut, forged.Goodput = []string{"curve"}, &Goodput{Seconds: Spent{Steps: 1e308, Hang: -1}}
	for _, r := range []Receipt{forged, ended("stays", time.Hour)} {
		if err := Write(t.Context(), client, r); err != nil {
			t.Fatal(err)
		}
	}
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "x-usage", Labels: map[string]string{UsageLabel: "true"}},
		Data: map[string]string{usageKey: `{"runs":[{"run":"x","goodput":{"gpuHours":{"steps":1e300}}}]}`}}
	if _, err := client.CoreV1().ConfigMaps("ns").Create(t.Context(), config, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	all, err := Usages(t.Context(), client, "ns")
	if len(all.Runs) != 1 || fail.ReasonOf(err) != fail.InvalidInput || !strings.Contains(err.Error(), "forged") ||
		!strings.Contains(err.Error(), "x-usage") {
		t.Errorf("got %d runs, %v; want that of stays, and errors that name the others", len(all.Runs), err)
	}
}
