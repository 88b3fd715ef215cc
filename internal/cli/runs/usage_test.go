// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"bytes"
	"encoding/csv"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

var midday = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)

// spent is a run that waited, did steps that lasted, and did as many again, in seconds on 8 GPUs of two nodes.
func spent(name, user, script string, waiting, steps, repeated float64, change ...func(*receipt.Usage)) receipt.Usage {
	seconds := receipt.Spent{Waiting: waiting, Steps: steps, Repeated: repeated}
	hours := receipt.Spent{}.Plus(seconds, 8./3600)
	hours.Waiting = 0
	u := receipt.Usage{Run: name, User: user, Script: script, Repository: "folder", Verdict: receipt.Succeeded, Ended: midday.Add(-time.Hour),
		Nodes: map[string]int{"gpu-1": 6, "gpu-2": 2}, Goodput: receipt.Goodput{GPUs: 8, Seconds: seconds, GPUHours: hours}}
	for _, c := range change {
		c(&u)
	}
	return u
}

func sums() receipt.UsageSums {
	return receipt.UsageSums{Runs: []receipt.Usage{
		spent("a", "ada", "train.py", 60, 3600, 0),
		spent("b", "ada", "train.py", 0, 900, 900, func(u *receipt.Usage) { u.Verdict, u.Reason = receipt.Failed, "RankFailed" }),
		spent("c", "", "=cmd()", 30, 1800, 0, func(u *receipt.Usage) { u.Nodes = nil }),
		spent("old", "bob", "train.py", 60, 3600, 0, func(u *receipt.Usage) { u.Ended = midday.Add(-48 * time.Hour) }),
	}}
}

func TestUsageSum(t *testing.T) {
	of := func(group usageGroup) []any {
		return []any{group.Runs, group.Seconds.Waiting, group.Seconds.Steps, group.GPUHours.Steps, group.GPUHours.Repeated, group.Goodput}
	}
	for _, tc := range []struct {
		by   byFlag
		want map[string][]any
	}{
		{byFlag{byUser}, map[string][]any{"ada": {2, 60., 4500., 10., 2., 10. / 12}, unknown: {1, 30., 1800., 4., 0., 1.}}},
		{byFlag{byScript}, map[string][]any{"train.py (folder)": {2, 60., 4500., 10., 2., 10. / 12},
			"=cmd() (folder)": {1, 30., 1800., 4., 0., 1.}}},
		{byFlag{byUser, byVerdict}, map[string][]any{"ada/Succeeded": {1, 60., 3600., 8., 0., 1.}, "ada/RankFailed": {1, 0., 900., 2., 2., 0.5},
			unknown + "/Succeeded": {1, 30., 1800., 4., 0., 1.}}},
		// The seconds of a run count on each of its nodes, its GPU-hours by the GPUs there.
		{byFlag{byNode}, map[string][]any{"gpu-1": {2, 60., 4500., 7.5, 1.5, 10. / 12}, "gpu-2": {2, 60., 4500., 2.5, 0.5, 10. / 12},
			unknown: {1, 30., 1800., 4., 0., 1.}}},
	} {
		u := sum(sums(), tc.by, midday.Add(-24*time.Hour), midday)
		got := map[string][]any{}
		for _, g := range u.Groups {
			got[strings.Join(g.names(tc.by), "/")] = of(g)
		}
		if diff := cmp.Diff(tc.want, got, cmpopts.EquateApprox(0, 1e-9)); diff != "" {
			t.Errorf("by %s (-want +got):\n%s", tc.by, diff)
		}
		if diff := cmp.Diff([]any{3, 90., 6300., 14., 2., 14. / 16}, of(u.Total), cmpopts.EquateApprox(0, 1e-9)); diff != "" {
			t.Errorf("total by %s (-want +got):\n%s", tc.by, diff)
		}
		if len(u.Incomplete) > 0 {
			t.Errorf("incomplete: %q", u.Incomplete)
		}
	}
	lost := sums()
	lost.LostUntil = midday.Add(-3 * time.Hour)
	if u := sum(lost, byFlag{byUser}, midday.Add(-60*24*time.Hour), midday); len(u.Incomplete) != 2 {
		t.Errorf("incomplete: %q, want the lost usage and the time before 30 days", u.Incomplete)
	}
}

func TestUsagePrint(t *testing.T) {
	u := sum(sums(), byFlag{byUser}, midday.Add(-24*time.Hour), midday)
	u.Of = []string{"ns"}
	var got strings.Builder
	if err := u.print(&got); err != nil {
		t.Fatal(err)
	}
	const want = `3 runs of ns ended since 2026-06-30 12:00 UTC.

USER       RUNS  TIME     GPU-HOURS  WAITING  STARTING  STEPS    REPEATED  HANG  TEARDOWN  LOST  GOODPUT
ada        2     1h31m0s  12.0       1m0s     -         1h15m0s  15m0s     -     -         2.0   83.3%
(unknown)  1     30m30s   4.0        30s      -         30m0s    -         -     -         0.0   100.0%
total      3     2h1m30s  16.0       1m30s    -         1h45m0s  15m0s     -     -         2.0   87.5%
`
	if diff := cmp.Diff(want, got.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	var table bytes.Buffer
	if err := sum(sums(), byFlag{byScript, byUser}, midday.Add(-24*time.Hour), midday).writeCSV(&table); err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(&table).ReadAll()
	if err != nil || len(rows) != 3 || len(rows[0]) != 2+1+12+1 {
		t.Fatalf("got %q, %v; want a line of names and two groups", rows, err)
	}
	// A spreadsheet would run what a user has named a script.
	if rows[0][0] != "script" || rows[2][0] != "'=cmd() (folder)" || rows[1][5] != "4500.0000" || rows[0][5] != "steps_seconds" {
		t.Errorf("got %q", rows)
	}
}

func TestUsageFlags(t *testing.T) {
	for text, want := range map[string]time.Duration{"30d": 30 * 24 * time.Hour, "12h": 12 * time.Hour, "1h30m": 90 * time.Minute, "0d": 0,
		"-1d": 0,
		"d":   0, "": 0, "9999999d": 0, "-3h": 0} {
		var since sinceFlag
		if err := since.Set(text); (err == nil) != (want > 0) || time.Duration(since) != want {
			t.Errorf("--since=%s: %s, %v; want %s", text, &since, err, want)
		}
	}
	for text, ok := range map[string]bool{"user": true, "script,verdict": true, "node": true, "node,user": false, "user,user": false,
		"":    false,
		"gpu": false} {
		var by byFlag
		if err := errors.Join(by.Set(text), by.check()); (err == nil) != ok {
			t.Errorf("--by=%s: %v; want it allowed: %t", text, err, ok)
		}
	}
}

// A user who may not list ConfigMaps everywhere gets the sum of the namespaces that allow it, and learns which do not.
func TestUsageEverywhere(t *testing.T) {
	client := kubefake.NewClientset()
	for _, namespace := range []string{"mine", "theirs"} {
		if _, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		r := receipt.Receipt{Run: "run", RunUID: "uid", Namespace: namespace, Environment: "env", Started: midday, Ended: midday.Add(time.Hour)}
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
	all, from, err := receipt.UsagesEverywhere(t.Context(), clients)
	if err != nil || len(all.Runs) != 1 || !slices.Equal(from.Read, allowed) || len(from.Missing) != 1 ||
		!strings.Contains(from.Missing[0], "theirs") {
		t.Errorf("got %d runs of %q without %q, %v; want that of mine", len(all.Runs), from.Read, from.Missing, err)
	}
	allowed = nil
	if _, _, err := receipt.UsagesEverywhere(t.Context(), clients); fail.ReasonOf(err) != fail.PermissionDenied {
		t.Errorf("without any right: %v, want PermissionDenied", err)
	}
	allowed = []string{metav1.NamespaceAll}
	all, from, err = receipt.UsagesEverywhere(t.Context(), clients)
	if err != nil || len(all.Runs) != 2 || len(from.Missing) > 0 {
		t.Errorf("with all rights: %d runs, missing %q, %v; want both", len(all.Runs), from.Missing, err)
	}
}
