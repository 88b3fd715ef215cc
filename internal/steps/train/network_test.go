// SPDX-License-Identifier: Apache-2.0

package train

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/jobs"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/nccl"
)

// The step merges NCCL's logs from both nodes into one verdict, and reports each problem once.
func TestTrainingShowsTheNetwork(t *testing.T) {
	training, out, _ := newTraining(t, `
file=$(printf %s "$NCCL_DEBUG_FILE" | sed "s/%h/ml-dev-env-$NODE_RANK/; s/%p/7/")
cat > "$file" <<LOG
ml-dev-env-$NODE_RANK:7:7 [0] NCCL INFO NCCL version 2.28.9+cuda12.9
ml-dev-env-$NODE_RANK:7:8 [0] NCCL WARN NET/IB : Unable to open device mlx5_0
ml-dev-env-$NODE_RANK:7:8 [0] NCCL WARN NET/IB : Unable to open device mlx5_0
ml-dev-env-$NODE_RANK:7:8 [0] NCCL INFO Using network Socket
ml-dev-env-$NODE_RANK:7:8 [0] NCCL INFO ncclCommInitRankConfig comm 0xbb0 rank $NODE_RANK nranks 2 cudaDev 0 nvmlDev 0 busId 61000 `+
		`commId 0x6e - Init COMPLETE
ml-dev-env-$NODE_RANK:7:8 [0] NCCL INFO Channel 00/0 : $NODE_RANK[0] -> $((1 - NODE_RANK))[0] [send] via NET/Socket/0
LOG
`)
	result, err := training.Attempt(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for want, times := range map[string]int{
		"NCCL's logs show: TCP sockets, 2 ranks, on Socket/0.":     1,
		"NCCL on ml-dev-env-0: DeviceUnavailable: ":                1,
		"NCCL on ml-dev-env-1: DeviceUnavailable: ":                1,
		"its log: NET/IB : Unable to open device mlx5_0\n  next: ": 2,
	} {
		if n := strings.Count(out.String(), want); n != times {
			t.Errorf("the output has %q %d times, want %d:\n%s", want, n, times, out)
		}
	}
	if len(result.Statuses) != 2 || result.Statuses[1].NCCL == nil {
		t.Errorf("statuses %+v, want what NCCL's logs show in each", result.Statuses)
	}
}

// In mode rdma ranks on sockets end the training, whether they would continue or have exited with 0. In mode tcp they do
// not.
func TestSocketsEndWhatWasPromisedRDMA(t *testing.T) {
	const log = `
file=$(printf %s "$NCCL_DEBUG_FILE" | sed "s/%h/ml-dev-env-$NODE_RANK/; s/%p/7/")
cat > "$file" <<LOG
ml-dev-env-$NODE_RANK:7:7 [0] NCCL INFO NCCL version 2.28.9+cuda12.9
ml-dev-env-$NODE_RANK:7:8 [0] NCCL INFO Using network Socket
ml-dev-env-$NODE_RANK:7:8 [0] NCCL INFO ncclCommInitRankConfig comm 0xbb0 rank $NODE_RANK nranks 2 cudaDev 0 nvmlDev 0 busId 61000 ` +
		`commId 0x6e - Init COMPLETE
ml-dev-env-$NODE_RANK:7:8 [0] NCCL INFO Channel 00/0 : $NODE_RANK[0] -> $((1 - NODE_RANK))[0] [send] via NET/Socket/0
LOG
`
	for _, test := range []struct {
		name string
		mode agent.Mode
		then string
		want fail.Reason
	}{
		{"they would continue", agent.RDMA, "exec sleep 1000", fail.TransportWrong},
		{"they have ended", agent.RDMA, "exit 0", fail.TransportWrong},
		{"mode tcp", agent.TCP, "exit 0", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			training, out, _ := newTraining(t, log+test.then)
			training.Network.Mode = test.mode
			_, err := training.Attempt(t.Context())
			if test.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if fail.ReasonOf(err) != test.want || !strings.Contains(fmt.Sprint(err), "use TCP sockets, want RDMA") ||
				!strings.Contains(fmt.Sprint(err), "NCCL did not look for RDMA devices, as with NCCL_NET=Socket") {
				t.Errorf("got %s: %v, want %s with its cause\n%s", fail.ReasonOf(err), err, test.want, out)
			}
		})
	}
}

// In mode rdma a training without a log of NCCL succeeds with a warning: its ranks may have used TCP.
func TestUnprovenRDMAIsReported(t *testing.T) {
	const want = "Every rank exited with 0, but RDMA between the nodes is not proven: NCCL has no log. Next: see whether the script"
	for mode, times := range map[agent.Mode]int{agent.RDMA: 1, agent.TCP: 0} {
		training, out, _ := newTraining(t, "export NCCL_DEBUG=WARN; exit 0")
		training.Network.Mode = mode
		statuses, err := training.Attempt(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := training.meant(statuses.Statuses); err != nil || strings.Count(out.String(), want) != times {
			t.Errorf("mode %s: %v; want %d times %q in\n%s", mode, err, times, want, out)
		}
	}
}

// sockets returns the summary of the log of one of two ranks on TCP sockets.
func sockets() *nccl.Summary {
	reader := nccl.NewReader()
	for _, line := range []string{
		"Using network Socket",
		"comm 0xbb0 rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0",
		"ncclCommInitRankConfig comm 0xbb0 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 61000 commId 0x6e - Init COMPLETE",
		"Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0",
	} {
		fmt.Fprintf(reader, "host:7:8 [0] NCCL INFO %s\n", line)
	}
	summary := reader.Summary()
	return &summary
}

// TestNCCLIsMergedOncePerChange: an update from one of hundreds of nodes does not merge the logs of all of them again.
func TestNCCLIsMergedOncePerChange(t *testing.T) {
	m, say := ncclMonitor{wanted: nccl.RDMAGPU, ranks: 2}, func(slog.Level, string, ...any) {}
	if m.note(nil, nil) {
		t.Error("a status without NCCL's logs is a change")
	}
	if !m.note(nil, sockets()) {
		t.Error("the first log of a node is no change")
	}
	if m.note(nil, sockets()) {
		t.Error("the log of the next node needs a look of its own")
	}
	first := m.look([]agent.JobStatus{{NCCL: sockets()}, {}}, say)
	if fail.ReasonOf(first) != fail.TransportWrong {
		t.Errorf("after a change: %v, want %s", first, fail.TransportWrong)
	}
	due := m.note(sockets(), sockets())
	if again := m.look(nil, say); due || !errors.Is(again, first) {
		t.Errorf("after an update without a change the logs are merged again: %v", again)
	}
	m.note(sockets(), nil)
	if after := m.look(nil, say); after != nil {
		t.Errorf("after a change: %v, want nothing", after)
	}
}

// If sockets are seen after all ranks have exited with 0, and before their launchers have ended, the training does not
// succeed.
func TestSocketsAreSeenInTheEnd(t *testing.T) {
	training, _, _ := newTraining(t, "")
	training.Network.Mode = agent.RDMA
	events := make(chan event)
	go func() {
		for node := range 2 {
			status := agent.JobStatus{Node: node, State: agent.Running, Ranks: []agent.RankStatus{{Rank: node, Ended: time.Now()}}}
			if node == 1 {
				status.NCCL = sockets()
			}
			events <- jobs.Event{Node: node, Status: status}
		}
		events <- jobs.Event{Node: 1, Kind: jobs.Lost, Err: training.nodeGoneError(1, "its pod was deleted")}
	}()
	if _, err := training.wait(t.Context(), training.course(time.Now()), events); fail.ReasonOf(err) != fail.TransportWrong {
		t.Errorf("got %v, want %s", err, fail.TransportWrong)
	}
}

// Without settings ranks would communicate over TCP. Then only the StatefulSet shows that provision decided for RDMA.
func TestSettingsLost(t *testing.T) {
	for _, tc := range []struct {
		mode  agent.Mode
		facts []agent.Facts
		want  fail.Reason
	}{
		{agent.RDMA, []agent.Facts{{}, {}}, fail.NodeLost},
		{agent.RDMA, []agent.Facts{{}, {Network: &agent.Network{Mode: agent.RDMA}}}, ""},
		{agent.RDMA, []agent.Facts{{Network: &agent.Network{Mode: agent.TCP}}}, ""}, // the nodes could not use RDMA
		{agent.TCP, []agent.Facts{{}, {}}, ""},
	} {
		set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "env",
			Annotations: map[string]string{objects.ModeAnnotation: string(tc.mode)}}}
		a := Training{Deps: Deps{Clients: &kube.Clients{Kube: fake.NewClientset(set), Namespace: "ns"}}, Options: Options{Name: "env"}}
		if err := a.settingsLost(t.Context(), tc.facts); err == nil && tc.want != "" || err != nil && fail.ReasonOf(err) != tc.want {
			t.Errorf("mode %s, facts %+v: got %v, want %q", tc.mode, tc.facts, err, tc.want)
		}
	}
}
