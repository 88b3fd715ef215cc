package server_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
)

// torchrun is a job of two ranks that the agent starts.
func torchrun(script string) agent.JobSpec {
	return agent.JobSpec{Run: "run", Launcher: agent.Torchrun, Script: script, Nodes: 1, RanksPerNode: 2}
}

// When a rank fails, the agent stops the others of its node, and the record says which one failed by itself.
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
		t.Fatalf("state %s, launcher %+v, %d ranks; want it exited with %+v and two ranks", status.State, status.Launcher, len(status.Ranks), want)
	}
	if first := status.Ranks[0]; first.Stopped || first.Exit != (agent.Exit{Code: 3}) {
		t.Errorf("the rank that failed: stopped %t, %+v; want exit code 3", first.Stopped, first.Exit)
	}
	if other := status.Ranks[1]; !other.Stopped || other.Exit != (agent.Exit{}) || !strings.HasSuffix(n.log("job", "rank-1", 0), "saved\n") {
		t.Errorf("the other rank: stopped %t, %+v, log %q; want it stopped after its handler", other.Stopped, other.Exit, n.log("job", "rank-1", 0))
	}
}

// A rank that ends well does not end the others.
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
	for gpu, cpus := range map[int]string{1: "0,4096-4097", 3: "1"} {
		device := filepath.Join(root, fmt.Sprintf("sys/bus/pci/devices/0000:%d9:00.0", gpu))
		if err := os.MkdirAll(device, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(device, "local_cpulist"), []byte(cpus+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	path := bin + ":" + os.Getenv("PATH")
	t.Setenv("PATH", path)
	n.End()
	n.Config.Environ = []string{"PATH=" + path, "NVIDIA_VISIBLE_DEVICES=GPU-1,GPU-3", rdma.SysRootVariable + "=" + root}
	n.Restart()
	if _, err := n.Client.SetNetwork(t.Context(), agent.Network{Mode: agent.TCP}); err != nil {
		t.Fatal(err)
	}
	const show = "grep Cpus_allowed_list /proc/self/status | cut -f 2"
	n.script("train.sh", show)
	unbound, err := exec.Command("sh", "-c", show).Output()
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		env  map[string]string
		want [2]string
	}{
		"bound":       {nil, [2]string{"0\n", "1\n"}},
		"off":         {map[string]string{"MLENV_CPU_BINDING": "off"}, [2]string{string(unbound), string(unbound)}},
		"chosen-gpus": {map[string]string{agent.CUDADevices: "GPU-3,GPU-1"}, [2]string{string(unbound), string(unbound)}},
	} {
		spec := torchrun("train.sh")
		spec.Env = tc.env
		n.run(name, spec)
		for rank, want := range tc.want {
			if got := n.log(name, fmt.Sprintf("rank-%d", rank), 0); got != want {
				t.Errorf("%s: rank %d may use the processors %q, want %q", name, rank, got, want)
			}
		}
	}
}
