// SPDX-License-Identifier: Apache-2.0

package nccl

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestInterleaving interleaves the lines of two nodes and four ranks in other ways: the result for each process does not
// depend on it.
func TestInterleaving(t *testing.T) {
	content, err := os.ReadFile("testdata/logs/roce-gpudirect-2.27.log")
	if err != nil {
		t.Fatal(err)
	}
	byProcess := map[string][]string{}
	var order []string
	for line := range strings.Lines(string(content)) {
		for _, m := range messages(line, false) {
			key := fmt.Sprint(m.host, m.pid)
			if byProcess[key] == nil {
				order = append(order, key)
			}
			byProcess[key] = append(byProcess[key], line)
		}
	}
	if len(order) != 4 {
		t.Fatalf("%d processes in the log, want 4", len(order))
	}
	var want Summary
	for turn := 1; turn <= 7; turn++ {
		rest := map[string][]string{}
		for key, lines := range byProcess {
			rest[key] = lines
		}
		var log strings.Builder
		for left := true; left; {
			left = false
			for i, key := range order {
				// In each turn the number of consecutive lines differs, also between processes.
				n := min(len(rest[key]), 1+(i*turn)%5)
				for _, line := range rest[key][:n] {
					log.WriteString(line)
					log.WriteString("a line of the program's own\n")
				}
				rest[key] = rest[key][n:]
				left = left || len(rest[key]) > 0
			}
		}
		got := read(t, log.String())
		if turn == 1 {
			want = got
		}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(Device{})); diff != "" {
			t.Errorf("turn %d: (-first +got)\n%s", turn, diff)
		}
	}
	if got := want.String(); got != "RDMA with GPUDirect, 4 ranks, on mlx5_10 mlx5_11 mlx5_6 mlx5_7" {
		t.Errorf("verdict: %s", got)
	}
}

// TestTextBeforeTheHost is from a real log: Python had printed "rc" without a newline before NCCL's thread printed its
// line.
func TestTextBeforeTheHost(t *testing.T) {
	const line = "node-0:28370:28411 [0] NCCL INFO Bootstrap: Using eth0:10.1.2.3<0>\n"
	for _, log := range []string{line + "rc" + line, "rc" + line + line} {
		s := read(t, log)
		if len(s.Processes) != 1 || s.Processes[0].Host != "node-0" {
			t.Errorf("%q: processes %+v, want node-0 alone", log, s.Processes)
		}
	}
}

// TestCutLinesProveNothing: a line that is cut before "/GDRDMA" looks like a channel through host memory.
func TestCutLinesProveNothing(t *testing.T) {
	const (
		header = "node-0:1:2 [0] NCCL INFO "
		whole  = header + "Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA\n"
		cut    = header + "Channel 01/0 : 0[0] -> 1[0] [send] via NET/IB/0"
	)
	for name, log := range map[string]string{
		"at the end":             whole + cut,
		"by another message":     cut + whole,
		"by a line that is long": whole + cut + strings.Repeat(" ", maxLine) + "/GDRDMA\n",
	} {
		if got := read(t, log).Transport; got != RDMAGPU {
			t.Errorf("cut %s: %s, want %s", name, got, RDMAGPU)
		}
	}
}

// TestSocketsAreSeenBeforeTheFirstChannel: since 2.22, NCCL connects a channel only when it first uses it.
func TestSocketsAreSeenBeforeTheFirstChannel(t *testing.T) {
	const log = `node-0:1:2 [0] NCCL INFO Using network Socket
node-0:1:2 [0] NCCL INFO ncclCommInitRank comm 0xa rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId 1 commId 0x1 - Init START
`
	if got := read(t, log).Transport; got != Unknown {
		t.Errorf("on a number of nodes that is not known: %s, want %s", got, Unknown)
	}
	for nodes, want := range map[int]Transport{1: Unknown, 2: Sockets} {
		spans := fmt.Sprintf("node-0:1:2 [0] NCCL INFO comm 0xa rank 0 nRanks 4 nNodes %d localRanks 2 localRank 0 MNNVL 0\n", nodes)
		if got := read(t, log+spans).Transport; got != want {
			t.Errorf("on %d nodes: %s, want %s", nodes, got, want)
		}
	}
}

// TestOneRankDecides: the slowest rank gives the verdict, and an unknown rank hides faster ones.
func TestOneRankDecides(t *testing.T) {
	rank := func(n int, via string) string {
		header := fmt.Sprintf("node-%d:1:2 [0] NCCL INFO ", n)
		log := header + fmt.Sprintf("ncclCommInitRank comm 0xa rank %d nranks 4 cudaDev 0 nvmlDev 0 busId 1 commId 0x1 - Init START\n", n)
		if via != "" {
			log += header + fmt.Sprintf("Channel 00/0 : %d[0] -> %d[0] [send] via %s\n", n, (n+1)%4, via)
		}
		return log
	}
	for _, test := range []struct {
		via  []string
		want Transport
	}{
		{[]string{"P2P/IPC", "NET/IB/0/GDRDMA"}, RDMAGPU},
		{[]string{"NET/IB/0/GDRDMA", "NET/IB/0"}, RDMAHost},
		{[]string{"NET/IB/0/GDRDMA", ""}, Unknown},
		{[]string{"NET/IB/0/GDRDMA", "NET/Other/0/GDRDMA"}, Unknown},
		{[]string{"NET/IB/0/GDRDMA", "", "NET/Socket/0"}, Sockets},
		{[]string{"P2P/IPC", "SHM/direct"}, WithinNode},
	} {
		var log strings.Builder
		for n, via := range test.via {
			log.WriteString(rank(n, via))
		}
		if got := read(t, log.String()).Transport; got != test.want {
			t.Errorf("%v: %s, want %s", test.via, got, test.want)
		}
	}
}

// TestRetriesAreForgottenWhenAllMet: one or two retries are usual.
func TestRetriesAreForgottenWhenAllMet(t *testing.T) {
	content, err := os.ReadFile("testdata/logs/bootstrap-hangs-2.26.log")
	if err != nil {
		t.Fatal(err)
	}
	hanging := read(t, string(content))
	if len(hanging.Findings) != 1 || hanging.Findings[0].Count != 5 {
		t.Errorf("hanging: %+v, want one finding, seen 5 times", hanging.Findings)
	}
	met := read(t, string(content)+"ml-dev-env-1:300:400 [0] NCCL INFO ncclCommInitRankConfig comm 0xee1 rank 1 nranks 2 cudaDev 0 nvmlDev "+
		"0 busId 61000 commId 0x6e99db63b024eb76 - Init COMPLETE\n")
	if len(met.Findings) != 0 {
		t.Errorf("met: %+v, want no finding", met.Findings)
	}
}

// TestBounds writes more of everything than the reader keeps.
func TestBounds(t *testing.T) {
	r := NewReader()
	for i := range 3 * maxProcesses {
		fmt.Fprintf(r, "node-%d:%d:1 [0] NCCL INFO Using network IB\n", i, i)
	}
	for i := range 2 * maxChannels {
		fmt.Fprintf(r, "node-0:0:%d [0] NCCL INFO Channel 00/0 : %d[0] -> 1[0] [send] via NET/IB/%d/GDRDMA\n", i, i, i)
		fmt.Fprintf(r, "node-1:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> %d[0] [send] via NET/IB/0/GDRDMA\n", i)
	}
	for i := range 1000 {
		fmt.Fprintf(r, "node-1:1:1 [0] NCCL INFO NCCL_X%d set by environment to %s\n", i, strings.Repeat("x", 2*maxText))
		fmt.Fprintf(r, "node-1:1:1 [0] a.cc:1 NCCL WARN NET/IB : mlx5_%d:1 Got async error event: port error %s\n", i,
			strings.Repeat("x", 2*maxText))
		fmt.Fprintf(r, "node-1:1:1 [0] NCCL INFO NET/IB : GPU Direct RDMA Enabled for HCA %d 'mlx5_6'\n", i)
	}
	fmt.Fprint(r, strings.Repeat("x", 10*maxLine))
	if len(r.partial) > maxLine {
		t.Errorf("%d bytes of a line kept, want at most %d", len(r.partial), maxLine)
	}
	checkBounds(t, r)
	s := r.Summary()
	if s.LeftOut == 0 {
		t.Error("nothing is counted as left out")
	}
	if route := s.Processes[1].Communicators[0].Routes[0]; route.Channels != 2*maxChannels {
		t.Errorf("%d channels counted, want %d though they are not all kept", route.Channels, 2*maxChannels)
	}
}

// checkBounds checks the bounds of a reader; the fuzz test uses it too.
func checkBounds(t *testing.T, r *Reader) {
	t.Helper()
	bounded := func(what string, n, most int) {
		t.Helper()
		if n > most {
			t.Errorf("%d %s, want at most %d", n, what, most)
		}
	}
	bounded("processes", len(r.processes), maxProcesses)
	channels := 0
	for _, p := range r.processes {
		bounded("communicators", len(p.communicators), maxCommunicators)
		bounded("threads", len(p.threads), maxThreads)
		bounded("devices", len(p.devices), maxDevices)
		bounded("interfaces", len(p.Interfaces), maxDevices)
		bounded("variables", len(p.Environment), maxEnvironment)
		bounded("findings", len(p.Findings), maxFindings)
		for _, c := range p.communicators {
			bounded("routes", len(c.Routes), maxRoutes)
			channels += len(c.seen)
		}
	}
	bounded("channels", channels, maxChannels)
}

// FuzzReader: the reader never panics and keeps its bounds, and the pieces in which a log arrives make no difference.
func FuzzReader(f *testing.F) {
	logs, err := filepath.Glob("testdata/*/*.log")
	if err != nil {
		f.Fatal(err)
	}
	tables, err := filepath.Glob("testdata/*.txt")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range append(logs, tables...) {
		content, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(content, uint16(7))
	}
	f.Add([]byte("a:1:1 [0] NCCL INFO Channel 99999999999/0 : 0[0] -> 1[0] via P2P/IPC\r\n\x00\xff"), uint16(1))
	f.Fuzz(func(t *testing.T, log []byte, size uint16) {
		whole, pieces := NewReader(), NewReader()
		if _, err := whole.Write(log); err != nil {
			t.Fatal(err)
		}
		for rest := log; len(rest) > 0; {
			n := min(len(rest), 1+int(size))
			if written, err := pieces.Write(rest[:n]); err != nil || written != n {
				t.Fatalf("writing %d bytes: %d, %v", n, written, err)
			}
			rest = rest[n:]
		}
		for _, r := range []*Reader{whole, pieces} {
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
			checkBounds(t, r)
		}
		want, got := whole.Summary(), pieces.Summary()
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(Device{})); diff != "" {
			t.Errorf("pieces of %d: (-whole +pieces)\n%s", 1+int(size), diff)
		}
		if _, err := json.Marshal(got); err != nil {
			t.Errorf("as JSON: %v", err)
		}
		got.Against(Wanted{Transport: RDMAGPU, Environment: map[string]string{}})
	})
}

// BenchmarkReader reads a log in which every second line is NCCL's, and reports lines per second.
func BenchmarkReader(b *testing.B) {
	var log strings.Builder
	const lines = 10_000
	for i := range lines / 2 {
		fmt.Fprintf(&log, "ml-dev-env-%d:%d:%d [%d] NCCL INFO Channel %02d/0 : %d[3] -> %d[0] [send] via NET/IB/%d/GDRDMA(PCI)\n", i%2, 300+i%4,
			400+i%4, i%4, i%32, i%16, (i+1)%16, i%4)
		fmt.Fprintf(&log, "{'loss': 2.31, 'grad_norm': 1.7, 'learning_rate': 2e-05, 'epoch': 0.%d}\n", i)
	}
	content := []byte(log.String())
	b.SetBytes(int64(len(content)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := NewReader().Write(content); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(lines)*float64(b.N)/b.Elapsed().Seconds(), "lines/s")
}
