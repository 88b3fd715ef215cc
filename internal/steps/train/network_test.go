package train

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// NCCL's logs of both nodes are one verdict, and what is wrong is said once.
func TestTrainingShowsTheNetwork(t *testing.T) {
	training, out, _ := newTraining(t, `
file=$(printf %s "$NCCL_DEBUG_FILE" | sed "s/%h/ml-dev-env-$NODE_RANK/; s/%p/7/")
cat > "$file" <<LOG
ml-dev-env-$NODE_RANK:7:7 [0] NCCL INFO NCCL version 2.28.9+cuda12.9
ml-dev-env-$NODE_RANK:7:8 [0] NCCL WARN NET/IB : Unable to open device mlx5_0
ml-dev-env-$NODE_RANK:7:8 [0] NCCL WARN NET/IB : Unable to open device mlx5_0
ml-dev-env-$NODE_RANK:7:8 [0] NCCL INFO Using network Socket
ml-dev-env-$NODE_RANK:7:8 [0] NCCL INFO ncclCommInitRankConfig comm 0xbb0 rank $NODE_RANK nranks 2 cudaDev 0 nvmlDev 0 busId 61000 commId 0x6e - Init COMPLETE
ml-dev-env-$NODE_RANK:7:8 [0] NCCL INFO Channel 00/0 : $NODE_RANK[0] -> $((1 - NODE_RANK))[0] [send] via NET/Socket/0
LOG
`)
	result, err := training.Run(t.Context())
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

// In mode rdma ranks on sockets end the training, whether they would go on or have
// ended well; in mode tcp they do not.
func TestSocketsEndWhatWasPromisedRDMA(t *testing.T) {
	const log = `
file=$(printf %s "$NCCL_DEBUG_FILE" | sed "s/%h/ml-dev-env-$NODE_RANK/; s/%p/7/")
cat > "$file" <<LOG
ml-dev-env-$NODE_RANK:7:7 [0] NCCL INFO NCCL version 2.28.9+cuda12.9
ml-dev-env-$NODE_RANK:7:8 [0] NCCL INFO NCCL_NET set by environment to Socket
ml-dev-env-$NODE_RANK:7:8 [0] NCCL INFO Using network Socket
ml-dev-env-$NODE_RANK:7:8 [0] NCCL INFO ncclCommInitRankConfig comm 0xbb0 rank $NODE_RANK nranks 2 cudaDev 0 nvmlDev 0 busId 61000 commId 0x6e - Init COMPLETE
ml-dev-env-$NODE_RANK:7:8 [0] NCCL INFO Channel 00/0 : $NODE_RANK[0] -> $((1 - NODE_RANK))[0] [send] via NET/Socket/0
LOG
`
	for _, test := range []struct {
		name, mode, then string
		want             fail.Reason
	}{
		{"they would go on", agent.RDMA, "exec sleep 1000", fail.TransportWrong},
		{"they have ended", agent.RDMA, "exit 0", fail.TransportWrong},
		{"mode tcp", agent.TCP, "exit 0", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			training, out, _ := newTraining(t, log+test.then)
			training.Network.Mode = test.mode
			_, err := training.Run(t.Context())
			if test.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if fail.ReasonOf(err) != test.want || !strings.Contains(fmt.Sprint(err), "talk over TCP sockets, want RDMA") || !strings.Contains(fmt.Sprint(err), "NCCL_NET=Socket is set") {
				t.Errorf("got %s: %v, want %s with its cause\n%s", fail.ReasonOf(err), err, test.want, out)
			}
		})
	}
}
