// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/rank"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
)

// torchrun returns a job of two ranks that the agent starts.
func torchrun(script string) agent.JobSpec {
	return agent.JobSpec{Run: "run", Launcher: agent.Torchrun, Script: script, Nodes: 1, RanksPerNode: 2}
}

// When a rank fails, the agent stops the others of its node, and the record shows which rank failed by itself.
func TestRankFailure(t *testing.T) {
	n := newNode(t)
	n.script("train.sh", `if [ "$RANK" = 0 ]; then
  until [ -e trapped ]; do sleep 0.01; done
  exit 3
fi
trap 'echo saved; exit 0' TERM
touch trapped
while :; do sleep 0.01; done`)
	status := n.run("job", torchrun("train.sh"))
	if want := (agent.Exit{Code: 3}); status.State != agent.Exited || status.Launcher != want || len(status.Ranks) != 2 {
		t.Fatalf("state %s, launcher %+v, %d ranks; want it exited with %+v and two ranks", status.State, status.Launcher, len(status.Ranks),
			want)
	}
	if first := status.Ranks[0]; first.Stopped || first.Exit != (agent.Exit{Code: 3}) {
		t.Errorf("the rank that failed: stopped %t, %+v; want exit code 3", first.Stopped, first.Exit)
	}
	if other := status.Ranks[1]; !other.Stopped || other.Exit != (agent.Exit{}) || !strings.HasSuffix(n.log("job", "rank-1", 0), "saved\n") {
		t.Errorf("the other rank: stopped %t, %+v, log %q; want it stopped after its handler", other.Stopped, other.Exit,
			n.log("job", "rank-1", 0))
	}
}

// A rank that exits with 0 does not end the others.
func TestRankEndsEarly(t *testing.T) {
	n := newNode(t)
	n.script("train.sh", `if [ "$RANK" = 0 ]; then touch done; exit; fi
until [ -e done ]; do sleep 0.01; done
echo "$RANK $LOCAL_RANK $LOCAL_WORLD_SIZE $ROLE_RANK"`)
	status := n.run("job", torchrun("train.sh"))
	if status.Launcher != (agent.Exit{}) || status.Ranks[1].Stopped || n.log("job", "rank-1", 0) != "1 1 2 1\n" {
		t.Errorf("launcher %+v, ranks %+v, log %q; want both to end by themselves", status.Launcher, status.Ranks, n.log("job", "rank-1", 0))
	}
}

// Each rank runs on the processors near its GPU, unless the user binds ranks.
func TestRanksRunNearTheirGPUs(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("one processor is near everything")
	}
	n := newNode(t)
	bin, root := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "nvidia-smi"), []byte(smi4), 0o755); err != nil {
		t.Fatal(err)
	}
	var own unix.CPUSet
	if err := unix.SchedGetaffinity(0, &own); err != nil {
		t.Fatal(err)
	}
	// A container's limit, or GOMAXPROCS in the environment, would make fewer processors enough.
	before := runtime.GOMAXPROCS(own.Count())
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
	// The first rank's GPU is near one half of the processors, the second's near the other half.
	var halves [2]string
	for cpu, seen := 0, 0; seen < own.Count(); cpu++ {
		if own.IsSet(cpu) {
			halves[seen*2/own.Count()] += "," + strconv.Itoa(cpu)
			seen++
		}
	}
	for i := range halves {
		halves[i] = halves[i][1:]
	}
	near := func(first, second string) {
		t.Helper()
		for gpu, cpus := range map[int]string{1: first, 3: second} {
			device := filepath.Join(root, fmt.Sprintf("sys/bus/pci/devices/0000:%d9:00.0", gpu))
			if err := errors.Join(os.MkdirAll(device, 0o755), os.WriteFile(filepath.Join(device, "local_cpulist"), []byte(cpus+"\n"),
				0o644)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := n.Client.SetNetwork(t.Context(), agent.Network{Mode: agent.TCP}); err != nil {
			t.Fatal(err)
		}
	}
	path := bin + ":" + os.Getenv("PATH")
	t.Setenv("PATH", path)
	n.End()
	n.Config.Environ = []string{"PATH=" + path, "NVIDIA_VISIBLE_DEVICES=GPU-1,GPU-3", rdma.SysRootVariable + "=" + root}
	n.Restart()
	const show = "grep Cpus_allowed_list /proc/self/status | cut -f 2"
	n.script("train.sh", show)
	unbound, err := exec.Command("sh", "-c", show).Output()
	if err != nil {
		t.Fatal(err)
	}
	all := strings.TrimSpace(string(unbound))
	for i, tc := range []struct {
		first, second string
		env           map[string]string
		want          [2]string
	}{
		{halves[0] + ",4096-4097", halves[1], nil, halves},
		{halves[0], halves[1], map[string]string{"MLENV_CPU_BINDING": "off"}, [2]string{all, all}},
		{halves[0], halves[1], map[string]string{agent.CUDADevices: "GPU-3,GPU-1"}, [2]string{all, all}},
		{halves[0], halves[0], nil, [2]string{all, all}}, // sharing one half, both ranks would have too few
		{halves[0], "", nil, [2]string{halves[0], all}},
	} {
		near(tc.first, tc.second)
		spec, id := torchrun("train.sh"), fmt.Sprint("job-", i)
		spec.Env = tc.env
		n.run(id, spec)
		for number, list := range tc.want {
			printed := n.log(id, fmt.Sprintf("rank-%d", number), 0)
			got, err := rank.ParseCPUs(printed)
			if want, problem := rank.ParseCPUs(list); err != nil || problem != nil || got != want {
				t.Errorf("%d: rank %d may use the processors %q, %v; want %q", i, number, printed, err, list)
			}
		}
	}
}
