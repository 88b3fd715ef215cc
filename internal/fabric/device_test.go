// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
)

const (
	h100 = "NVIDIA H100 80GB HBM3"
	h200 = "NVIDIA H200"
	tera = FLOPS(1e12)
)

// gpus returns devices of a kind, eight on a node, with these rates in TFLOP/s; each copies at 2500 GB/s.
func gpus(kind string, first int, rates ...FLOPS) (devices []Device) {
	for i, rate := range rates {
		devices = append(devices, Device{Rank: first + i, Node: (first + i) / 8, Kind: kind, Precision: "bfloat16", Product: rate * tera,
			Copy: 2500 * rdma.GBps})
	}
	return devices
}

func many(n int, rate FLOPS) []FLOPS { return slices.Repeat([]FLOPS{rate}, n) }

// changed returns the devices with a change to the one of a rank.
func changed(devices []Device, rank int, change func(*Device)) []Device {
	i := slices.IndexFunc(devices, func(d Device) bool { return d.Rank == rank })
	change(&devices[i])
	return devices
}

// processors returns one processor a node, with these rates in GFLOP/s and GB/s.
func processors(rates ...[2]int64) (devices []Device) {
	for i, rate := range rates {
		devices = append(devices, Device{Rank: i, Node: i, Kind: "AMD EPYC", Precision: "float32", Product: FLOPS(rate[0]) * 1e9,
			Copy: rdma.BytesPerSecond(rate[1]) * rdma.GBps})
	}
	return devices
}

func TestSlowDevices(t *testing.T) {
	for _, test := range []struct {
		name    string
		devices []Device
		backend Backend
		ranks   []int
		nodes   []int
		message string
	}{
		{"no device", nil, NCCL, nil, nil, ""},
		{"one device", gpus(h100, 0, 300), NCCL, nil, nil, ""},
		{"two alike", gpus(h100, 0, 640, 520), NCCL, nil, nil, ""},
		{"the slower one of two", gpus(h100, 0, 640, 500), NCCL, []int{1}, []int{0},
			"rank 1 of node 0 (gpu-a), NVIDIA H100 80GB HBM3: matrix product 500.0 TFLOP/s, 22% below the other one's 640.0 TFLOP/s"},
		{"eight alike", gpus(h100, 0, 640, 650, 630, 645, 655, 600, 640, 641), NCCL, nil, nil, ""},
		{"one of eight", gpus(h100, 0, append(many(7, 640), 400)...), NCCL, []int{7}, []int{0},
			"rank 7 of node 0 (gpu-a), NVIDIA H100 80GB HBM3: matrix product 400.0 TFLOP/s, 38% below the median 640.0 TFLOP/s of 8 devices"},
		{"one of sixteen, in its copies", changed(gpus(h100, 0, many(16, 640)...), 11, func(d *Device) { d.Copy = 1250 * rdma.GBps }), NCCL,
			[]int{11}, []int{1}, "rank 11 of node 1 (gpu-b), NVIDIA H100 80GB HBM3: copy 1250.0 GB/s, 50% below the median 2500.0"},
		{"all of one node of two, whose power is capped", gpus(h100, 0, append(many(8, 640), many(8, 480)...)...), NCCL,
			[]int{8, 9, 10, 11, 12, 13, 14, 15}, []int{1}, "; 5 more slow devices"},
		{"two kinds, each as fast as it can be", append(gpus(h100, 0, many(8, 640)...), gpus(h200, 8, many(8, 400)...)...), NCCL, nil, nil, ""},
		{"one of two kinds", append(gpus(h100, 0, many(8, 640)...), gpus(h200, 8, append(many(7, 700), 480)...)...), NCCL, []int{15}, []int{1},
			"rank 15 of node 1 (gpu-b), NVIDIA H200: matrix product 480.0 TFLOP/s, 31% below the median 700.0 TFLOP/s of 8 devices"},
		{"the only one of its kind", append(gpus(h100, 0, many(8, 640)...), gpus(h200, 8, 100)...), NCCL, nil, nil, ""},
		{"one has no memory left", changed(gpus(h100, 0, many(8, 640)...), 3, func(d *Device) {
			d.Product, d.Copy, d.NotMeasured = 0, 0, "0.3 GB of 85.9 GB are free, want 1.8 GB"
		}), NCCL, nil, nil, ""},
		{"one has measured no copy", changed(gpus(h100, 0, many(8, 640)...), 3, func(d *Device) { d.Copy = 0 }), NCCL, nil, nil, ""},
		{"processors that are busy", processors([2]int64{60, 12}, [2]int64{25, 6}), Gloo, nil, nil, ""},
		{"a processor that waits in one of the measurements", processors([2]int64{60, 12}, [2]int64{10, 7}, [2]int64{55, 11}),
			Gloo, nil, nil, ""},
		{"a processor that is throttled", processors([2]int64{60, 12}, [2]int64{6, 1}), Gloo, []int{1}, []int{1},
			"rank 1 of node 1 (gpu-b), AMD EPYC: matrix product 6 GFLOP/s, 90% below the other one's 60 GFLOP/s; copy 1.0 GB/s"},
		{"what ranks may print", []Device{{Rank: 1, Node: 99, Kind: h100, Product: 1}, {Rank: -1, Kind: h100, Product: 1}, {Rank: 1, Product: 5}},
			NCCL, nil, nil, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := Report{Nodes: 2, Backend: test.backend, KubernetesNodes: []string{"gpu-a", "gpu-b"}, Devices: test.devices,
				Measurements: []Measurement{all(100)}}
			if len(test.devices) == 3 && test.backend == Gloo {
				r.Nodes = 3
			}
			r.Judge()
			var ranks []int
			for _, slow := range r.SlowDevices {
				ranks = append(ranks, slow.Rank)
			}
			if diff := cmp.Diff(test.ranks, ranks); diff != "" {
				t.Errorf("ranks (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.nodes, r.FaultyNodes); diff != "" {
				t.Errorf("nodes (-want +got):\n%s", diff)
			}
			want := Pass
			if test.message != "" {
				want = Slow
			}
			if r.Verdict != want || !strings.Contains(r.Message, test.message) || test.message == "" && r.Message != "" || r.SlowNetwork() {
				t.Errorf("%s, %q; slow network %t; want %s with %q", r.Verdict, r.Message, r.SlowNetwork(), want, test.message)
			}
		})
	}
}

// The receipt has the rates that mlenv nodes reads, and the spread of each kind.
func TestDeviceSpread(t *testing.T) {
	r := Report{Nodes: 2, Backend: NCCL, KubernetesNodes: []string{"gpu-a", "gpu-b"}, Expected: 194 * rdma.GBps,
		Devices: append(gpus(h200, 8, 700, 660, 690), gpus(h100, 0, 640, 400, 650, 630)...), Measurements: []Measurement{all(100)}}
	r.Judge()
	copies := Spread[rdma.BytesPerSecond]{Lowest: 2500 * rdma.GBps, Median: 2500 * rdma.GBps, Highest: 2500 * rdma.GBps}
	if diff := cmp.Diff([]DeviceKind{
		{Kind: h100, Precision: "bfloat16", Devices: 4, Product: Spread[FLOPS]{400 * tera, 640 * tera, 650 * tera}, Copy: copies},
		{Kind: h200, Precision: "bfloat16", Devices: 3, Product: Spread[FLOPS]{660 * tera, 690 * tera, 700 * tera}, Copy: copies},
	}, r.DeviceKinds); diff != "" {
		t.Errorf("kinds (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]SlowDevice{{Node: 0, KubernetesNode: "gpu-a", Rank: 1, Kind: h100, Devices: 4, Product: 400 * tera,
		ProductMedian: 640 * tera}}, r.SlowDevices); diff != "" {
		t.Errorf("slow devices (-want +got):\n%s", diff)
	}
	if !r.SlowNetwork() || !strings.Contains(r.Message, "bus bandwidth 100.0 GB/s") || !strings.Contains(r.Message, "rank 1 of node 0") {
		t.Errorf("%q; want the slow network and the slow device", r.Message)
	}
	r.Devices[0].Copy, r.Devices[0].NotMeasured = 0, "0.3 GB of 85.9 GB are free, want 2.1 GB"
	var out strings.Builder
	if err := r.Print(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"NVIDIA H100 80GB HBM3: 4 devices, matrix product (bfloat16) 400.0 TFLOP/s to 650.0 TFLOP/s, median 640.0 TFLOP/s, copy 2500.0 GB/s",
		"NVIDIA H200: 3 devices, matrix product (bfloat16) 660.0 TFLOP/s to 700.0 TFLOP/s, median 690.0 TFLOP/s, copy 2500.0 GB/s",
		"rank 8 of node 1, NVIDIA H200: not measured: 0.3 GB of 85.9 GB are free, want 2.1 GB\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q not found in\n%s", want, &out)
		}
	}
}

// A report of very many ranks fits into the record, which has 1 MiB for it.
func TestManyDevices(t *testing.T) {
	r := Report{Nodes: 512, Backend: NCCL, Devices: gpus(h100, 0, append(many(4095, 640), 300)...)}
	r.Judge()
	r.Condense()
	if len(r.Devices) != 1 || r.Devices[0].Rank != 4095 || r.DeviceKinds[0].Devices != 4096 || len(r.SlowDevices) != 1 {
		t.Errorf("%d devices, kinds %+v, slow %+v; want the slow one and the spread of all", len(r.Devices), r.DeviceKinds, r.SlowDevices)
	}
}

// measureDevices runs the program on a node of the stand-in, and returns what its ranks print of their devices.
func measureDevices(t *testing.T, backend Backend, ranks int, environ ...string) (devices []Device) {
	t.Helper()
	modules, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	arguments, err := Input{Nodes: 1, RanksPerNode: ranks, Backend: backend, Seconds: 60, Sizes: []agent.Bytes{8, 1024}, Share: 0.1,
		WithoutGPU: 1024, Devices: 0.5}.Arguments()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command("python3", arguments...)
	command.Env = append(os.Environ(), "PYTHONPATH="+modules, "PYTHONDONTWRITEBYTECODE=1", "BYTES_PER_SECOND=1e9")
	command.Env = append(command.Env, environ...)
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	done := false
	for text := range bytes.Lines(out) {
		switch line, ok := ParseLine(text); {
		case ok && line.Event == OfDevice:
			devices = append(devices, line.Device)
		case ok && line.Event == Done:
			done = true
		}
	}
	if !done {
		t.Errorf("the program did not measure the network:\n%s", out)
	}
	slices.SortFunc(devices, func(a, b Device) int { return a.Rank - b.Rank })
	return devices
}

func TestBenchmarkOfDevices(t *testing.T) {
	const gib = 1 << 30
	gpu := func(major, free int, more ...string) []string {
		return append([]string{"DEVICE=" + h100, fmt.Sprintf("MAJOR=%d", major), fmt.Sprintf("FREE=%d", free), "FLOP_PER_SECOND=640e12"}, more...)
	}
	for _, test := range []struct {
		name    string
		backend Backend
		environ []string
		want    Device
	}{
		{"a GPU", NCCL, gpu(9, 70*gib), Device{Kind: h100, Precision: "bfloat16", Product: 640 * tera, Copy: 100 * rdma.GBps}},
		{"a GPU without bfloat16", NCCL, gpu(7, 30*gib),
			Device{Kind: h100, Precision: "float16", Product: 640 * tera, Copy: 100 * rdma.GBps}},
		{"a GPU without matrix units", NCCL, gpu(6, 30*gib),
			Device{Kind: h100, Precision: "float32", Product: 640 * tera, Copy: 100 * rdma.GBps}},
		{"a GPU that is almost full", NCCL, gpu(9, gib/2), Device{Kind: h100, Precision: "bfloat16",
			NotMeasured: "matrix product: 0.5 GB of 85.9 GB are free, want 1.9 GB; copy: 0.5 GB of 85.9 GB are free, want 2.1 GB"}},
		{"a GPU whose library does not start", NCCL, gpu(9, 70*gib, "FAULT=CUDA error: CUBLAS_STATUS_ALLOC_FAILED\nmore"),
			Device{Kind: h100, Precision: "bfloat16", Copy: 100 * rdma.GBps, NotMeasured: "matrix product: CUDA error: CUBLAS_STATUS_ALLOC_FAILED"}},
		{"a processor", Gloo, []string{"DEVICE=", "FLOP_PER_SECOND=60e9"}, Device{Precision: "float32", Product: 60e9, Copy: 100 * rdma.GBps}},
		{"GPUs that torch does not see", NCCL, []string{"DEVICE=", "FLOP_PER_SECOND=60e9"},
			Device{Precision: "float32", Product: 60e9, Copy: 100 * rdma.GBps}},
		{"a processor with a quota of a tenth", Gloo, []string{"DEVICE=", "FLOP_PER_SECOND=60e9", "QUOTA=0.1"},
			Device{Precision: "float32", Product: 6e9, Copy: 10 * rdma.GBps}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := measureDevices(t, test.backend, 2, test.environ...)
			if len(got) != 2 || got[0].Rank != 0 || got[1].Rank != 1 {
				t.Fatalf("devices %+v, want those of two ranks", got)
			}
			for _, d := range got {
				near := func(got, want int64) bool { return 10*got >= 9*want && 10*got <= 12*want }
				if !near(int64(d.Product), int64(test.want.Product)) || !near(int64(d.Copy), int64(test.want.Copy)) {
					t.Errorf("%s and %s, want %s and %s", d.Product, d.Copy, test.want.Product, test.want.Copy)
				}
				if d.Precision != test.want.Precision || d.NotMeasured != test.want.NotMeasured || d.Kind == "" ||
					test.want.Kind != "" && d.Kind != test.want.Kind {
					t.Errorf("got %+v, want %+v", d, test.want)
				}
			}
		})
	}
}
