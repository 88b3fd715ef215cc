// SPDX-License-Identifier: Apache-2.0

package report

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cause"
	"github.com/ml-dev-env/ml-dev-env/internal/fabric"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/metrics"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/nccl"
	"github.com/ml-dev-env/ml-dev-env/test/golden"
)

// render returns a receipt's report, as text and as a tree.
func render(t *testing.T, r receipt.Receipt) (string, *html.Node) {
	t.Helper()
	var b strings.Builder
	if err := Write(&b, r); err != nil {
		t.Fatal(err)
	}
	root, err := html.Parse(strings.NewReader(b.String()))
	if err != nil {
		t.Fatal(err)
	}
	harmless(t, root)
	return b.String(), root
}

// harmless reports whether a page can run nothing and load nothing.
func harmless(t *testing.T, root *html.Node) {
	t.Helper()
	elements := strings.Fields("html head meta title style body header main footer section h1 h2 h3 h4 p span strong code pre sup details " +
		"summary dl div dt dd ol ul li figure figcaption svg path text circle")
	attributes := strings.Fields("lang charset http-equiv content name class id aria-hidden aria-label aria-labelledby style open title " +
		"role viewbox xmlns d x y cx cy r text-anchor")
	for n := range root.Descendants() {
		if n.Type != html.ElementNode {
			continue
		}
		if !slices.Contains(elements, n.Data) {
			t.Errorf("there is an element %s", n.Data)
		}
		for _, a := range n.Attr {
			if !slices.Contains(attributes, strings.ToLower(a.Key)) {
				t.Errorf("<%s> has %s=%q", n.Data, a.Key, a.Val)
			}
			if a.Key == "style" && strings.Trim(a.Val, "leftwidh:;%.0123456789") != "" {
				t.Errorf("<%s> has style %q", n.Data, a.Val)
			}
		}
	}
}

// text returns what users read, each element on a line.
func text(root *html.Node) string {
	var b strings.Builder
	for n := range root.Descendants() {
		if n.Type == html.TextNode && n.Parent.Data != "style" {
			if s := strings.Join(strings.Fields(n.Data), " "); s != "" {
				b.WriteString(s + "\n")
			}
		}
	}
	return b.String()
}

// The receipts in testdata are from real runs on the local cluster, except rdma and hostile, which are synthetic because
// no machine with RDMA was available. test/browser opens the pages.
func TestGolden(t *testing.T) {
	receipts := map[string]receipt.Receipt{"rdma": full(), "hostile": poison(t, full())}
	for _, name := range []string{"succeeded", "failed", "early"} {
		content, err := os.ReadFile(filepath.Join("testdata", name+".json"))
		if err != nil {
			t.Fatal(err)
		}
		var r receipt.Receipt
		if err := json.Unmarshal(content, &r); err != nil {
			t.Fatal(err)
		}
		receipts[name] = r
	}
	for name, r := range receipts {
		t.Run(name, func(t *testing.T) {
			got, _ := render(t, r)
			path := filepath.Join("testdata", name+".html")
			golden.File(t, path, got)
		})
	}
}

// The report replaces what a receipt does not have with a sentence that explains why.
func TestWhatIsMissing(t *testing.T) {
	rank := []receipt.Rank{{Rank: 0, Node: 0}}
	for _, tc := range []struct {
		name    string
		receipt receipt.Receipt
		want    []string
	}{
		{"nothing", receipt.Receipt{}, []string{"No verdict yet", "This was not a PipelineRun", "no curves: no rank was started",
			"ended before check-fabric", "No rank was started, so", "No node is known", "The receipt has no settings", "teardown had not ended"}},
		{"a shortened one", receipt.Receipt{Run: "train-1", Verdict: receipt.Succeeded, Ranks: rank, Metrics: json.RawMessage(`{"loss":2.5}`)},
			[]string{"The receipt has no phases", "only the last values", "check-fabric was not part of this run", "NCCL logged nothing",
				`{"loss":2.5}`}},
		{"no metrics", receipt.Receipt{Run: "train-1", Ranks: rank}, []string{"the training wrote no metrics"}},
		{"metrics without values",
			receipt.Receipt{Run: "train-1", Ranks: rank, Curve: &metrics.Curve{Lines: 1, Points: []metrics.Point{{Step: 1}}}},
			[]string{"neither a loss nor times"}},
		{"all diverged",
			receipt.Receipt{Run: "train-1", Ranks: rank, Curve: &metrics.Curve{Lines: 2, NotFinite: 2, FirstNotFinite: 1,
				Points: []metrics.Point{{Step: 1, NotFinite: 1}, {Step: 2, NotFinite: 1}}}},
			[]string{"NaN or infinite in 2 lines of 2, first at step 1", "not finite", "neither a loss nor times"}},
		{"check-fabric is running",
			receipt.Receipt{Run: "train-1", Phases: []receipt.Phase{{Name: "check-fabric", Status: "running", Started: time.Unix(1, 0)}}},
			[]string{"check-fabric had not ended", "not ended after"}},
		{"check-fabric failed",
			receipt.Receipt{Run: "train-1",
				Phases: []receipt.Phase{{Name: "check-fabric", Status: "failed", Reason: "Internal", Started: time.Unix(1, 0),
					Ended: time.Unix(2, 0)}}},
			[]string{"though check-fabric ran: it failed", "1.0 s, failed: Internal"}},
		{"a node is gone", receipt.Receipt{Run: "train-1", Nodes: []receipt.Node{{Node: 0, Pod: "env-0"}},
			Ranks: []receipt.Rank{{Rank: 0}, {Rank: 1, Node: 1, Exit: agent.Exit{Code: -1, Signal: "SIGKILL"}}}},
			[]string{"Node 1", "✗ 1"}},
		{"an unknown reason", receipt.Receipt{Run: "train-1", Verdict: receipt.Failed, Reason: "Novel", Message: "it is new"},
			[]string{"Failed: Novel", "it is new"}},
		{"a reason's row", receipt.Receipt{Run: "train-1", Verdict: receipt.Failed, Reason: "EnvironmentBusy"},
			[]string{"EnvironmentBusy", "another run or person holds the environment", "wait with on-busy=wait"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, root := render(t, tc.receipt)
			got := text(root)
			for _, want := range tc.want {
				if !strings.Contains(got, want) {
					t.Errorf("no %q in\n%s", want, got)
				}
			}
		})
	}
}

// hostile replaces every text in a receipt.
const hostile = `</pre></style></title><script>fetch("https://evil.test")</script><img src=x onerror=alert(1)>{{.}}"' onload=alert(1) ` +
	`javascript:alert(1)` +
	"\x1b[31mred\x1b[0m \u202egnp.exe\u2069 \x00\xff;background:url(https://evil.test/)"

// poison returns r with every text replaced by hostile.
func poison(t *testing.T, r receipt.Receipt) receipt.Receipt {
	t.Helper()
	encoded, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	// These texts must keep their values, or the report would be shorter.
	names := map[string]bool{string(receipt.Failed): true, string(fabric.World): true, string(fabric.AllReduce): true}
	for _, name := range regexp.MustCompile(`"(\w+)":`).FindAllStringSubmatch(string(encoded), -1) {
		names[name[1]] = true
	}
	var tree any
	if err := json.Unmarshal(encoded, &tree); err != nil {
		t.Fatal(err)
	}
	if encoded, err = json.Marshal(each(tree, func(text string) string {
		_, err := time.Parse(time.RFC3339, text)
		if err == nil || names[text] {
			return text
		}
		return hostile
	})); err != nil {
		t.Fatal(err)
	}
	var bad receipt.Receipt
	if err := json.Unmarshal(encoded, &bad); err != nil {
		t.Fatal(err)
	}
	return bad
}

func TestHostile(t *testing.T) {
	r := poison(t, full())
	r.NCCL[hostile] = hostile
	r.Metrics = json.RawMessage(`{"` + "</pre><script>" + `":1}`)
	got, root := render(t, r)
	seen := text(root)
	for _, want := range []string{`<script>fetch("https://evil.test")</script>`, "{{.}}", "Why it failed", "expected"} {
		if !strings.Contains(seen, want) {
			t.Errorf("no %q to read", want)
		}
	}
	for _, unwanted := range []string{"\x1b", "\u202e", "\u2069", "\x00", "<script", "<img"} {
		if strings.Contains(got, unwanted) {
			t.Errorf("%q is in the page", unwanted)
		}
	}
}

// FuzzPage lets a training print anything: the page has the same elements as with a plain text, and only its own
// attributes.
func FuzzPage(f *testing.F) {
	f.Add("</pre><script>alert(1)</script>")
	f.Add("\"' onload=alert(1) x=")
	f.Add("]]><!--{{.}}\x1b[31m\u202e")
	elements := func(t *testing.T, printed string) (count int) {
		r := full()
		r.Run, r.Message, r.Reason, r.Cause.Python.Message, r.Ranks[1].Tail = printed, printed, fail.Reason(printed), printed, []string{printed}
		r.Phases[0].Name, r.Nodes[0].Pod, r.Fabric.Rails[0].Name = printed, printed, printed
		r.Repository, r.NCCL["NCCL_IB_HCA"] = printed, printed
		_, root := render(t, r) // checks elements and attributes
		for n := range root.Descendants() {
			if n.Type == html.ElementNode {
				count++
			}
		}
		return count
	}
	want := 0
	f.Fuzz(func(t *testing.T, printed string) {
		if want == 0 {
			want = elements(t, "x")
		}
		if got := elements(t, "x"+printed); got != want {
			t.Errorf("%q makes %d elements of %d", printed, got, want)
		}
	})
}

// The report is a page that a phone can open, however large the receipt is.
func TestLarge(t *testing.T) {
	r := full()
	long := strings.Repeat("a very long line ", 100)
	node, rank, phase := r.Nodes[0], r.Ranks[1], r.Phases[0]
	tail := slices.Repeat([]string{long}, 200)
	rank.Tail, r.Nodes, r.Ranks, r.Message = nil, nil, nil, long
	for n := range 500 {
		node.Node = n
		r.Nodes = append(r.Nodes, node)
		for local := range 32 {
			rank.Rank, rank.Node, rank.Tail = 32*n+local, n, nil
			if local == 0 && n < 20 {
				rank.Tail = tail
			}
			r.Ranks = append(r.Ranks, rank)
		}
	}
	r.Phases = slices.Repeat([]receipt.Phase{phase}, 500)
	r.Fabric.Rails = slices.Repeat(r.Fabric.Rails, 500)
	r.Network.Findings = slices.Repeat(r.Network.Findings, 500)
	for i := range r.Network.Findings {
		r.Network.Findings[i].Line, r.Network.Findings[i].Seen = int64(i), long
	}
	r.Cause.Python.Traceback = tail
	r.Curve.Ranks = slices.Repeat(r.Curve.Ranks, 500)
	r.Training.Args = slices.Repeat([]string{long}, 100)
	got, root := render(t, r)
	const sizeOfAReport = 1500 << 10
	if len(got) > sizeOfAReport {
		t.Errorf("%d bytes, want at most %d", len(got), sizeOfAReport)
	}
	seen := text(root)
	for _, want := range []string{"436 more nodes are in the receipt", "460 more phases", "ranks' last lines are in the receipt",
		"(140 lines before)", "More ranks are in the receipt", "more rails are in the receipt", "more ranks are in the receipt"} {
		if !strings.Contains(seen, want) {
			t.Errorf("no %q", want)
		}
	}
}

// full returns a receipt with everything that a receipt can have.
func full() receipt.Receipt {
	at := func(seconds int) time.Time { return time.Date(2026, 7, 1, 12, 0, seconds, 0, time.UTC) }
	exit := agent.Exit{Code: 1}
	r := receipt.Receipt{
		Run: "train-1", RunUID: "uid-1", Namespace: "ns", Environment: "ml-dev-env", Verdict: receipt.Failed, Reason: "RankFailed",
		Message: "rank 1 exited with 1",
		Started: at(0), Ended: at(600), Commit: "abc", Tree: "def", Image: "registry.test/train@sha256:1", Mode: "rdma", Storage: "rwx",
		Teardown: "all pods and GPUs were released",
		Training: &receipt.Training{Launcher: agent.DeepSpeed, Script: "train.py", Args: []string{"--lr=1"}, Nodes: 2, RanksPerNode: 1},
		Phases: []receipt.Phase{{Name: "provision", Status: "succeeded", Started: at(1), Ended: at(90)},
			{Name: "check-fabric", Status: "succeeded", Started: at(91), Ended: at(150), Retries: 1},
			{Name: "train", Status: "failed", Reason: "RankFailed", Started: at(151), Ended: at(580)}, {Name: "waits", Status: "running"}},
		NCCL:   map[string]string{"NCCL_IB_HCA": "=mlx5_6,mlx5_7"},
		Record: &receipt.Record{Folder: "/workspace/.mlenv/runs/uid-1", Claims: []string{"ml-dev-workspace"}},
		Cause: &cause.Culprit{Rank: 1, Node: 1, Exit: exit, Python: &agent.PythonError{Type: "ValueError", Message: "no such layer",
			File: "train.py", Line: 9,
			Traceback: []string{"Traceback (most recent call last):", `  File "train.py", line 9, in <module>`, "ValueError: no such layer"}}},
		Metrics: json.RawMessage(`{"loss":2.5}`),
		Curve: &metrics.Curve{Lines: 60, Rate: "tokens", StepTime: 410 * time.Millisecond, NotFinite: 3, FirstNotFinite: 31,
			Ranks: []metrics.RankTime{{Rank: 0, Mean: 300 * time.Millisecond, Longest: time.Second},
				{Rank: 1, Mean: 390 * time.Millisecond, Longest: time.Second}}},
		Fabric: &fabric.Report{Verdict: fabric.Slow, Message: "rail net2: 12.0 GB/s, expected 48.5 GB/s", Mode: "rdma", Backend: "nccl",
			Transport: "RDMA with GPUDirect", Nodes: 2, RanksPerNode: 1,
			Bandwidth: 90e9, Expected: 97e9, Latency: 31 * time.Microsecond, FaultyNodes: []int{1},
			FaultyRails: []string{"net2 (10.0.104.0/24)"}, Seconds: 40,
			Rails: []fabric.Rail{{Name: "net1", Network: "10.0.103.0/24", Bandwidth: 48e9, Expected: 48.5e9},
				{Name: "net2", Network: "10.0.104.0/24", Bandwidth: 12e9, Expected: 48.5e9}, {Name: "net3"}}},
		Network: &nccl.Summary{Transport: nccl.RDMAHost, Versions: []string{"2.27.7"}, Networks: []string{"IB"}},
	}
	for n, pod := range []string{"ml-dev-env-0", "ml-dev-env-1"} {
		r.Nodes = append(r.Nodes, receipt.Node{Node: n, Pod: pod, KubernetesNode: "gpu-" + pod, GPUs: []string{"GPU-1", "GPU-2"},
			Model: "NVIDIA H100", Driver: "580.65.06", Rack: "r1",
			Rails: []receipt.Rail{{Device: "mlx5_6", Port: 1, Interface: "net1", Network: "10.0.103.0/24", LinkLayer: "Ethernet", Rate: 400e9,
				Model: "MT4129", Firmware: "28.39.1002"}, {Device: "mlx5_7", Port: 1}}})
		r.Network.Ranks = append(r.Network.Ranks, nccl.Rank{Rank: n, Host: pod, Transport: nccl.RDMAHost, Rails: []string{"mlx5_6"}})
		r.Network.Rails = append(r.Network.Rails, nccl.Rail{Host: pod, Name: "mlx5_6", Transport: nccl.RDMAHost, Channels: 4},
			nccl.Rail{Host: pod, Name: "mlx5_9"})
	}
	r.Ranks = []receipt.Rank{{Rank: 0, Node: 0, Exit: agent.Exit{Code: -1, Signal: "SIGTERM"}, Stopped: true, Started: at(160), Seconds: 400,
		Tail: []string{"it waits"}},
		{Rank: 1, Node: 1, Exit: exit, Started: at(160), Seconds: 399, Tail: []string{"loading", "ValueError: no such layer"}}}
	r.Network.Findings = []nccl.Finding{
		{Finding: fail.Finding{Reason: nccl.PeerGone, Seen: "connection closed by remote peer", Next: "look at it"}, Cause: "a peer ended",
			Consequence: true, Count: 1},
		{Finding: fail.Finding{Reason: nccl.HostMemoryInsteadOfGPU, Seen: "via NET/IB/0", Next: "load nvidia_peermem"}, Host: "ml-dev-env-1",
			Device: "mlx5_6", Cause: "GPUDirect is off", Count: 2}}
	for i := range 60 {
		p := metrics.Point{Step: float64(10 * (i + 1)), StepTime: time.Duration(400+i%7*5) * time.Millisecond,
			PerSecond: 81920 - float64(i%5)*900, Slowest: 390 * time.Millisecond}
		if i >= 30 && i < 33 {
			p.NotFinite = 1
		} else {
			p.Loss = new(2 + 8/float64(1+i))
		}
		r.Curve.Points = append(r.Curve.Points, p)
	}
	for _, operation := range []fabric.Operation{fabric.AllReduce, fabric.AllGather, fabric.Broadcast} {
		for i, size := range []agent.Bytes{8, 1 << 10, 1 << 20, 128 << 20, 1 << 30} {
			r.Fabric.Measurements = append(r.Fabric.Measurements, fabric.Measurement{Operation: operation, Scope: fabric.World, Bytes: size,
				Ranks: 2, Time: 20*time.Microsecond + time.Duration(size)/time.Duration(80+i)})
		}
	}
	for node, gbps := range []int{28, 26} {
		r.Fabric.Measurements = append(r.Fabric.Measurements, fabric.Measurement{Operation: fabric.HostCopy, Scope: fabric.InNode, Node: node,
			Bytes: 1e9, Ranks: 4, Time: time.Second / time.Duration(gbps)})
	}
	r.Fabric.Measurements = append(r.Fabric.Measurements, fabric.Measurement{Operation: fabric.HostRDMA, Scope: fabric.ByRail,
		Pair: fabric.Pair{0, 1}, Bytes: 65536, Ranks: 2, Time: 2315})
	r.GPUs = &receipt.GPUs{Count: 4, Since: at(90)}
	r.Goodput = receipt.GoodputOf(r)
	return r
}

func TestPlain(t *testing.T) {
	for markdown, want := range map[string]string{
		"raise `a.b` in [the file](../x.md), or [x": "raise a.b in the file, or [x",
		"[a](b)[c](d) [e]":                          "ac [e]",
		"":                                          "",
	} {
		if got := plain(markdown); got != want {
			t.Errorf("%q: got %q, want %q", markdown, got, want)
		}
	}
}

// The page has the spread of each kind of device and names the slow ones.
func TestSlowDevices(t *testing.T) {
	r := receipt.Receipt{Run: "r", Fabric: &fabric.Report{Verdict: fabric.Slow, Backend: "nccl", Nodes: 2, RanksPerNode: 8,
		KubernetesNodes: []string{"gpu-a", "gpu-b"}}}
	_, root := render(t, r)
	if got := text(root); strings.Contains(got, "evices") {
		t.Errorf("devices are shown, and the receipt has none:\n%s", got)
	}
	for rank := range 16 {
		d := fabric.Device{Rank: rank, Node: rank / 8, Kind: "NVIDIA H100", Precision: "bfloat16", Product: 640e12, Copy: 2500e9}
		if rank == 9 {
			d.Product = 400e12
		}
		r.Fabric.Devices = append(r.Fabric.Devices, d)
	}
	r.Fabric.Verdict = ""
	r.Fabric.Judge()
	_, root = render(t, r)
	got := text(root)
	for _, want := range []string{
		"Devices\nNVIDIA H100: 16 devices, matrix product (bfloat16) 400.0 TFLOP/s to 640.0 TFLOP/s, median 640.0 TFLOP/s, copy 2500.0 GB/s",
		"Slow devices\nrank 9 of node 1 (gpu-b), NVIDIA H100: matrix product 400.0 TFLOP/s, 38% below the median 640.0 TFLOP/s of 16 devices\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in\n%s", want, got)
		}
	}
}

// The bar shows where the time went, and only what there was.
func TestGoodput(t *testing.T) {
	r := receipt.Receipt{Run: "r", Phases: []receipt.Phase{{Name: "train"}}, Goodput: &receipt.Goodput{
		GPUs: 8, Share: 0.75, Measured: true, Seconds: receipt.Spent{Waiting: 100, Steps: 600, Repeated: 100, Hang: 100, Teardown: 100},
		GPUHours: receipt.Spent{Steps: 8. / 6, Repeated: 8. / 36},
	}}
	_, root := render(t, r)
	got := text(root)
	for _, want := range []string{"waiting for GPUs\n1m40s\n", "useful steps\n10m0s, 1.333 GPU-hours\n",
		"steps done again\n1m40s, 0.2222",
		"hanging\n1m40s\n", "Useful steps took 75.0% of the time with all GPUs.\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in\n%s", want, got)
		}
	}
	if strings.Contains(got, "starting\n") {
		t.Errorf("a part of 0 s is shown:\n%s", got)
	}
}
