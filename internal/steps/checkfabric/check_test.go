// SPDX-License-Identifier: Apache-2.0

package checkfabric

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
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
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env/network"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/fabric"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/param"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
)

func TestMain(m *testing.M) { agenttest.Main(m) }

// newCheck returns a check of count agents, whose python3 is the shell script. The script stands in for the benchmark:
// $input is the benchmark's input, $node and $nodes are its place among the nodes that take part, and $me is the node's
// ordinal.
func newCheck(t *testing.T, count int, script string) (*Check, []*agenttest.Node, *strings.Builder) {
	t.Helper()
	return start(t, count, append(os.Environ(), "PATH="+benchmark(t, script)+":"+os.Getenv("PATH")))
}

// benchmark returns a folder with the python3 that runs the script.
func benchmark(t *testing.T, script string) string {
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
	return bin
}

// A check divides its time: agents get a quarter to answer, the ranks two thirds to measure, and they may be silent for half of
// these. So the time of a check that waits for something in vain decides how long the agents and ranks of a busy machine have.
// Such tests run in parallel.
const (
	timeForACheckThatEnds = 2 * time.Minute
	timeToFindTheNode     = 30 * time.Second
	timeForAgentsToAnswer = 24 * time.Second
)

func start(t *testing.T, count int, environ []string) (*Check, []*agenttest.Node, *strings.Builder) {
	t.Helper()
	agents := agenttest.Start(t, count)
	out := &strings.Builder{}
	c := &Check{ID: "check", Bound: timeForACheckThatEnds, Log: command.TextLog(out)}
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
	check.Mode = agent.RDMA
	report, err := check.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if report.Verdict != fabric.Pass || report.Bandwidth.String() != "1.5 GB/s" || report.Latency != 50*time.Microsecond {
		t.Errorf("got %+v, want a pass with 1.5 GB/s", report)
	}
	// Without GPUs nothing shows RDMA, and that is no failure.
	if !strings.HasPrefix(report.Transport, "gloo over ") || !strings.Contains(report.Message, "and only NCCL would show RDMA") {
		t.Errorf("transport %q, message %q", report.Transport, report.Message)
	}
}

// The cluster file's figure for TCP counts in mode tcp.
func TestExpectedOfSockets(t *testing.T) {
	check, agents, _ := newCheck(t, 2, measured)
	for _, node := range agents {
		if _, err := node.Client.SetNetwork(t.Context(),
			agent.Network{Mode: agent.TCP, Expected: rdma.Expected{Sockets: 3 * rdma.GBps}}); err != nil {
			t.Fatal(err)
		}
	}
	report, err := check.Run(t.Context())
	const words = "bus bandwidth 1.5 GB/s, expected 3.0 GB/s"
	if err != nil || report.Verdict != fabric.Slow || !strings.Contains(report.Message, words) {
		t.Errorf("%+v, %v; want it slow, with %q", report, err, words)
	}
}

// The check waits until sync-repo, which runs in parallel and sends files, releases the turn.
func TestCheckWaitsForItsTurn(t *testing.T) {
	check, agents, _ := newCheck(t, 2, measured)
	asked := make(chan struct{}, 100)
	agents[0].Wrap(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/v1/turn" || strings.HasPrefix(r.URL.Path, "/v1/jobs/") {
				asked <- struct{}{}
			}
			next.ServeHTTP(w, r)
		})
	})
	const timeToGetTheTurn = time.Minute
	release, err := check.Nodes[0].WaitForTurn(t.Context(), timeToGetTheTurn)
	if err != nil {
		t.Fatal(err)
	}
	<-asked
	go func() {
		<-asked
		if len(asked) > 0 {
			t.Error("a job was started while files were sent")
		}
		release()
	}()
	if report, err := check.Run(t.Context()); err != nil || report.Verdict != fabric.Pass {
		t.Errorf("got %+v, %v; want a pass", report, err)
	}
}

// A quick check that finds no fault is enough. A quick check that finds a slow node is followed by a whole check.
func TestQuickCheck(t *testing.T) {
	const pairs = `
pair() { [ $node = 0 ] && say "\"operation\": \"send_recv\", \"scope\": \"pair\", \"pair\": [$1], \"bytes\": 4194304, \"ranks\": 2, ` +
		`\"time\": $2, \"iterations\": 9"; }
pair 0,1 1000000
case "$input" in *'"share":0.1'*) pair 0,2 $slow; pair 1,2 $slow;; *) pair 0,2 1000000; pair 1,2 1000000;; esac
`
	for slow, quick := range map[string]bool{"1000000": true, "9000000": false} {
		check, _, out := newCheck(t, 3, "slow="+slow+pairs+measured)
		check.Quick = true
		report, err := check.Run(t.Context())
		if err != nil || report.Verdict != fabric.Pass || report.Quick != quick || len(report.Measurements) != 5 || len(report.FaultyNodes) != 0 {
			t.Errorf("%s ns: got %+v, %v; want a pass, and quick %t", slow, report, err, quick)
		}
		if strings.Contains(out.String(), "so all is measured: node 2 (node-2): pairs with it") == quick {
			t.Errorf("%s ns: the log is %s", slow, out)
		}
	}
}

// ratesOfDevices lets each rank print the rates of its device, of which node 1's are low, and $again when they are measured alone.
const ratesOfDevices = `
device() { say "\"event\": \"device\", \"device\": {\"rank\": $node, \"node\": 99, \"kind\": \"AMD EPYC\", ` +
	`\"precision\": \"float32\", \"flopsPerSecond\": $1, \"copyBytesPerSecond\": $2}"; }
case "$node,$input" in
1,*'"sizes":[8],'*) device $again;;
1,*) device 6000000000 1000000000;;
*) device 60000000000 12000000000;;
esac
`

// A rank that is throttled is named, and its node is at fault. A rank that is slow once only has waited for a processor.
func TestSlowDevice(t *testing.T) {
	for _, test := range []struct {
		name, again string
		verdict     fabric.Result
		faulty      []int
	}{
		{"throttled", "6500000000 900000000", fabric.Slow, []int{1}},
		{"busy for a moment", "50000000000 9000000000", fabric.Pass, nil},
		{"busy for a moment, in its copies again", "50000000000 900000000", fabric.Pass, nil},
	} {
		check, _, out := newCheck(t, 2, "again='"+test.again+"'"+ratesOfDevices+measured)
		check.Quick = true
		report, err := check.Run(t.Context())
		if err != nil || report.Verdict != test.verdict || !slices.Equal(report.FaultyNodes, test.faulty) ||
			report.Quick != (test.verdict == fabric.Pass) || len(report.Devices) != 2 || len(report.DeviceKinds) != 1 ||
			report.DeviceKinds[0].Devices != 2 {
			t.Errorf("%s: got %+v, %v; want %s, nodes %v at fault; log %s", test.name, report, err, test.verdict, test.faulty, out)
		}
		if test.verdict == fabric.Slow {
			judgeSlowDevice(t, report)
			const want = "so all is measured: rank 1 of node 1 (node-1), AMD EPYC: matrix product 6.5 GFLOP/s, 89% below the other one's " +
				"60 GFLOP/s; copy 1.0 GB/s"
			if !strings.Contains(out.String(), want) {
				t.Errorf("the log is %s; want %q", out, want)
			}
		}
	}
}

// judgeSlowDevice tests that fabric-bandwidth=fail fails with the reason of a device, with the rank and the node to leave out.
func judgeSlowDevice(t *testing.T, report fabric.Report) {
	t.Helper()
	var out strings.Builder
	c := &checker{Deps{Log: command.TextLog(&out)}, Options{Bandwidth: warn}}
	if err := c.judge(report); err != nil || !strings.Contains(out.String(), "One slow device slows all ranks: rank 1 of node 1 (node-1)") {
		t.Errorf("fabric-bandwidth=warn: got %v, log %s", err, &out)
	}
	c.Bandwidth = failing
	err := c.judge(report)
	if fail.ReasonOf(err) != fail.DeviceSlow || !strings.Contains(err.Error(), "rank 1 of node 1 (node-1)") ||
		!strings.Contains(fail.NextOf(err), "mlenv shell 1 -- nvidia-smi") || !strings.Contains(fail.NextOf(err), "exclude-nodes=node-1") {
		t.Errorf("fabric-bandwidth=fail: got %s: %v; next: %s", fail.ReasonOf(err), err, fail.NextOf(err))
	}
}

// A quick check measures inside nodes only if they have GPUs. With gloo that would only show how busy the processors are.
func TestQuickCheckInside(t *testing.T) {
	for backend, want := range map[fabric.Backend]bool{fabric.NCCL: true, fabric.Gloo: false} {
		c := &Check{Nodes: make(nodes.Set, 2), Hosts: []string{"a", "b"}, Quick: true, report: fabric.Report{Backend: backend}}
		if got := c.whole(time.Minute).input.Inside; got != want {
			t.Errorf("%s: inside %t, want %t", backend, got, want)
		}
	}
}

// If the image's torch is for CPUs, gloo measures. If only one node does not see its GPUs, that node is at fault.
func TestTorchSeesNoGPU(t *testing.T) {
	check, _, out := newCheck(t, 2, `say '"event": "without-gpu"'`+measured)
	report, err := check.Run(t.Context())
	if err != nil || report.Verdict != fabric.Pass || report.Backend != fabric.Gloo || report.Expected != 0 ||
		!strings.Contains(out.String(), "Measured by gloo instead") {
		t.Errorf("got %+v, %v; want a pass by gloo\n%s", report, err, out)
	}
	check, _, _ = newCheck(t, 2, `[ $me = 1 ] && say '"event": "without-gpu"'`+measured)
	if _, err := check.Run(t.Context()); fail.ReasonOf(err) != fail.GPUMissing ||
		!strings.Contains(err.Error(), "node 1 (node-1), and does on others") {
		t.Errorf("got %v, want GPUMissing for node 1", err)
	}
}

// If one node is cut off the others hang; the pairs identify it.
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
exit 1`, []int{0, 1}, "no process listens at the peer's address"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			check, _, out := newCheck(t, test.nodes, test.script)
			check.Bound = timeToFindTheNode
			began := time.Now()
			report, err := check.Run(t.Context())
			if fail.ReasonOf(err) != fail.NetworkBroken || !strings.Contains(err.Error(), test.words) {
				t.Errorf("got %s: %v; want NetworkBroken with %q; log %s", fail.ReasonOf(err), err, test.words, out)
			}
			if next := fail.NextOf(err); strings.Contains(next, "start again with param exclude-nodes=node-1") != (test.nodes == 3) {
				t.Errorf("next: %s", next)
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
	t.Parallel()
	check, agents, _ := newCheck(t, 3, measured)
	agents[2].End()
	check.Bound = timeForAgentsToAnswer
	report, err := check.Run(t.Context())
	if fail.ReasonOf(err) != fail.NetworkBroken || !slices.Equal(report.FaultyNodes, []int{2}) {
		t.Errorf("got %v, faulty %v; want NetworkBroken for node 2", err, report.FaultyNodes)
	}
	for _, node := range agents[:2] {
		node.End()
	}
	if _, err := check.Run(t.Context()); fail.ReasonOf(err) != fail.AgentUnreachable {
		t.Errorf("no agent answers: got %v, want AgentUnreachable", err)
	}
}

// The node is cut off while it measures: its agent accepts no more requests.
func TestNodeCutDuringTheCheck(t *testing.T) {
	t.Parallel()
	check, agents, _ := newCheck(t, 2, `exec sleep 60`)
	check.Bound = timeForAgentsToAnswer
	agents[1].Wrap(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/v1/health" {
				panic(http.ErrAbortHandler)
			}
			next.ServeHTTP(w, r)
		})
	})
	report, err := check.Run(t.Context())
	if fail.ReasonOf(err) != fail.NetworkBroken || !slices.Equal(report.FaultyNodes, []int{1}) ||
		!strings.Contains(err.Error(), "node 1 (node-1) cannot be reached while the others can") {
		t.Errorf("got %v, faulty %v; want NetworkBroken for node 1", err, report.FaultyNodes)
	}
}

// A rank may write any status and any measurement. The ordinals of nodes come from the requests.
func TestForgedAnswers(t *testing.T) {
	check, agents, _ := newCheck(t, 2, `
say '"operation": "send_recv", "scope": "pair", "pair": [-5, 99], "bytes": 8, "ranks": 2, "time": 1'
say '"operation": "all_reduce", "scope": "rail", "rail": -1, "bytes": 8, "ranks": 2, "time": 1'
say '"event": "rail", "rail": 99'
[ $me = 0 ] && say '"event": "ready"' && say '"event": "joined"' && say '"event": "joined"'
echo 'Traceback (most recent call last):'
echo '  File "x.py", line 1, in <module>'
echo 'RuntimeError: [../gloo/transport/tcp/pair.cc:799] connect [10.0.103.5]:28703: Connection refused'
exit 1`)
	check.Bound = timeToFindTheNode
	agents[0].Wrap(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			next.ServeHTTP(forger{w}, r)
		})
	})
	report, err := check.Run(t.Context())
	if fail.ReasonOf(err) != fail.NetworkBroken || !slices.Equal(report.FaultyNodes, []int{0, 1}) || len(report.Measurements) != 0 {
		t.Errorf("got %v, faulty %v, %d measurements; want NetworkBroken for nodes 0 and 1, no measurements", err, report.FaultyNodes,
			len(report.Measurements))
	}
	if err := report.Print(io.Discard); err != nil {
		t.Error(err)
	}
}

// forger changes the number of the node in every answer.
type forger struct{ http.ResponseWriter }

func (f forger) Write(p []byte) (int, error) {
	_, err := f.ResponseWriter.Write(bytes.ReplaceAll(p, []byte(`"node":0`), []byte(`"node":99`)))
	return len(p), err
}

func (f forger) Unwrap() http.ResponseWriter { return f.ResponseWriter }

func (f forger) Flush() { _ = http.NewResponseController(f.ResponseWriter).Flush() }

// If one node repeats an event, it does not count for several nodes.
func TestRepeatedEvents(t *testing.T) {
	var out outcome
	for range 3 {
		for _, event := range []fabric.Event{fabric.Ready, fabric.Joined, fabric.WithoutGPU} {
			out.take(0, fabric.Line{Event: event}, nil)
		}
	}
	if out.conclusive() || len(out.joined) != 1 || len(out.withoutGPU) != 1 {
		t.Errorf("got %+v, want events of one node", out)
	}
	for range 2 {
		out.take(1, fabric.Line{Event: fabric.OfDevice, Device: fabric.Device{Rank: 3, Node: 99, Kind: "H100"}}, nil)
	}
	if len(out.devices) != 1 || out.devices[0].Node != 1 {
		t.Errorf("devices %+v, want one of the node that printed it", out.devices)
	}
}

// A network below its expected bandwidth has the reason NetworkSlow with fabric-bandwidth=fail, and only a warning otherwise.
func TestSlowNetwork(t *testing.T) {
	check, agents, _ := newCheck(t, 2, measured)
	for _, node := range agents {
		if _, err := node.Client.SetNetwork(t.Context(),
			agent.Network{Mode: agent.RDMA, Expected: rdma.Expected{Bandwidth: 10 * rdma.GBps}}); err != nil {
			t.Fatal(err)
		}
	}
	report, err := check.Run(t.Context())
	if err != nil || report.Verdict != fabric.Slow {
		t.Fatalf("got %v, verdict %s %q; want slow", err, report.Verdict, report.Message)
	}
	for _, test := range []struct {
		bandwidth param.Effect
		verdict   fabric.Result
		want      fail.Reason
		log       string
	}{
		{failing, fabric.Slow, fail.NetworkSlow, ""},
		{warn, fabric.Slow, "", "expected 10.0 GB/s"},
		{failing, fabric.Pass, "", "expected 10.0 GB/s"},
		{failing, fabric.NotMeasured, "", "The fabric was not measured"},
	} {
		var out strings.Builder
		report.Verdict = test.verdict
		c := &checker{Deps{Log: command.TextLog(&out)}, Options{Bandwidth: test.bandwidth}}
		err := c.judge(report)
		if (err != nil) != (test.want != "") || err != nil &&
			(fail.ReasonOf(err) != test.want || !strings.Contains(err.Error(), "expected 10.0 GB/s")) || !strings.Contains(out.String(), test.log) {
			t.Errorf("bandwidth=%s, verdict %s: got %s: %v and log %q; want %q", test.bandwidth, test.verdict, fail.ReasonOf(err), err, &out,
				test.want)
		}
	}
}

// A failure with another cause is not blamed on the network.
func TestOtherFailures(t *testing.T) {
	t.Parallel()
	check, _, _ := newCheck(t, 2, `
echo 'Traceback (most recent call last):'
echo '  File "x.py", line 1, in <module>'
echo "ModuleNotFoundError: No module named 'torch'"
exit 1`)
	if report, err := check.Run(t.Context()); err != nil || report.Verdict != fabric.NotMeasured ||
		!strings.Contains(report.Message, "no torch") {
		t.Errorf("got %v, %s %q; want not measured", err, report.Verdict, report.Message)
	}
	check, _, _ = newCheck(t, 2, `
echo 'Traceback (most recent call last):'
echo '  File "x.py", line 1, in <module>'
echo 'RuntimeError: CUDA error: out of memory'
exit 1`)
	if _, err := check.Run(t.Context()); fail.ReasonOf(err) != fail.OutOfMemory || !strings.Contains(err.Error(), "out of memory") {
		t.Errorf("got %v, want OutOfMemory with the error", err)
	}
	check, _, _ = start(t, 1, append(os.Environ(), "PATH="+slow(t)+":"+os.Getenv("PATH")))
	const timeForTheAgentAndNotForTorch = 16 * time.Second
	check.Bound = timeForTheAgentAndNotForTorch
	if report, err := check.Run(t.Context()); err != nil || report.Verdict != fabric.NotMeasured ||
		!strings.Contains(report.Message, "0 of 1 were ready") {
		t.Errorf("torch takes too long: got %v, %s %q; want not measured", err, report.Verdict, report.Message)
	}
	check, _, _ = newCheck(t, 1, measured)
	check.Nodes = check.Nodes[:1]
	if report, err := check.Run(t.Context()); err != nil || report.Verdict != fabric.Pass {
		t.Errorf("one node of two ranks: got %v, %+v; want a pass", err, report)
	}
}

// The time for importing torch counts against no node, and slow ranks that print signs of life do not count as hanging.
func TestSlowRanksAreNotBroken(t *testing.T) {
	t.Parallel()
	check, _, out := newCheck(t, 2, `
say '"event": "joined"'
for i in 1 2 3 4 5 6 7; do sleep 0.8; say '"event": "beat"'; done
`+measured)
	const timeForSevenBeats = 16 * time.Second // of which ranks may be silent for less than all beats take
	check.Bound = timeForSevenBeats
	if report, err := check.Run(t.Context()); err != nil || report.Verdict != fabric.Pass {
		t.Errorf("silent for 0.8 s, 5.6 s in all: got %v, %s %q; want a pass; log %s", err, report.Verdict, report.Message, out)
	} else if slices.ContainsFunc(report.Measurements, func(m fabric.Measurement) bool { return m.Bytes == 0 }) {
		t.Errorf("signs of life became measurements: %+v", report.Measurements)
	}
	late := t.TempDir()
	if err := os.WriteFile(filepath.Join(late, "python3"),
		[]byte("#!/bin/sh\nsleep 10\necho '{\"fabric\": 1, \"event\": \"ready\"}'\nexec sleep 60\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	check, _, _ = start(t, 2, append(os.Environ(), "PATH="+late+":"+os.Getenv("PATH")))
	const timeToImportTorch = 20 * time.Second // of which the ranks get 12
	check.Bound = timeToImportTorch
	if report, err := check.Run(t.Context()); err != nil || report.Verdict != fabric.NotMeasured ||
		!strings.Contains(report.Message, "want a longer --timeout") {
		t.Errorf("importing torch takes nearly all of the time: got %v, %s %q; want not measured", err, report.Verdict, report.Message)
	}
}

// slow returns a folder whose python3 imports torch forever.
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

// gloo fails if an interface does not exist, and the check recognises its message.
func TestInterfaceMissing(t *testing.T) {
	needTorch(t)
	check, _, out := start(t, 2, append(os.Environ(), "GLOO_SOCKET_IFNAME=net9"))
	report, err := check.Run(t.Context())
	if fail.ReasonOf(err) != fail.NetworkBroken || !strings.Contains(err.Error(), "NoSocketInterface") {
		t.Errorf("got %v, findings %+v; want NetworkBroken for NoSocketInterface; log %s", err, report.Findings, out)
	}
}

// The test runs the benchmark itself if this machine's python3 has torch.
func TestBenchmark(t *testing.T) {
	needTorch(t)
	check, _, out := start(t, 2, append(os.Environ(), "GLOO_SOCKET_IFNAME=lo"))
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

// FuzzAnswers: agents, and the ranks whose output they pass on, may answer anything. The check neither crashes nor names a
// node or rail that does not exist.
func FuzzAnswers(f *testing.F) {
	f.Add([]byte(`{"node": 99, "state": "exited", "spec": {"launcher": "command", "script": "python3", "nodes": 2, "ranksPerNode": 1}, `+
		`"ranks": [{"rank": 1, "node": 99, "ended": "2026-01-01T00:00:00Z", "exit": {"code": 1}, "python": {"type": "RuntimeError", "message": `+
		`"connect: Connection refused"}}]}`),
		[]byte(`{"devices": [{"name": "mlx5_6", "uverbs": "uverbs0", "pcie": {"speedGTps": 1e300, "width": 9}, "ports": [{"state": "ACTIVE", `+
			`"linkLayer": "InfiniBand", "rateBitsPerSecond": -5, "gids": [{"gid": "10.0.0.1"}]}]}]}`),
		[]byte(`{"gpus": [{}, {}], "gpusExpected": -7, "network": {"mode": "rdma", "rack": "a"}}`),
		[]byte(`{"fabric": 1, "event": "rail", "rail": 99}`))
	f.Add([]byte(`{"state": "running", "spec": {"launcher": "command", "script": "python3", "nodes": 2, "ranksPerNode": 1}, "nccl": `+
		`{"transport": "sockets", "ranks": [{"rank": -1}], "processes": [{"host": "a", "communicators": [{"routes": [{"transport": "sockets", `+
		`"device": -9}]}]}]}}`),
		[]byte(`{"devices": [{"name": "a", "uverbs": "b", "ports": [{"state": "ACTIVE", "linkLayer": "Ethernet", "gidIndex": 3, "address": `+
			`"10.0.0.1/33", "rateBitsPerSecond": 9223372036854775807}]}]}`),
		[]byte(`{}`), []byte(`{"fabric": 1, "operation": "send_recv", "scope": "pair", "pair": [-5, 99], "bytes": 8, "ranks": 2, "time": 1}`))
	f.Fuzz(func(t *testing.T, status, devices, facts, line []byte) {
		check := &Check{Nodes: nodes.Set{&agent.Client{}, &agent.Client{}}, Bound: time.Minute, Log: slog.New(slog.DiscardHandler),
			facts: make([]agent.Facts, 2), devices: make([]rdma.Facts, 2)}
		var answer agent.JobStatus
		_, _, _ = json.Unmarshal(status, &answer), json.Unmarshal(devices, &check.devices[1]), json.Unmarshal(facts, &check.facts[1])
		check.devices[0] = check.devices[1]
		check.settings = network.SettingsOf(check.facts)
		check.report.Nodes, check.report.KubernetesNodes = 2, check.hostNames()
		check.report.Backend, check.report.RanksPerNode = check.ranks()
		rails := check.rails()
		for _, r := range rails {
			check.report.Rails = append(check.report.Rails, r.report)
		}
		check.expect(rails)
		out := outcome{rail: noRail}
		// The agent's client does the same with every answer.
		if answer.Confine(answer.ID, 1) == nil {
			out.statuses = append(out.statuses, answer)
		}
		if parsed, ok := fabric.ParseLine(line); ok {
			out.take(1, parsed, check.Nodes)
		}
		check.report.Measurements = out.measurements
		check.describe(out)
		_, _ = check.notTheNetwork(out), check.wrongTransport()
		check.explain(out)
		check.report.Verdict = ""
		check.report.Judge()
		if err := check.report.Print(io.Discard); err != nil {
			t.Error(err)
		}
		for _, node := range check.report.FaultyNodes {
			if node < 0 || node > 1 {
				t.Errorf("node %d of 2 is at fault", node)
			}
		}
	})
}
