package checkfabric

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/agenttest"
	"github.com/ml-dev-env/ml-dev-env/internal/fabric"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
)

func TestMain(m *testing.M) { agenttest.Main(m) }

// newCheck checks count agents, whose python3 is the shell script: a stand-in of
// the benchmark, to which $input is what the real one is given, $node and $nodes its place
// among those that take part, and $me the node's ordinal.
func newCheck(t *testing.T, count int, script string) (*Check, []*agenttest.Node, *strings.Builder) {
	t.Helper()
	bin := t.TempDir()
	program := `#!/bin/sh
for input; do :; done
me=$NODE_RANK
field() { printf %s "$input" | sed "s/.*\"$1\":\([0-9]*\).*/\1/"; }
node=$(field node); nodes=$(field nodes)
say() { echo "{\"fabric\": 1, $1}"; }
say '"event": "ready"'
` + script
	if err := os.WriteFile(filepath.Join(bin, "python3"), []byte(program), 0o755); err != nil {
		t.Fatal(err)
	}
	return start(t, count, append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH")))
}

func start(t *testing.T, count int, environ []string) (*Check, []*agenttest.Node, *strings.Builder) {
	t.Helper()
	agents := agenttest.Start(t, count)
	out := &strings.Builder{}
	c := &Check{ID: "check", Bound: 20 * time.Second, Log: step.TextLog(out)}
	for _, node := range agents {
		node.End()
		node.Config.Environ = environ
		node.Restart()
		c.Nodes = append(c.Nodes, node.Client)
		c.Hosts = append(c.Hosts, node.Config.PodIP)
	}
	return c, agents, out
}

const measured = `
[ $node = 0 ] && say '"operation": "all_reduce", "scope": "world", "bytes": 8, "ranks": 4, "time": 50000, "iterations": 9'
[ $node = 0 ] && say '"operation": "all_reduce", "scope": "world", "bytes": 8388608, "ranks": 4, "time": 8388608, "iterations": 9'
say '"event": "done"'
`

func TestCheckPasses(t *testing.T) {
	check, _, _ := newCheck(t, 2, measured)
	check.Mode, check.CompareTCP = agent.RDMA, true
	report, err := check.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if report.Verdict != fabric.Pass || report.Bandwidth.Decimal() != "1.5 GB/s" || report.Sockets != report.Bandwidth || report.Latency != 50*time.Microsecond {
		t.Errorf("got %+v, want a pass with 1.5 GB/s", report)
	}
	// Without GPUs nothing shows RDMA, which is no failure.
	if !strings.HasPrefix(report.Transport, "gloo over ") || !strings.Contains(report.Message, "which alone would show RDMA") {
		t.Errorf("transport %q, message %q", report.Transport, report.Message)
	}
}

// An image whose torch is for CPUs is measured by gloo; GPUs that one node alone does not
// see are that node's fault.
func TestTorchSeesNoGPU(t *testing.T) {
	check, _, out := newCheck(t, 2, `say '"event": "without-gpu"'`+measured)
	report, err := check.Run(t.Context())
	if err != nil || report.Verdict != fabric.Pass || report.Backend != fabric.Gloo || report.Expected != 0 || !strings.Contains(out.String(), "Measured by gloo instead") {
		t.Errorf("got %+v, %v; want a pass by gloo\n%s", report, err, out)
	}
	check, _, _ = newCheck(t, 2, `[ $me = 1 ] && say '"event": "without-gpu"'`+measured)
	if _, err := check.Run(t.Context()); fail.ReasonOf(err) != fail.GPUMissing || !strings.Contains(err.Error(), "node 1 (node-1), and does on others") {
		t.Errorf("got %v, want GPUMissing of node 1", err)
	}
}

// With one node cut off the others hang; the pairs tell which it is.
func TestHangingNodeIsNamed(t *testing.T) {
	for _, test := range []struct {
		name   string
		nodes  int
		script string
		want   []int
		words  string
	}{
		{"of three", 3, `
case $me,$nodes in 1,*|*,3) exec sleep 60;; esac
` + measured, []int{1}, "node 1 (node-1): the pairs 0-1, 1-2 do not answer"},
		{"of two", 2, `exec sleep 60`, []int{0, 1}, "nodes 0 and 1 (node-0, node-1) do not reach each other"},
		{"with what torch says", 2, `
echo 'Traceback (most recent call last):'
echo '  File "x.py", line 1, in <module>'
echo 'RuntimeError: [../gloo/transport/tcp/pair.cc:799] connect [10.0.103.5]:28703: Connection refused'
exit 1`, []int{0, 1}, "ConnectionRefused: nobody listens"},
	} {
		t.Run(test.name, func(t *testing.T) {
			check, _, out := newCheck(t, test.nodes, test.script)
			check.Bound = 6 * time.Second
			began := time.Now()
			report, err := check.Run(t.Context())
			if fail.ReasonOf(err) != fail.NetworkBroken || !strings.Contains(err.Error(), test.words) {
				t.Errorf("got %s: %v; want NetworkBroken with %q; log %s", fail.ReasonOf(err), err, test.words, out)
			}
			if diff := cmp.Diff(test.want, report.FaultyNodes); diff != "" || report.Verdict != fabric.Broken {
				t.Errorf("verdict %s, faulty (-want +got):\n%s", report.Verdict, diff)
			}
			if took := time.Since(began); took > check.Bound+2*ending {
				t.Errorf("took %s, want little more than %s", took, check.Bound)
			}
		})
	}
}

func TestNodeWithoutAgentIsNamed(t *testing.T) {
	check, agents, _ := newCheck(t, 3, measured)
	agents[2].End()
	check.Bound = 4 * time.Second
	report, err := check.Run(t.Context())
	if fail.ReasonOf(err) != fail.NetworkBroken || !slices.Equal(report.FaultyNodes, []int{2}) {
		t.Errorf("got %v, faulty %v; want NetworkBroken of node 2", err, report.FaultyNodes)
	}
	for _, node := range agents[:2] {
		node.End()
	}
	if _, err := check.Run(t.Context()); fail.ReasonOf(err) != fail.AgentUnreachable {
		t.Errorf("no agent answers: got %v, want AgentUnreachable", err)
	}
}

// A node that is cut while it measures: its agent takes nothing any more.
func TestNodeCutDuringTheCheck(t *testing.T) {
	check, agents, _ := newCheck(t, 2, `exec sleep 60`)
	check.Bound = 8 * time.Second
	agents[1].Wrap(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/v1/health" {
				panic(http.ErrAbortHandler)
			}
			next.ServeHTTP(w, r)
		})
	})
	report, err := check.Run(t.Context())
	if fail.ReasonOf(err) != fail.NetworkBroken || !slices.Equal(report.FaultyNodes, []int{1}) || !strings.Contains(err.Error(), "node 1 (node-1) cannot be reached while the others can") {
		t.Errorf("got %v, faulty %v; want NetworkBroken of node 1", err, report.FaultyNodes)
	}
}

// What fails for another cause is not the network's.
func TestOtherFailures(t *testing.T) {
	check, _, _ := newCheck(t, 2, `
echo 'Traceback (most recent call last):'
echo '  File "x.py", line 1, in <module>'
echo "ModuleNotFoundError: No module named 'torch'"
exit 1`)
	if report, err := check.Run(t.Context()); err != nil || report.Verdict != fabric.NotMeasured || !strings.Contains(report.Message, "no torch") {
		t.Errorf("got %v, %s %q; want not measured", err, report.Verdict, report.Message)
	}
	check, _, _ = newCheck(t, 2, `
echo 'Traceback (most recent call last):'
echo '  File "x.py", line 1, in <module>'
echo 'RuntimeError: CUDA error: out of memory'
exit 1`)
	if _, err := check.Run(t.Context()); fail.ReasonOf(err) != fail.RankFailed || !strings.Contains(err.Error(), "out of memory") {
		t.Errorf("got %v, want RankFailed with the error", err)
	}
	check, _, _ = start(t, 1, append(os.Environ(), "PATH="+slow(t)+":"+os.Getenv("PATH")))
	check.Bound = 2 * time.Second
	if report, err := check.Run(t.Context()); err != nil || report.Verdict != fabric.NotMeasured || !strings.Contains(report.Message, "0 of 1 were ready") {
		t.Errorf("torch takes too long: got %v, %s %q; want not measured", err, report.Verdict, report.Message)
	}
	check, _, _ = newCheck(t, 1, measured)
	check.Nodes = check.Nodes[:1]
	if report, err := check.Run(t.Context()); err != nil || report.Verdict != fabric.Pass {
		t.Errorf("one node of two ranks: got %v, %+v; want a pass", err, report)
	}
}

// slow is a folder whose python3 imports for ever.
func slow(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "python3"), []byte("#!/bin/sh\nexec sleep 60\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func needTorch(t *testing.T) {
	t.Helper()
	if err := exec.Command("python3", "-c", "import torch").Run(); err != nil {
		t.Skip("python3 has no torch here")
	}
}

// What gloo says of an interface that is not there.
func TestInterfaceMissing(t *testing.T) {
	needTorch(t)
	check, _, out := start(t, 2, append(os.Environ(), "GLOO_SOCKET_IFNAME=net9"))
	check.Bound = 2 * time.Minute
	report, err := check.Run(t.Context())
	if fail.ReasonOf(err) != fail.NetworkBroken || !strings.Contains(err.Error(), "NoSocketInterface") {
		t.Errorf("got %v, findings %+v; want NetworkBroken for NoSocketInterface; log %s", err, report.Findings, out)
	}
}

// The benchmark itself, where this machine's python3 has torch.
func TestBenchmark(t *testing.T) {
	needTorch(t)
	check, _, out := start(t, 2, append(os.Environ(), "GLOO_SOCKET_IFNAME=lo"))
	check.Bound = 2 * time.Minute
	report, err := check.Run(t.Context())
	if err != nil || report.Verdict != fabric.Pass || report.Bandwidth == 0 || report.Transport != "gloo over lo" {
		t.Fatalf("got %v, %+v; log %s", err, report, out)
	}
	scopes := map[fabric.Scope]int{}
	for _, m := range report.Measurements {
		scopes[m.Scope]++
	}
	if scopes[fabric.World] < 5 || scopes[fabric.InPair] != 1 || scopes[fabric.InNode] < 2 {
		t.Errorf("measured %v, want all ranks, the pair, and inside nodes", scopes)
	}
	var table strings.Builder
	if err := report.Print(&table); err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + table.String())
}
