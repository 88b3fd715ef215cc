// SPDX-License-Identifier: Apache-2.0

package receipt

import (
	"encoding/json"
	"fmt"
	"math"
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
	"github.com/ml-dev-env/ml-dev-env/internal/cause"
	"github.com/ml-dev-env/ml-dev-env/internal/fabric"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/metrics"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/nccl"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

func TestWriteTwiceAndRead(t *testing.T) {
	client := fake.NewClientset()
	r := Receipt{Fabric: &fabric.Report{Verdict: fabric.Pass, Bandwidth: 194_600_000_000}, Run: "train-1", RunUID: "uid-1", Namespace: "ns",
		Environment: "env", Verdict: Succeeded, Commit: "abc", Metrics: []byte(`{"loss":2.5}`),
		Ranks: []Rank{{Rank: 1, Node: 1, Exit: agent.Exit{Code: 3}, Started: time.Date(2026, 7, 1, 0, 0, 0, 0, time.UTC), Seconds: 1.5,
			Tail: []string{"boom"}}}}
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
	if err != nil || config.Labels["ml-dev-env.github.io/verdict"] != "Failed" || len(config.OwnerReferences) != 0 {
		t.Errorf("labels %v, owners %v, %v; want the verdict and no owner", config.Labels, config.OwnerReferences, err)
	}
	if _, err := Read(t.Context(), client, "ns", "train-2"); !apierrors.IsNotFound(err) {
		t.Errorf("no receipt: got %v, want NotFound", err)
	}
}

// A ConfigMap holds 1 MiB, so a receipt omits details that are also in the record, first those that all healthy ranks
// share.
func TestLargeReceipt(t *testing.T) {
	const nodes, perNode = 512, 8
	large := func(change func(*Receipt)) Receipt {
		r := Receipt{Run: "train-1", Namespace: "ns", Verdict: Failed, Network: &nccl.Summary{Transport: nccl.RDMAGPU},
			Fabric: &fabric.Report{Network: &nccl.Summary{}, Nodes: nodes, FaultyNodes: []int{7}},
			Curve:  &metrics.Curve{}, Cause: &cause.Culprit{Rank: 4095, Node: 511}, Metrics: []byte(`{"loss":2.5}`)}
		for node := range nodes {
			n := Node{Node: node, Pod: fmt.Sprint("ml-dev-env-", node), KubernetesNode: fmt.Sprintf("moc-r4pcc%03du%02d-nairr", node/32, node%32),
				Model: "NVIDIA H100 80GB HBM3", Driver: "570.124.06"}
			for local := range perNode {
				rank, device := node*perNode+local, fmt.Sprint("mlx5_", local)
				n.GPUs = append(n.GPUs, fmt.Sprintf("GPU-00000000-0000-0000-0000-%012x", rank))
				n.Rails = append(n.Rails, Rail{Device: device, Port: 1, Interface: fmt.Sprint("net", local),
					Network: fmt.Sprintf("10.0.%d.0/24", local), LinkLayer: "Ethernet", Rate: 400e9})
				r.Ranks = append(r.Ranks, Rank{Rank: rank, Node: node, Exit: agent.Exit{Code: -1, Signal: "SIGTERM"}, Stopped: true,
					Started: time.Date(2026, 7, 1, 0, 0, 0, 123456789, time.UTC), Seconds: 1234.567891})
				r.Network.Ranks = append(r.Network.Ranks, nccl.Rank{Rank: rank, Host: n.Pod, PID: 100 + local, Transport: nccl.RDMAGPU,
					Rails: []string{device}})
				r.Network.Rails = append(r.Network.Rails,
					nccl.Rail{Host: n.Pod, Name: device, Device: nccl.Device{Name: device, Port: 1, Link: "RoCE", GPUDirect: nccl.Yes, MTU: 4096},
						Transport: nccl.RDMAGPU, Channels: 32})
			}
			r.Nodes = append(r.Nodes, n)
			r.Fabric.KubernetesNodes = append(r.Fabric.KubernetesNodes, n.KubernetesNode)
		}
		r.Fabric.Network.Ranks, r.Fabric.Network.Rails = r.Network.Ranks, r.Network.Rails
		for _, round := range fabric.Rounds(nodes) {
			for _, pair := range round {
				r.Fabric.Measurements = append(r.Fabric.Measurements, fabric.Measurement{Operation: fabric.SendRecv, Scope: fabric.InPair, Pair: pair,
					Bytes: 64 << 20, Ranks: 16, Time: 1234567, Iterations: 20})
			}
		}
		r.Fabric.Measurements = append(r.Fabric.Measurements, fabric.Measurement{Operation: fabric.AllReduce, Scope: fabric.World, Bytes: 1 << 30,
			Ranks: nodes * perNode, Time: 12345678, Iterations: 20})
		for range 200 {
			r.Curve.Points = append(r.Curve.Points, metrics.Point{Step: 100})
		}
		change(&r)
		return r
	}
	fails := func(rank *Rank) {
		rank.Exit, rank.Stopped, rank.Tail = agent.Exit{Code: 1}, false, slices.Repeat([]string{strings.Repeat("x", 200)}, 20)
	}
	for _, tc := range []struct {
		name         string
		change       func(*Receipt)
		ranks, tails int
		pairs        int // number of measurements of pairs
		curve        bool
		leftOut      []string
	}{
		{"one failed rank", func(r *Receipt) {
			fails(&r.Ranks[4095])
			r.Network.Ranks[3].Transport = nccl.Sockets
		}, 1, 1, 9, true, []string{"4095 healthy ranks", "4095 rdma-gpudirect ranks", "4096 rdma-gpudirect rails", "2295 measurements"}},
		{"all ranks failed by themselves", func(r *Receipt) {
			for i := range r.Ranks {
				fails(&r.Ranks[i])
			}
		}, 1000, 0, 9, false, []string{"last lines of failed ranks", "curve", "3096 failed ranks"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			client := fake.NewClientset()
			r := large(tc.change)
			before, _ := json.Marshal(r)
			if err := Write(t.Context(), client, r); err != nil {
				t.Fatal(err)
			}
			config, err := client.CoreV1().ConfigMaps("ns").Get(t.Context(), "train-1-receipt", metav1.GetOptions{})
			if err != nil || len(config.Data[key]) > maxSize {
				t.Fatalf("%d bytes, %v; want at most %d", len(config.Data[key]), err, maxSize)
			}
			got, err := Read(t.Context(), client, "ns", "train-1")
			if err != nil {
				t.Fatal(err)
			}
			tails := 0
			for _, rank := range got.Ranks {
				tails += min(len(rank.Tail), 1)
			}
			if len(got.Ranks) != tc.ranks || tails != tc.tails || (got.Curve != nil) != tc.curve {
				t.Errorf("got %d ranks, %d tails, curve %t; want %d, %d, %t", len(got.Ranks), tails, got.Curve != nil, tc.ranks, tc.tails, tc.curve)
			}
			if got.Cause == nil || len(got.Nodes) != nodes || len(got.Nodes[0].GPUs) != perNode || len(got.Fabric.Measurements) != tc.pairs+1 {
				t.Errorf("got cause %v, %d nodes with %d GPUs, %d measurements; want all, and %d measurements", got.Cause, len(got.Nodes),
					len(got.Nodes[0].GPUs), len(got.Fabric.Measurements), tc.pairs+1)
			}
			for _, part := range tc.leftOut {
				if !slices.Contains(got.LeftOut, part) {
					t.Errorf("left out %q, want %q too", got.LeftOut, part)
				}
			}
			if after, _ := json.Marshal(r); string(after) != string(before) {
				t.Error("the caller's receipt was changed")
			}
		})
	}
}

// TestReceiptAlwaysFits: whatever is in it, a run gets a receipt with its verdict.
func TestReceiptAlwaysFits(t *testing.T) {
	long := strings.Repeat("<\x01x", 100<<10)
	for name, change := range map[string]func(*Receipt){
		"one long argument": func(r *Receipt) { r.Training.Args = []string{long} },
		"many arguments":    func(r *Receipt) { r.Training.Args = slices.Repeat([]string{strings.Repeat("x", 1000)}, 3000) },
		"long models": func(r *Receipt) {
			for i := range 1000 {
				r.Nodes = append(r.Nodes, Node{Node: i, Model: strings.Repeat("x", 2000), KubernetesNode: fmt.Sprint(i)})
			}
		},
		"long symptoms": func(r *Receipt) {
			for range 200 {
				r.Attempts = append(r.Attempts, agent.Attempt{Symptom: strings.Repeat("x", 8000)})
			}
		},
		"long messages": func(r *Receipt) { r.Message, r.Regression, r.ModeReason, r.Teardown = long, long, long, long },
		"many variables": func(r *Receipt) {
			r.NCCL = map[string]string{long: "x"}
			for i := range 20_000 {
				r.NCCL[fmt.Sprintf("NCCL_%d_%s", i, strings.Repeat("x", 100))] = "1"
			}
		},
		"large metrics":            func(r *Receipt) { r.Metrics = []byte(`{"loss":"` + strings.Repeat("x", 2<<20) + `"}`) },
		"metrics that are no JSON": func(r *Receipt) { r.Metrics = []byte(`{"loss":NaN}`) },
		"a time that JSON has not": func(r *Receipt) { r.Started = time.Date(12_000, 1, 1, 0, 0, 0, 0, time.UTC) },
		"a phase of such a time": func(r *Receipt) {
			r.Phases = []Phase{{Name: "train", Ended: time.Date(12_000, 1, 1, 0, 0, 0, 0, time.UTC)}}
		},
		"a number that JSON has not": func(r *Receipt) { r.Ranks = []Rank{{Seconds: math.Inf(1)}} },
		"a long traceback": func(r *Receipt) {
			r.Cause = &cause.Culprit{Rank: 3, Python: &agent.PythonError{Message: long, Traceback: slices.Repeat([]string{long}, 3)}}
		},
		"many claims": func(r *Receipt) { r.Record = &Record{Folder: long, Claims: slices.Repeat([]string{"claim"}, 100_000)} },
		"everything": func(r *Receipt) {
			r.Message, r.Image, r.ExcludedNodes = long, long, slices.Repeat([]string{"node"}, 100_000)
			r.Training.Args = slices.Repeat([]string{long[:100_000]}, 20)
			for i := range 1500 {
				r.Attempts = append(r.Attempts, agent.Attempt{Message: long[:300], LeftOut: slices.Repeat([]string{"node"}, 20)})
				r.Phases = append(r.Phases, Phase{Name: fmt.Sprint(i, long[:300])})
				r.Nodes = append(r.Nodes, Node{Node: i, Model: long[:300]})
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset()
			r := Receipt{Run: "train-1", RunUID: "1-2", Namespace: "ns", Environment: "env", Verdict: Failed, Reason: "RankFailed",
				Training: &Training{Script: "train.py", Launcher: agent.Torchrun, Nodes: 2}}
			change(&r)
			if err := Write(t.Context(), client, r); err != nil {
				t.Fatal(err)
			}
			config, err := client.CoreV1().ConfigMaps("ns").Get(t.Context(), "train-1-receipt", metav1.GetOptions{})
			if err != nil || len(config.Data[key]) > maxSize {
				t.Fatalf("%d bytes, %v; want at most %d", len(config.Data[key]), err, maxSize)
			}
			got, err := Read(t.Context(), client, "ns", "train-1")
			if err != nil {
				t.Fatal(err)
			}
			if got.Verdict != Failed || got.Reason != r.Reason || got.RunUID != r.RunUID || got.Training == nil || got.Training.Nodes != 2 {
				t.Errorf("got %.300v", got)
			}
			if len(got.LeftOut) == 0 {
				t.Error("it does not tell what is missing")
			}
		})
	}
}

func TestPrune(t *testing.T) {
	client := fake.NewClientset()
	add := func(environment string, n int, schedule ...string) {
		config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: fmt.Sprintf("%s-%02d-receipt", environment, n), UID: types.UID(fmt.Sprint(environment, n)),
			CreationTimestamp: metav1.NewTime(time.Date(2026, 7, 1+n, 0, 0, 0, 0, time.UTC)),
			Labels:            map[string]string{Label: "true", "ml-dev-env.github.io/environment": environment},
		}}
		if len(schedule) > 0 {
			config.Name, config.Labels[run.ScheduleLabel] = schedule[0]+"-"+config.Name, schedule[0]
		}
		if err := client.Tracker().Add(config); err != nil {
			t.Fatal(err)
		}
	}
	for n := range Keep + 3 {
		add("env", (n*7)%(Keep+3)) // in mixed order
	}
	add("other", 0)
	// Runs that users start do not displace the nights of a schedule, nor the other way round.
	for n := range Keep + 1 {
		add("env", n, "nightly")
		add("env", n, "weekly")
	}
	// Nor do trainings in a kept environment displace runs.
	for n := range Keep {
		config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("by-hand-", n),
			Labels: labelsOf("env", "", Failed)}, Data: map[string]string{startKey: `{"runUID":"x","kept":true}`}}
		if err := client.Tracker().Add(config); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		for _, schedule := range []string{"", "nightly"} {
			if err := Prune(t.Context(), client, "ns", "env", schedule, false); err != nil {
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
	if diff := cmp.Diff([]string{"env-00-receipt env0", "env-01-receipt env1", "env-02-receipt env2", "nightly-env-00-receipt env0"},
		deleted); diff != "" {
		t.Errorf("deleted (-want +got):\n%s", diff)
	}
}

// A receipt that was read is deleted, but not that of a later run of that name.
func TestDelete(t *testing.T) {
	client := fake.NewClientset()
	earlier, later := Receipt{Run: "train-1", RunUID: "uid-1", Namespace: "ns"}, Receipt{Run: "train-1", RunUID: "uid-2", Namespace: "ns"}
	if err := Write(t.Context(), client, later); err != nil {
		t.Fatal(err)
	}
	if err := Delete(t.Context(), client, earlier); fail.ReasonOf(err) != fail.InvalidInput {
		t.Errorf("the receipt of another run: %v, want %s", err, fail.InvalidInput)
	}
	if _, err := Read(t.Context(), client, "ns", "train-1"); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := Delete(t.Context(), client, later); err != nil {
			t.Error(err)
		}
	}
	if _, err := Read(t.Context(), client, "ns", "train-1"); !apierrors.IsNotFound(err) {
		t.Errorf("got %v, want NotFound", err)
	}
}

func TestLatest(t *testing.T) {
	client := fake.NewClientset()
	if _, ok, err := Latest(t.Context(), client, "ns", "env"); ok || err != nil {
		t.Errorf("got %v, %v; want none", ok, err)
	}
	for i, name := range []string{"second", "first"} {
		made := metav1.NewTime(time.Date(2026, 7, 2-i, 0, 0, 0, 0, time.UTC))
		config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: Name(name), CreationTimestamp: made,
			Labels: map[string]string{Label: "true", "ml-dev-env.github.io/environment": "env"}},
			Data: map[string]string{key: fmt.Sprintf(`{"run":%q}`, name)}}
		if err := client.Tracker().Add(config); err != nil {
			t.Fatal(err)
		}
	}
	if got, ok, err := Latest(t.Context(), client, "ns", "env"); got.Run != "second" || !ok || err != nil {
		t.Errorf("got %q, %v, %v; want the second, which is the newest", got.Run, ok, err)
	}
}

// A receipt that another client wrote makes no other receipt unreadable, and its numbers are never used as an index.
func TestInvalidReceipts(t *testing.T) {
	client := fake.NewClientset()
	for name, content := range map[string]string{
		"good": `{"run":"another","namespace":"elsewhere","verdict":"Failed"}`, "text": "hello", "rank": `{"ranks":[{"rank":1,"node":-1}]}`,
		"node": `{"nodes":[{"node":-2}]}`, "path": `{"runUID":"../../other"}`, "verdict": `{"verdict":"<b>"}`,
	} {
		config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: Name(name), Labels: map[string]string{Label: "true"}},
			Data: map[string]string{key: content}}
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

// FuzzDecode reads anything as a receipt. An accepted receipt has no number below 0, and is the same after it was written
// and read again.
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
