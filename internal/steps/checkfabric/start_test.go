// SPDX-License-Identifier: Apache-2.0

package checkfabric

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/fabric"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

const oneGPU = `#!/bin/sh
[ "$1" = topo ] || echo "0, GPU-0, NVIDIA H100, 580.95.05, 81559, 4, 0, 30, 0x0, None, 0, 00000000:19:00.0, Disabled, 9.0"`

// The check waits for NCCL's first initialization however long it takes, even if the check has little time.
func TestRanksMeetLate(t *testing.T) {
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "nvidia-smi"), []byte(oneGPU), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	check, _, out := newCheck(t, 2, `sleep 4.3; say '"event": "joined"'`+measured)
	const timeThatIsLittle = 16 * time.Second
	check.Bound = timeThatIsLittle
	report, err := check.Run(t.Context())
	if err != nil || report.Verdict != fabric.Pass || report.Backend != fabric.NCCL {
		t.Errorf("got %v, %s %q by %s; want a pass by nccl; log %s", err, report.Verdict, report.Message, report.Backend, out)
	}
	const timeToMeet = 4 * time.Second
	if check.meeting < timeToMeet || check.joining() != 3*check.meeting {
		t.Errorf("met in %s, allows pairs %s; want 4.3 s, and three times of that", check.meeting, check.joining())
	}
}

// Any number of ranks that do not meet stay silent for the whole time to meet, which is shorter than their job's.
func TestTimeOfManyRanks(t *testing.T) {
	for _, count := range []int{2, 16, 128} {
		check := &Check{Nodes: make(nodes.Set, count), Hosts: make([]string, count), Bound: 90 * time.Second, began: time.Now()}
		check.report = fabric.Report{Backend: fabric.NCCL, RanksPerNode: 8}
		if j := check.whole(check.mainTime()); j.joining != 30*time.Second+time.Duration(count)*2*time.Second ||
			j.bound < j.joining+20*time.Second {
			t.Errorf("%d nodes of 8 ranks: %s of %s to meet, want 30 s and 2 s for each node, and 20 s more for the job", count, j.joining, j.bound)
		}
	}
}

// railCheck returns a check that has measured all ranks of two nodes, which have two rails and two GPUs.
func railCheck(t *testing.T, script string) (*Check, []rail, *strings.Builder) {
	t.Helper()
	check, _, out := newCheck(t, 2, script)
	check.began, check.devices = time.Now(), devices()
	check.facts = []agent.Facts{{GPUs: make([]agent.GPU, 2)}, {GPUs: make([]agent.GPU, 2)}}
	check.report = fabric.Report{Nodes: 2, Backend: fabric.NCCL, RanksPerNode: 2}
	rails := check.rails()
	for _, r := range rails {
		check.report.Rails = append(check.report.Rails, r.report)
	}
	check.expect(rails)
	return check, rails, out
}

func TestRanksOfRailsMeetLate(t *testing.T) {
	check, rails, out := railCheck(t, `sleep 6; say '"event": "joined"'`+measured)
	if err := check.measureRails(t.Context(), rails); err != nil || len(check.report.Measurements) != 4 {
		t.Errorf("got %v and %d measurements, want those of two rails; log %s", err, len(check.report.Measurements), out)
	}
	check, rails, out = railCheck(t, measured)
	const timeForNoRail = 20 * time.Second
	check.Bound = timeForNoRail
	check.importing, check.meeting = 4*time.Second, 4*time.Second
	if err := check.measureRails(t.Context(), rails); err != nil || len(check.report.Measurements) != 0 ||
		!strings.Contains(out.String(), "no time left to measure all rails") {
		t.Errorf("18 s left: got %v and %d measurements; want none, as 21 s may pass before a silence shows anything; log %s", err,
			len(check.report.Measurements), out)
	}
}

// If a pair has less time than NCCL may need to start, its failure is not blamed on its nodes.
func TestNoTimeForPairs(t *testing.T) {
	t.Parallel()
	check, rails, _ := railCheck(t, "exec sleep 60")
	const timeForNoPair = 10 * time.Second
	check.Bound = timeForNoPair
	err := check.isolate(t.Context(), rails, outcome{rail: noRail, stalled: true})
	if fail.ReasonOf(err) != fail.NetworkBroken || !strings.Contains(err.Error(), "no time to find the faulty one") ||
		len(check.report.FaultyNodes) != 0 {
		t.Errorf("got %v, faulty %v; want NetworkBroken without a node", err, check.report.FaultyNodes)
	}
	const timeForBothToBeReady = 9 * time.Second
	j := check.pair(fabric.Pair{0, 1}, 0, rails, noRail, timeForBothToBeReady)
	out, err := check.do(t.Context(), j)
	if err != nil || out.done || out.conclusive() || !slices.Equal(slices.Sorted(slices.Values(out.ready)), []int{0, 1}) {
		t.Errorf("silent for less than %s, of 10 s: got %v, %+v; want nothing shown", timeForBothToBeReady, err, out)
	}
	check.report.Verdict = ""
	if err := check.isolate(t.Context(), rails, out); err != nil ||
		!strings.Contains(check.report.Message, "starting nccl left no time to measure") ||
		!strings.Contains(check.report.Message, "0 of 2 had joined") {
		t.Errorf("got %v, %q; want the start of NCCL", err, check.report.Message)
	}
}
