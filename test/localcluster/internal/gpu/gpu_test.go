// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseNodeFault(t *testing.T) {
	tests := []struct {
		text string
		want NodeFault
	}{
		{"node-1:0=missing", NodeFault{"node-1", 0, Fault{Kind: Missing}}},
		{"node-2:3=throttled", NodeFault{"node-2", 3, Fault{Kind: Throttled}}},
		{"node-1:1=ecc", NodeFault{"node-1", 1, Fault{Kind: ECC}}},
		{"node-1:1=no-nvlink", NodeFault{"node-1", 1, Fault{Kind: NoNVLink}}},
		{"node-8:7=xid-79", NodeFault{"node-8", 7, Fault{Kind: Xid, Xid: 79}}},
	}
	for _, test := range tests {
		got, err := ParseNodeFault(test.text)
		if err != nil {
			t.Errorf("ParseNodeFault(%q): %v", test.text, err)
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("ParseNodeFault(%q) (-want +got):\n%s", test.text, diff)
		}
	}
	for _, text := range []string{"", "node-9:0=missing", "node-1=missing", "node-1:0=xid", "node-1:0=xid-79x",
		"node-1:99999999999999999999=missing"} {
		if got, err := ParseNodeFault(text); err == nil {
			t.Errorf("ParseNodeFault(%q) = %v, want an error", text, got)
		}
	}
}

func TestSMI(t *testing.T) {
	healthy := Inventory("node-1", 2, nil)
	missing := Inventory("node-1", 2, []NodeFault{{"node-1", 0, Fault{Kind: Missing}}})
	hot := Inventory("node-1", 1, []NodeFault{{"node-1", 0, Fault{Kind: Throttled}}})
	ecc := Inventory("node-1", 1, []NodeFault{{"node-1", 0, Fault{Kind: Xid, Xid: 94}}})
	counted := Inventory("node-1", 1, []NodeFault{{"node-1", 0, Fault{Kind: ECC}}})
	apart := Inventory("node-1", 2, []NodeFault{{"node-1", 0, Fault{Kind: NoNVLink}}})
	tests := []struct {
		name string
		args string
		gpus []GPU
		code int
		want string
	}{
		{"list", "-L", healthy, 0, `GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-00000001-0000-4000-8000-000000000000)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-00000001-0000-4000-8000-000000000001)
`},
		{"list without the missing one", "-L", missing, 0, `GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-00000001-0000-4000-8000-000000000001)
`},
		{"query", "--query-gpu=index,memory.total,utilization.gpu --format=csv", healthy, 0, `index, memory.total [MiB], utilization.gpu [%]
0, 81559 MiB, 0 %
1, 81559 MiB, 0 %
`},
		{"bare query of one", "--query-gpu=pci.bus_id,memory.total --format=csv,noheader,nounits -i 1", healthy, 0, "00000000:3B:00.0, 81559\n"},
		{"throttled", "--query-gpu=temperature.gpu,clocks.sm,clocks_event_reasons.active,clocks_event_reasons.hw_thermal_slowdown " +
			"--format=csv,noheader", hot, 0,
			"88, 345 MHz, 0x0000000000000048, Active\n"},
		{"ECC error", "--query-gpu=ecc.errors.uncorrected.volatile.total,gpu_recovery_action --format=csv,noheader", ecc, 0, "1, Reset\n"},
		{"ECC count alone", "--query-gpu=ecc.errors.uncorrected.volatile.total,gpu_recovery_action --format=csv,noheader", counted, 0,
			"1, None\n"},
		{"no NVLink", "topo -m", apart, 0, "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t\" X " +
			"\"\tSYS\t0-31\t0\tN/A\nGPU1\tSYS\t\" X \"\t0-31\t0\tN/A\n"},
		{"unknown field", "--query-gpu=index,speed --format=csv", healthy, 2, "Field \"speed\" is not a valid field to query.\n\n"},
		{"no format", "--query-gpu=index", healthy, 1, "\"--format=\" switch is missing or not recognized. It should be \"csv\".\n"},
		{"none", "-L", nil, 6, "No devices were found\n"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var out bytes.Buffer
			code := SMI(strings.Fields(test.args), test.gpus, time.Time{}, &out)
			if code != test.code {
				t.Errorf("exit code %d, want %d", code, test.code)
			}
			if diff := cmp.Diff(test.want, out.String()); diff != "" {
				t.Errorf("output (-want +got):\n%s", diff)
			}
		})
	}
}

func TestTableIsAligned(t *testing.T) {
	var out bytes.Buffer
	if code := SMI(nil, Inventory("node-1", 8, nil), time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), &out); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	for i, line := range strings.Split(strings.TrimSpace(out.String()), "\n")[1:] {
		if line != "" && len(line) != 91 {
			t.Errorf("line %d is %d wide, want 91: %q", i+2, len(line), line)
		}
	}
	if got := strings.Count(out.String(), Product); got != 8 {
		t.Errorf("%d GPUs in the table, want 8", got)
	}
}

func TestVisibleNumbersAnew(t *testing.T) {
	all := Inventory("node-1", 4, nil)
	visible := Visible(all, all[2].UUID+","+all[3].UUID, false)
	if len(visible) != 2 || visible[0].Index != 0 || visible[0].UUID != all[2].UUID || visible[1].Index != 1 {
		t.Errorf("Visible = %+v", visible)
	}
	if got := len(Visible(all, "all", false)); got != 4 {
		t.Errorf("all shows %d GPUs, want 4", got)
	}
	if got := Visible(all, all[2].UUID, true); len(got) != 4 || got[2].Index != 2 {
		t.Errorf("a privileged container sees %+v, want all GPUs of the node", got)
	}
}

func TestPrivileged(t *testing.T) {
	for set, want := range map[string]bool{"00000000a80425fb": false, "00000000000045fb": false, "000001ffffffffff": true, "": false} {
		if got := privileged("CapEff:\t0000000000000000\nCapBnd:\t" + set + "\nCapAmb:\t0000000000000000\n"); got != want {
			t.Errorf("CapBnd %q: privileged %t, want %t", set, got, want)
		}
	}
}

func TestStateSurvives(t *testing.T) {
	dir := t.TempDir()
	want := Inventory("node-2", 3, []NodeFault{{"node-2", 1, Fault{Kind: Xid, Xid: 48}}, {"node-1", 0, Fault{Kind: Missing}}})
	if err := WriteState(dir, want); err != nil {
		t.Fatal(err)
	}
	got, err := ReadState(dir)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("state (-want +got):\n%s", diff)
	}
	if got[1].Fault.Xid != 48 || got[0].Fault.Kind != "" {
		t.Errorf("the fault is on the wrong GPU: %+v", got)
	}
}
