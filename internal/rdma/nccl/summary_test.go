// SPDX-License-Identifier: Apache-2.0

package nccl

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/test/golden"
)

// TestSummaries compares the summaries of whole logs with golden files.
func TestSummaries(t *testing.T) {
	logs, err := filepath.Glob("testdata/logs/*.log")
	if err != nil || len(logs) == 0 {
		t.Fatalf("testdata/logs: %d logs, %v", len(logs), err)
	}
	for _, log := range logs {
		name := strings.TrimSuffix(filepath.Base(log), ".log")
		t.Run(name, func(t *testing.T) {
			got, err := json.MarshalIndent(readFile(t, log), "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join("testdata/logs", name+".json")
			golden.File(t, path, string(append(got, '\n')))
		})
	}
}

func readFile(t *testing.T, name string) Summary {
	t.Helper()
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return read(t, string(content))
}

// TestVerdicts lists, for each log, what users read: the verdict, what the log shows, and what differs from the
// configuration.
func TestVerdicts(t *testing.T) {
	const gpu = RDMAGPU
	for _, test := range []struct {
		log      string
		want     Transport
		verdict  string
		findings []fail.Reason
		against  []fail.Reason
	}{
		{"roce-gpudirect-2.27", gpu, "RDMA with GPUDirect, 4 ranks, on mlx5_10 mlx5_11 mlx5_6 mlx5_7", nil, nil},
		{"roce-gpudirect-2.16", gpu, "RDMA with GPUDirect, 2 ranks, on mlx5_6", nil, nil},
		{"hpcx-infiniband-2.21", gpu, "RDMA with GPUDirect, 4 ranks, on mlx5_0 mlx5_1", nil, nil},
		{"roce-host-memory-2.27", gpu, "RDMA through host memory, 4 ranks, on mlx5_10 mlx5_11 mlx5_6 mlx5_7", nil,
			[]fail.Reason{HostMemoryInsteadOfGPU, HostMemoryInsteadOfGPU, HostMemoryInsteadOfGPU, HostMemoryInsteadOfGPU}},
		{"roce-host-memory-2.27", RDMAHost, "RDMA through host memory, 4 ranks, on mlx5_10 mlx5_11 mlx5_6 mlx5_7", nil, nil},
		{"roce-mtu-2.27", gpu, "RDMA with GPUDirect, 4 ranks, on mlx5_10 mlx5_11 mlx5_6 mlx5_7", []fail.Reason{MTUMismatch}, nil},
		{"sockets-no-device-2.28", gpu, "TCP sockets, 2 ranks, on eth0", nil,
			[]fail.Reason{NoRDMADevice, SocketsInsteadOfRDMA, NoRDMADevice, SocketsInsteadOfRDMA}},
		{"sockets-no-device-2.28", Sockets, "TCP sockets, 2 ranks, on eth0", nil, nil},
		{"sockets-chosen-2.28", gpu, "TCP sockets, 2 ranks", nil, []fail.Reason{SocketsInsteadOfRDMA, SocketsInsteadOfRDMA}},
		{"within-node-2.32", gpu, "within the node only, 2 ranks", nil, nil},
		{"address-conflict-2.27", gpu, "RDMA with GPUDirect, 4 ranks, on mlx5_10 mlx5_11 mlx5_6 mlx5_7",
			[]fail.Reason{RetryExceeded, TransferFlushed, PeerGone}, nil},
		{"iommu-2.28", gpu, "RDMA with GPUDirect, 4 ranks, on mlx5_10 mlx5_11 mlx5_6 mlx5_7", []fail.Reason{DMARefused, TransferFlushed}, nil},
		{"memlock-2.27", gpu, "unknown, 1 rank", []fail.Reason{MemoryLockLimit}, nil},
		{"bootstrap-hangs-2.26", gpu, "unknown, 1 rank", []fail.Reason{ConnectionRetried}, nil},
	} {
		t.Run(test.log+" wanted "+string(test.want), func(t *testing.T) {
			s := readFile(t, "testdata/logs/"+test.log+".log")
			if got := s.String(); got != test.verdict {
				t.Errorf("verdict %q, want %q", got, test.verdict)
			}
			if diff := cmp.Diff(test.findings, namesOf(s.Findings)); diff != "" {
				t.Errorf("findings: (-want +got)\n%s", diff)
			}
			if diff := cmp.Diff(test.against, namesOf(s.Against(Wanted{Transport: test.want}))); diff != "" {
				t.Errorf("differences from the configuration: (-want +got)\n%s", diff)
			}
		})
	}
}

func namesOf(findings []Finding) []fail.Reason {
	var names []fail.Reason
	for _, finding := range findings {
		names = append(names, finding.Reason)
	}
	return names
}

// TestRanksOnSocketsAreNamed: the train step stops a training if it has such ranks.
func TestRanksOnSocketsAreNamed(t *testing.T) {
	s := readFile(t, "testdata/logs/sockets-no-device-2.28.log")
	want := []Rank{
		{Rank: 0, Host: "ml-dev-env-0", PID: 300, Transport: Sockets, Rails: []string{"eth0"}},
		{Rank: 1, Host: "ml-dev-env-1", PID: 300, Transport: Sockets, Rails: []string{"eth0"}},
	}
	if diff := cmp.Diff(want, s.RanksOn(Sockets)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if got := readFile(t, "testdata/logs/roce-gpudirect-2.27.log").RanksOn(Sockets); len(got) > 0 {
		t.Errorf("ranks on sockets with RDMA: %v", got)
	}
}

func TestAgainstSaysWhy(t *testing.T) {
	for _, test := range []struct {
		log, host string
		wanted    Wanted
		want      string
	}{
		{"sockets-no-device-2.28", "ml-dev-env-0", Wanted{Transport: RDMAHost},
			"SocketsInsteadOfRDMA: NCCL chose sockets: it found no RDMA device (NCCL_IB_HCA==mlx5_2,mlx5_3): rank 0 of 2 in its communicator: " +
				"4 of its channels go over Socket"},
		{"sockets-chosen-2.28", "ml-dev-env-0", Wanted{Transport: RDMAGPU},
			"SocketsInsteadOfRDMA: NCCL chose sockets: NCCL_IB_DISABLE=1 is set: Using network Socket"},
		{"sockets-chosen-2.28", "ml-dev-env-1", Wanted{Environment: map[string]string{"NCCL_IB_DISABLE": "0"}},
			"SettingChanged: the program, its image or /etc/nccl.conf sets the variable itself: NCCL_IB_DISABLE is 1, and 0 was given"},
		{"sockets-chosen-2.28", "ml-dev-env-1", Wanted{Environment: map[string]string{}},
			"SettingChanged: the program, its image or /etc/nccl.conf sets the variable itself: NCCL_IB_DISABLE is 1, and was not given"},
		{"roce-host-memory-2.27", "ml-dev-env-0", Wanted{Transport: RDMAGPU},
			"HostMemoryInsteadOfGPU: NCCL copies each message through the memory of the host: neither nvidia_peermem nor DMA-BUF lets mlx5_6, " +
				"mlx5_7 reach the GPUs; NCCL_DMABUF_ENABLE=0 is set: rank 0 of 4 in its communicator: 1 of its channels go over IB"},
		{"roce-gpudirect-2.27", "ml-dev-env-1", Wanted{Devices: map[string][]string{"ml-dev-env-1": {"mlx5_10", "mlx5_11", "mlx5_8"}}},
			"DeviceNotUsed: NCCL does not list a device that the node has: its port is not active, or NCCL_IB_HCA does not name it: NET/IB : " +
				"Using mlx5_10 mlx5_11 (NCCL_IB_HCA==mlx5_10,mlx5_11)"},
	} {
		var got []string
		for _, finding := range readFile(t, "testdata/logs/"+test.log+".log").Against(test.wanted) {
			if finding.Host == test.host {
				got = append(got, string(finding.Reason)+": "+finding.Cause+": "+finding.Seen)
			}
		}
		if !slices.Contains(got, test.want) {
			t.Errorf("%s: got\n%s\nwant among them\n%s", test.log, strings.Join(got, "\n"), test.want)
		}
	}
}

func TestAgainstKnowsOfDistance(t *testing.T) {
	s := read(t, `node-0:1:2 [0] NCCL INFO NCCL_NET_GDR_LEVEL set by environment to PIX
node-0:1:2 [0] NCCL INFO GPU Direct RDMA Disabled for GPU 0 / HCA 1 (distance 7 > 4)
node-0:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0
`)
	found := s.Against(Wanted{Transport: RDMAGPU})
	const want = "a GPU and a device are farther apart than is allowed (NCCL_NET_GDR_LEVEL=PIX)"
	if len(found) != 1 || !strings.HasSuffix(found[0].Cause, want) {
		t.Errorf("found %+v, want one whose cause ends with %q", found, want)
	}
}

// TestMerge merges what each node's agent reads from its own ranks' logs. The summaries travel as JSON.
func TestMerge(t *testing.T) {
	content, err := os.ReadFile("testdata/logs/roce-gpudirect-2.27.log")
	if err != nil {
		t.Fatal(err)
	}
	whole := read(t, string(content))
	parts := map[string]*strings.Builder{}
	for line := range strings.Lines(string(content)) {
		for _, m := range messages(line, false) {
			if parts[m.host] == nil {
				parts[m.host] = &strings.Builder{}
			}
			parts[m.host].WriteString(line)
		}
	}
	var summaries []Summary
	for _, host := range slices.Sorted(maps.Keys(parts)) {
		content, err := json.Marshal(read(t, parts[host].String()))
		if err != nil {
			t.Fatal(err)
		}
		var s Summary
		if err := json.Unmarshal(content, &s); err != nil {
			t.Fatal(err)
		}
		summaries = append(summaries, s)
	}
	merged := Merge(summaries...)
	if diff := cmp.Diff(whole.String(), merged.String()); diff != "" {
		t.Errorf("verdict: (-whole +merged)\n%s", diff)
	}
	if diff := cmp.Diff(whole.Ranks, merged.Ranks); diff != "" {
		t.Errorf("ranks: (-whole +merged)\n%s", diff)
	}
	if len(merged.Rails) != 4 || merged.Rails[0].Transport != RDMAGPU || merged.Rails[0].Channels == 0 {
		t.Errorf("rails: %+v, want four with channels", merged.Rails)
	}
}

// TestRealLogs reads the real output of NCCL on machines without a GPU.
func TestRealLogs(t *testing.T) {
	logs, err := filepath.Glob("testdata/real/*.log")
	if err != nil || len(logs) == 0 {
		t.Fatalf("testdata/real: %d logs, %v", len(logs), err)
	}
	for _, log := range logs {
		s := readFile(t, log)
		if len(s.Processes) != 3 {
			t.Errorf("%s: %d processes, want 3", log, len(s.Processes))
			continue
		}
		if got := s.Processes[1].Environment["NCCL_SOCKET_IFNAME"]; got != "net1,net2" {
			t.Errorf("%s: NCCL_SOCKET_IFNAME is %q, want net1,net2", log, got)
		}
		for i, want := range []fail.Reason{CUDAFailed, NoSocketInterface, NameUnresolved} {
			if got := namesOf(s.Processes[i].Findings); !slices.Contains(got, want) {
				t.Errorf("%s: process %d shows %v, want %s", log, i, got, want)
			}
		}
		if s.Transport != Unknown || len(s.Ranks) != 0 {
			t.Errorf("%s: %s, %d ranks; want unknown and none", log, s.Transport, len(s.Ranks))
		}
	}
}

// TestFixesNameWhatTheyAreAbout: users can copy a fix with an address as it is.
func TestFixesNameWhatTheyAreAbout(t *testing.T) {
	s := read(t, "node-0:1:2 [0] misc/socket.cc:575 NCCL WARN socketStartConnect: connect to 10.128.2.15<45763> returned No route to host, "+
		"exceeded error retry count after 35 attempts\n")
	if got, want := s.Findings[0].Next, "nc -vz 10.128.2.15 45763"; !strings.Contains(got, want) {
		t.Errorf("fix %q, want it to contain %q", got, want)
	}
	against := readFile(t, "testdata/logs/roce-gpudirect-2.27.log").Against(Wanted{Devices: map[string][]string{"ml-dev-env-0": {"mlx5_8"}}})
	if got, want := against[0].Next, "/sys/class/infiniband/mlx5_8/ports/1/state"; !strings.Contains(got, want) {
		t.Errorf("fix %q, want it to contain %q", got, want)
	}
}

// TestAdviceIsNotWhatIsSet: a failure is not answered with the value that a variable has already.
func TestAdviceIsNotWhatIsSet(t *testing.T) {
	const set = "node-0:1:2 [0] NCCL INFO %s set by environment to %s.\n"
	for _, tc := range []struct {
		name, log string
		reason    fail.Reason
		without   string
		with      string
	}{
		{"DMA-BUF is not supported", "node-0:1:2 [0] misc/ibvwrap.cc:262 NCCL WARN Call to ibv_reg_dmabuf_mr failed with error Operation not " +
			"supported\n",
			DMABUFRefused, "NCCL_DMABUF_ENABLE=1", "NCCL_DMABUF_ENABLE=0"},
		{"DMA-BUF by mlx5", "node-0:1:2 [0] misc/mlx5dvwrap.cc:71 NCCL WARN Call to mlx5dv_reg_dmabuf_mr failed with error Invalid argument\n",
			DMABUFRefused, "NCCL_DMABUF_ENABLE=1", "load nvidia_peermem"},
		{"no peermem, DMA-BUF is on", fmt.Sprintf(set, "NCCL_DMABUF_ENABLE", "1") + "node-0:1:2 [0] misc/ibvwrap.cc:252 NCCL WARN Call to " +
			"ibv_reg_mr failed with error Bad address\n",
			GPUMemoryRefused, "NCCL_DMABUF_ENABLE=1", "load nvidia_peermem"},
		{"the setting comes later", "node-0:1:2 [0] misc/ibvwrap.cc:252 NCCL WARN Call to ibv_reg_mr failed with error Bad address\n" +
			"node-0:1:2 [0] NCCL INFO NCCL_NET_GDR_LEVEL set by environment to LOC\n",
			GPUMemoryRefused, "NCCL_NET_GDR_LEVEL=LOC", "NCCL_DMABUF_ENABLE=1"},
		{"no peermem, DMA-BUF is off", "node-0:1:2 [0] misc/ibvwrap.cc:252 NCCL WARN Call to ibv_reg_mr failed with error Bad address\n",
			GPUMemoryRefused, "memlock", "NCCL_DMABUF_ENABLE=1"},
		{"rails are kept apart", fmt.Sprintf(set, "NCCL_CROSS_NIC", "0") + "node-0:1:2 [0] transport/net_ib.cc:1 NCCL WARN NET/IB: Got " +
			"completion from peer 10.1.2.3<5> with status=12 opcode=0 len=0 vendor err 129 (Send) localGid ::ffff:10.0.103.7 " +
			"remoteGids::ffff:10.0.104.9 hca mlx5_6\n",
			RailsCrossed, "NCCL_CROSS_NIC=0", "put the cards into the same slots"},
	} {
		s := read(t, tc.log)
		if len(s.Findings) != 1 || s.Findings[0].Reason != tc.reason || strings.Contains(s.Findings[0].Next, tc.without) ||
			!strings.Contains(s.Findings[0].Next, tc.with) {
			t.Errorf("%s: got %+v; want %s, with %q and without %q in its fix", tc.name, s.Findings, tc.reason, tc.with, tc.without)
		}
	}
	p := Process{Environment: map[string]string{"NCCL_DMABUF_ENABLE": "1"},
		Communicators: []Communicator{{Ranks: 2, Routes: []Route{{Transport: RDMAHost, Network: "IB"}}}}}
	against := Summary{Processes: []Process{p}}.Against(Wanted{Transport: RDMAGPU})
	if len(against) != 1 || strings.Contains(against[0].Next, "NCCL_DMABUF_ENABLE=1") ||
		!strings.Contains(against[0].Next, "load nvidia_peermem") {
		t.Errorf("got %+v, want advice other than NCCL_DMABUF_ENABLE=1", against)
	}
}

// TestLockedMemoryWithoutLimit: ENOMEM has other causes where any amount of memory may be locked.
func TestLockedMemoryWithoutLimit(t *testing.T) {
	for _, call := range []string{"ibv_reg_mr", "ibv_reg_mr_iova2", "ibv_create_cq", "ibv_create_qp"} {
		for locksAny, want := range map[bool]fail.Reason{false: MemoryLockLimit, true: RegistrationLimit} {
			r := NewReader()
			r.LocksAny = locksAny
			fmt.Fprintf(r, "node-0:1:2 [0] misc/ibvwrap.cc:252 NCCL WARN Call to %s failed with error Cannot allocate memory\n", call)
			found := r.Summary().Findings
			if len(found) != 1 || found[0].Reason != want || found[0].Next != explanations()[want].fix {
				t.Errorf("%s, any amount %v: got %+v, want %s", call, locksAny, found, want)
			}
		}
	}
}

// TestLinesOfOtherLibraries: what Open MPI, UCX, libfabric or torch print in the middle of a line of NCCL's is no part of its facts.
func TestLinesOfOtherLibraries(t *testing.T) {
	for _, other := range []string{
		"[1763999884.123456] [node-0:101  :0]          parser.c:2036 UCX  WARN  unused environment variable: UCX_HOME",
		"[node-0:00101] mca_base_component_repository_open: unable to open mca_btl_openib",
		"[node-0][[4711,1],0][btl_tcp_endpoint.c:625:mca_btl_tcp_endpoint_recv_connect_ack] received unexpected process identifier",
		"libfabric:101:1763999884::core:core:fi_getinfo_():1368<warn> Can't find provider",
		"[rank0]: Traceback (most recent call last):",
	} {
		s := read(t, "node-0:101:202 [0] NCCL INFO NCCL_IB_HCA set by environment to =mlx5_"+other+"\n"+
			"node-0:101:202 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0"+other+"\n"+
			"node-0:101:202 [0] NCCL INFO NCCL_IB_TC set by environment to 106.\n")
		if len(s.Processes) != 1 || len(s.Findings) != 0 || len(s.Processes[0].Communicators) != 0 || len(s.Processes[0].Environment) != 1 {
			t.Errorf("%s: got %+v, want one variable", other, s)
		}
	}
}

// NCCL shows levels by their names, and numbers in base 10.
func TestSameValue(t *testing.T) {
	for _, test := range []struct {
		name, given, shown string
		want               bool
	}{
		{"NCCL_NET_GDR_LEVEL", "5", "SYS", true},
		{"NCCL_NET_GDR_LEVEL", "4", "SYS", true},
		{"NCCL_NET_GDR_LEVEL", "3", "PHB", true},
		{"NCCL_NET_GDR_LEVEL", "phb", "PHB", true},
		{"NCCL_NET_GDR_LEVEL", "2", "SYS", false},
		{"NCCL_IB_TC", "0x60", "96", true},
		{"NCCL_IB_TC", "106", "96", false},
		{"NCCL_LAUNCH_MODE", "group", "GROUP", true},
		{"NCCL_IB_HCA", "mlx5_1", "mlx5_2", false},
	} {
		if got := sameValue(test.name, test.given, test.shown); got != test.want {
			t.Errorf("%s=%s, shown as %s: same is %v", test.name, test.given, test.shown, got)
		}
	}
}

// NCCL_NET=Socket leaves no line of its own: NCCL does not try any other network.
func TestSocketsByNCCLNet(t *testing.T) {
	s := read(t, `node-0:101:101 [0] NCCL INFO NCCL version 2.28.9+cuda12.9
node-0:101:202 [0] NCCL INFO NET/Socket : Using [0]eth0:10.128.2.14<0>
node-0:101:202 [0] NCCL INFO Using network Socket
node-0:101:202 [0] NCCL INFO ncclCommInitRankConfig comm 0xbb0 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 61000 commId 0x6e - Init START
node-0:101:202 [0] NCCL INFO comm 0xbb0 rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0
`)
	found := s.Against(Wanted{Transport: RDMAGPU})
	if len(found) != 1 || found[0].Reason != SocketsInsteadOfRDMA || !strings.Contains(found[0].Cause, "NCCL_NET=Socket") {
		t.Errorf("got %+v, want %s with its cause", found, SocketsInsteadOfRDMA)
	}
}
