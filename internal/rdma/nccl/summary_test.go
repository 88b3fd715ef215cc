package nccl

import (
	"encoding/json"
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
	if diff := cmp.Diff(want, s.On(Sockets)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if got := readFile(t, "testdata/logs/roce-gpudirect-2.27.log").On(Sockets); len(got) > 0 {
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
			"SocketsInsteadOfRDMA: NCCL chose sockets: it found no RDMA device (NCCL_IB_HCA==mlx5_2,mlx5_3): rank 0: 4 of its channels go over Socket"},
		{"sockets-chosen-2.28", "ml-dev-env-0", Wanted{Transport: RDMAGPU},
			"SocketsInsteadOfRDMA: NCCL chose sockets: NCCL_IB_DISABLE=1 is set: Using network Socket"},
		{"sockets-chosen-2.28", "ml-dev-env-1", Wanted{Environment: map[string]string{"NCCL_IB_DISABLE": "0"}},
			"SettingChanged: the program, its image or /etc/nccl.conf sets the variable itself: NCCL_IB_DISABLE is 1, and 0 was given"},
		{"sockets-chosen-2.28", "ml-dev-env-1", Wanted{Environment: map[string]string{}},
			"SettingChanged: the program, its image or /etc/nccl.conf sets the variable itself: NCCL_IB_DISABLE is 1, and was not given"},
		{"roce-host-memory-2.27", "ml-dev-env-0", Wanted{Transport: RDMAGPU},
			"HostMemoryInsteadOfGPU: NCCL copies each message through the memory of the host: neither nvidia_peermem nor DMA-BUF lets mlx5_6, mlx5_7 reach the GPUs; NCCL_DMABUF_ENABLE=0 is set: rank 0: 1 of its channels go over IB"},
		{"roce-gpudirect-2.27", "ml-dev-env-1", Wanted{Devices: map[string][]string{"ml-dev-env-1": {"mlx5_10", "mlx5_11", "mlx5_8"}}},
			"DeviceNotUsed: NCCL does not list a device that the node has: its port is not active, or NCCL_IB_HCA does not name it: NET/IB : Using mlx5_10 mlx5_11 (NCCL_IB_HCA==mlx5_10,mlx5_11)"},
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

// TestFindingsOfOldReceipts reads findings with the keys that older receipts have.
func TestFindingsOfOldReceipts(t *testing.T) {
	want := Finding{Finding: fail.Finding{Reason: PortDown, Seen: "port 1 is down", Next: "ibv_devinfo"}, Host: "a", Count: 2, Cause: "a port lost its link"}
	for _, keys := range []string{`"reason": "PortDown", "seen": "port 1 is down", "next": "ibv_devinfo"`, `"name": "PortDown", "evidence": "port 1 is down", "fix": "ibv_devinfo"`} {
		var got Finding
		if err := json.Unmarshal([]byte(`{`+keys+`, "host": "a", "count": 2, "cause": "a port lost its link"}`), &got); err != nil || got != want {
			t.Errorf("got %+v, %v; want %+v", got, err, want)
		}
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
	s := read(t, "node-0:1:2 [0] misc/socket.cc:575 NCCL WARN socketStartConnect: connect to 10.128.2.15<45763> returned No route to host, exceeded error retry count after 35 attempts\n")
	if got, want := s.Findings[0].Next, "nc -vz 10.128.2.15 45763"; !strings.Contains(got, want) {
		t.Errorf("fix %q, want it to contain %q", got, want)
	}
	against := readFile(t, "testdata/logs/roce-gpudirect-2.27.log").Against(Wanted{Devices: map[string][]string{"ml-dev-env-0": {"mlx5_8"}}})
	if got, want := against[0].Next, "/sys/class/infiniband/mlx5_8/ports/1/state"; !strings.Contains(got, want) {
		t.Errorf("fix %q, want it to contain %q", got, want)
	}
}
