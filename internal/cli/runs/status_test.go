// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fabric"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
)

func TestProgress(t *testing.T) {
	part := func(state agent.JobState, attempt int, quiet time.Duration, ranks ...agent.RankStatus) agent.JobStatus {
		return agent.JobStatus{State: state, Spec: agent.JobSpec{Attempts: make([]agent.Attempt, attempt-1)}, Quiet: quiet, Ranks: ranks}
	}
	rank := func(number int, quiet time.Duration) agent.RankStatus {
		return agent.RankStatus{Rank: number, Quiet: quiet}
	}
	over := rank(0, time.Hour)
	over.Ended = time.Unix(1, 0)
	last := json.RawMessage(`{"step":812,"loss":2}`)
	for _, tc := range []struct {
		name             string
		jobs             []agent.JobStatus
		most             int
		attempt, silence string
	}{
		{"nodes without a job", make([]agent.JobStatus, 2), 4, "", ""},
		{"never restarted", []agent.JobStatus{part(agent.Running, 1, 0)}, 1, "", ""},
		{"a node that does not know the newest attempt", []agent.JobStatus{part(agent.Exited, 1, 0), part(agent.Running, 2, 0)}, 4, "2 of 4", ""},
		{"the run was deleted", []agent.JobStatus{part(agent.Exited, 3, 0)}, 0, "3", ""},
		{"one rank prints", []agent.JobStatus{part(agent.Running, 1, time.Second, rank(0, time.Second)),
			part(agent.Running, 1, time.Hour, rank(1, time.Hour))}, 4, "1 of 4", ""},
		{"all are silent", []agent.JobStatus{part(agent.Running, 1, 4*time.Minute, over, rank(1, 4*time.Minute)),
			part(agent.Running, 1, 5*time.Minute, rank(2, 5*time.Minute), rank(3, 6*time.Minute))}, 4,
			"1 of 4", "all ranks for 4m0s, rank 3 for 6m0s, last in step 812"},
		{"no rank has started", []agent.JobStatus{part(agent.Running, 1, 2*time.Minute)}, 1, "", "all ranks for 2m0s, last in step 812"},
	} {
		p := progressOf(tc.jobs, last)
		p.MaxAttempts = tc.most
		if p.attempt() != tc.attempt || p.silence() != tc.silence {
			t.Errorf("%s: got %q, %q; want %q, %q", tc.name, p.attempt(), p.silence(), tc.attempt, tc.silence)
		}
	}

	p := progressOf([]agent.JobStatus{part(agent.Running, 2, 4*time.Minute, rank(3, 4*time.Minute))}, nil)
	p.MaxAttempts = 3
	s := runStatus{progress: p}
	var out bytes.Buffer
	if err := s.print(&out, time.Now()); err != nil ||
		!strings.Contains(out.String(), "attempt  2 of 3\nsilent   all ranks for 4m0s, rank 3 for 4m0s\n") {
		t.Errorf("mlenv status prints %q, %v", out.String(), err)
	}
	s = runStatus{Saving: "rank 1 on node 0, for at most 25s"}
	out.Reset()
	if err := s.print(&out, time.Now()); err != nil || !strings.Contains(out.String(), "saving  rank 1 on node 0, for at most 25s\n") {
		t.Errorf("mlenv status prints %q, %v; want the ranks that save", out.String(), err)
	}
	now := time.Unix(100, 0)
	d := newDisplay(&out, 7)
	d.width, d.now = func() int { return 200 }, func() time.Time { return now }
	d.observe(launch.Event{Kind: launch.TaskStarted, Task: "train", Time: now})
	out.Reset()
	d.showProgress(p)
	if want := "\r\x1b[K0 of 7 done; train for 0.0 s, attempt 2 of 3; silent: all ranks for 4m0s, rank 3 for 4m0s"; out.String() != want ||
		!d.trains() {
		t.Errorf("mlenv run shows %q, want %q", out.String(), want)
	}
}

// The status of hundreds of nodes and thousands of ranks fits on a screen: it lists those that differ and counts the
// others.
func TestLargeTables(t *testing.T) {
	s := runStatus{}
	r := receipt.Receipt{Run: "train-1", LeftOut: []string{"curve"}}
	for node := range 512 {
		l := live{Node: node, State: "running", Ranks: 8, All: 8, Quiet: 2}
		if node == 300 {
			l.Ranks, l.Quiet = 7, 90
		}
		s.Live = append(s.Live, l)
		r.Nodes = append(r.Nodes, receipt.Node{Node: node, KubernetesNode: fmt.Sprint("gpu-", node), GPUs: make([]string, 8),
			Model: "NVIDIA H100 80GB HBM3", Compute: "9.0",
			Rails: slices.Repeat([]receipt.Rail{{Device: "mlx5_6", Model: "MT4129", Firmware: "28.39.1002", Rate: 400 * rdma.Gbps}}, 4)})
		for local := range 8 {
			r.Ranks = append(r.Ranks, receipt.Rank{Rank: node*8 + local, Node: node, Exit: agent.Exit{Code: -1, Signal: "SIGTERM"}, Stopped: true,
				Seconds: float64(node)})
		}
	}
	r.Nodes[9].GPUs = r.Nodes[9].GPUs[:7]
	r.Nodes[11].Rails[3].Firmware = "28.36.1010"
	r.Ranks[2407].Exit, r.Ranks[2407].Stopped = agent.Exit{Code: 3}, false
	for _, tc := range []struct {
		name  string
		print func(io.Writer) error
		want  []string
	}{
		{"status", func(out io.Writer) error { return s.print(out, time.Now()) },
			[]string{"511 nodes  running  8 of 8  2.0 s\n", "300        running  7 of 8  1m30s\n"}},
		{"receipt", func(out io.Writer) error { return printReceipt(out, r, nil) },
			[]string{"510 nodes          8     NVIDIA H100 80GB HBM3  9.0      4 × MT4129, 400 Gb/s, firmware 28.39.1002\n",
				"9          gpu-9   7     NVIDIA H100 80GB HBM3  9.0  ", "11         gpu-11  8     NVIDIA H100 80GB HBM3  9.0      3 × MT4129, 400 " +
					"Gb/s, firmware 28.39.1002; 1 × MT4129, 400 Gb/s, firmware 28.36.1010\n",
				"4095 ranks        SIGTERM, stopped because another rank failed or the run ended  8m31s\n", "2407        300   exit code 3",
				"Not in the receipt, because it would be too large: curve.\n"}},
	} {
		var out bytes.Buffer
		if err := tc.print(&out); err != nil {
			t.Fatal(err)
		}
		for _, want := range tc.want {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s prints %s\nwant %q in it", tc.name, out.String(), want)
			}
		}
		if lines := strings.Count(out.String(), "\n"); lines > 20 {
			t.Errorf("%s prints %d lines, want at most 20", tc.name, lines)
		}
	}
	few := []live{{Node: 0, State: "running"}, {Node: 1, State: "running"}}
	if rows := groupRows(few, func(l live) string { return l.State }); len(rows) != 2 {
		t.Errorf("two nodes share %d rows, want one each", len(rows))
	}
}

// Where no rank has failed, no row blames another rank; in a hang the culprit was not stopped for others.
func TestReceiptOfStoppedRanks(t *testing.T) {
	for reason, why := range map[fail.Reason]string{
		fail.Hang: "because the training hung", fail.TrainingTimeout: "at the end of the training's time",
		fail.Cancelled: "because the run was cancelled",
	} {
		r := receipt.Receipt{Run: "train-1", Reason: reason, Ranks: []receipt.Rank{
			{Rank: 0, Exit: agent.Exit{Code: -1, Signal: "SIGTERM"}, Stopped: true},
			{Rank: 1, Node: 1, Exit: agent.Exit{Code: -1, Signal: "SIGKILL"}},
		}}
		var out bytes.Buffer
		if err := printReceipt(&out, r, nil); err != nil {
			t.Fatal(err)
		}
		text := out.String()
		if !strings.Contains(text, "0     0     SIGTERM, stopped "+why+"  ") || !strings.Contains(text, "1     1     SIGKILL  ") {
			t.Errorf("%s: got\n%s", reason, text)
		}
	}
}

// mlenv receipt has the speed of the devices, and a row for each slow one.
func TestReceiptOfSlowDevices(t *testing.T) {
	r := receipt.Receipt{Run: "train-1", Fabric: &fabric.Report{Backend: fabric.NCCL, Nodes: 2, Devices: []fabric.Device{
		{Rank: 0, Node: 0, Kind: "NVIDIA H100", Precision: "bfloat16", Product: 640e12, Copy: 2500e9},
		{Rank: 1, Node: 1, Kind: "NVIDIA H100", Precision: "bfloat16", Product: 400e12, Copy: 2500e9},
	}}}
	r.Fabric.Judge()
	var out bytes.Buffer
	if err := printReceipt(&out, r, nil); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"NVIDIA H100: 2 devices, matrix product (bfloat16) 400.0 TFLOP/s to 640.0 TFLOP/s, median 640.0 TFLOP/s",
		"rank 1 of node 1, NVIDIA H100: matrix product 400.0 TFLOP/s, 38% below the other one's 640.0 TFLOP/s"} {
		if text := out.String(); !strings.Contains(text, want) {
			t.Errorf("got\n%s\nwant %q", text, want)
		}
	}
}

// A rule has stopped the ranks, and no other rank is to blame.
func TestReceiptOfARule(t *testing.T) {
	r := receipt.Receipt{Run: "train-1", Reason: fail.StopCondition, Ranks: []receipt.Rank{
		{Rank: 0, Exit: agent.Exit{Code: -1, Signal: "SIGTERM"}, Stopped: true}, {Rank: 1, Node: 1, Stopped: true},
	}}
	var out bytes.Buffer
	if err := printReceipt(&out, r, nil); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"0     0     SIGTERM, stopped by a rule", "1     1     exit code 0, stopped by a rule"} {
		if text := out.String(); !strings.Contains(text, want) || strings.Contains(text, "another rank") {
			t.Errorf("got\n%s\nwant %q", text, want)
		}
	}
}
