// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/gpu"
)

func TestDevicesDifferBetweenNodes(t *testing.T) {
	for node, want := range map[string]string{
		"node-1": "mlx5_6 mlx5_7 mlx5_8 mlx5_9",
		"node-2": "mlx5_2 mlx5_3 mlx5_4 mlx5_5",
		"node-3": "mlx5_6 mlx5_7 mlx5_10 mlx5_11",
		"node-4": "mlx5_6 mlx5_7 mlx5_8 mlx5_9",
	} {
		var first []string
		names, addresses, macs := map[string]bool{}, map[string]bool{}, map[string]bool{}
		for _, f := range (Layout{}).Functions(node) {
			if f.Number == 1 {
				first = append(first, f.Device())
			}
			names[f.Device()], addresses[f.Address()], macs[f.MAC()] = true, true, true
		}
		if got := strings.Join(first, " "); got != want {
			t.Errorf("%s has %s first, want %s", node, got, want)
		}
		if all := len(NICs) * (FunctionsEach + 1); len(names) != all || len(addresses) != all || len(macs) != all {
			t.Errorf("%s has %d names, %d addresses, %d MACs; want %d of each", node, len(names), len(addresses), len(macs), all)
		}
	}
}

func TestParseNodeFault(t *testing.T) {
	for text, want := range map[string]NodeFault{
		"node-1:eno5np0=down":       {"node-1", "eno5np0", Down},
		"node-2:eno8np0=rate-100":   {"node-2", "eno8np0", "rate-100"},
		"node-2:eno6np0=pcie-4":     {"node-2", "eno6np0", SlowPCIe},
		"node-8:eno7np0=no-info":    {"node-8", "eno7np0", NoInfo},
		"node-1:eno7np0=empty-info": {"node-1", "eno7np0", EmptyInfo},
	} {
		got, err := ParseNodeFault(text)
		if err != nil || got != want {
			t.Errorf("ParseNodeFault(%q) = %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "node-1:eno9np0=down", "node-9:eno5np0=down", "node-1:eno5np0=", "node-1:eno5np0=rate-7",
		"eno5np0=down"} {
		if got, err := ParseNodeFault(text); err == nil {
			t.Errorf("ParseNodeFault(%q) = %v, want an error", text, got)
		}
	}
}

func TestVariables(t *testing.T) {
	const name = "PCIDEVICE_OPENSHIFT_IO_ENO5NP0RDMA"
	function, ok := Layout{}.FunctionAt("node-1", "0000:03:00.2")
	if !ok {
		t.Fatal("node-1 has no 0000:03:00.2")
	}
	for fault, want := range map[Fault]map[string]string{
		"": {
			name: "0000:03:00.2",
			name + "_INFO": `{"0000:03:00.2":{"generic":{"deviceID":"0000:03:00.2"},"rdma":{"issm":"/dev/infiniband/issm6",` +
				`"rdma_cm":"/dev/infiniband/rdma_cm","rdma_dev":"mlx5_6","umad":"/dev/infiniband/umad6","uverbs":"/dev/infiniband/uverbs6"}}}`,
		},
		NoInfo:    {name: "0000:03:00.2"},
		EmptyInfo: {name: "0000:03:00.2", name + "_INFO": `{"0000:03:00.2":{"generic":{"deviceID":"0000:03:00.2"},"rdma":{}}}`},
	} {
		got, err := Variables("openshift.io/eno5np0rdma", []Function{function}, fault)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("with fault %q (-want +got):\n%s", fault, diff)
		}
	}
}

func read(t *testing.T, dir, name string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(Root(dir), name))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(content))
}

// TestTree reads the tree by its names in sysfs, including links.
func TestTree(t *testing.T) {
	dir := t.TempDir()
	gpus := gpu.Inventory("node-1", 4, nil)
	write := func(faults Faults) {
		t.Helper()
		if err := WriteTree(dir, "node-1", gpus, State{Faults: faults}); err != nil {
			t.Fatal(err)
		}
	}
	want := func(files map[string]string) {
		t.Helper()
		got := map[string]string{}
		for name := range files {
			got[name] = read(t, dir, name)
		}
		if diff := cmp.Diff(files, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	const port, slot = "sys/class/infiniband/mlx5_6/ports/1/", "sys/bus/pci/devices/0000:03:00.2/"
	write(nil)
	want(map[string]string{
		port + "state": "4: ACTIVE", port + "phys_state": "5: LinkUp", port + "rate": "400 Gb/sec (4X NDR)", port + "link_layer": "Ethernet",
		port + "gids/0":                                   noGID,
		"sys/class/infiniband/mlx5_6/hca_type":            "MT4126",
		"sys/class/infiniband/mlx5_6/fw_ver":              "28.39.1002",
		slot + "physfn/device":                            "0x1021",
		"sys/class/infiniband_verbs/uverbs6/ibdev":        "mlx5_6",
		slot + "infiniband/mlx5_6/ports/1/state":          "4: ACTIVE",
		slot + "physfn/current_link_speed":                "32.0 GT/s PCIe",
		slot + "iommu_group/type":                         "identity",
		"sys/bus/pci/devices/0000:19:00.0/vendor":         "0x10de",
		"sys/bus/pci/devices/0000:c3:00.5/numa_node":      "1",
		"sys/bus/pci/devices/0000:5d:00.0/numa_node":      "1",
		"sys/class/infiniband/mlx5_9/ports/1/phys_state":  "5: LinkUp",
		"sys/bus/pci/devices/0000:03:00.0/max_link_width": "16",
	})
	if target, err := os.Readlink(filepath.Join(Root(dir), "sys/class/infiniband/mlx5_6")); err != nil ||
		!strings.HasPrefix(target, "../../devices/pci0000:00/") {
		t.Errorf("the device's link leads to %s, %v; want a relative one", target, err)
	}
	write(Faults{"eno5np0": Down, "eno6np0": "rate-100", "eno7np0": SlowPCIe})
	want(map[string]string{
		port + "state": "1: DOWN", port + "phys_state": "3: Disabled", port + "rate": "40 Gb/sec (4X QDR)",
		"sys/class/infiniband/mlx5_7/ports/1/rate":                   "100 Gb/sec (4X EDR)",
		"sys/bus/pci/devices/0000:a3:00.2/physfn/current_link_speed": "16.0 GT/s PCIe",
		"sys/bus/pci/devices/0000:a3:00.2/physfn/max_link_speed":     "32.0 GT/s PCIe",
	})
}

func TestAttach(t *testing.T) {
	dir := t.TempDir()
	if err := WriteTree(dir, "node-1", nil, State{}); err != nil {
		t.Fatal(err)
	}
	function, _ := Layout{}.FunctionAt("node-1", "0000:03:00.2")
	attach := func(owner, address string) {
		t.Helper()
		mac, err := net.ParseMAC("02:6d:6c:01:03:01")
		if err != nil {
			t.Fatal(err)
		}
		if err := function.Attach(dir, Interface{Owner: owner, Name: "net1", MAC: mac, MTU: 9000,
			Addresses: []netip.Addr{netip.MustParseAddr(address)}}); err != nil {
			t.Fatal(err)
		}
	}
	detach := func(owner string) {
		t.Helper()
		if err := function.Detach(dir, owner); err != nil {
			t.Fatal(err)
		}
	}
	const port = "sys/class/infiniband/mlx5_6/ports/1/"
	table := func() []string {
		var entries []string
		for i := range gids {
			index := strconv.Itoa(i)
			if gid := read(t, dir, port+"gids/"+index); gid != noGID {
				entries = append(entries, gid+" "+read(t, dir, port+"gid_attrs/types/"+index)+" "+read(t, dir, port+"gid_attrs/ndevs/"+index))
			}
		}
		return entries
	}
	want := func(what string, entries ...string) {
		t.Helper()
		if diff := cmp.Diff(entries, table()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	local := []string{"fe80:0000:0000:0000:006d:6cff:fe01:0301 IB/RoCE v1 net1", "fe80:0000:0000:0000:006d:6cff:fe01:0301 RoCE v2 net1"}
	attach("one net1", "10.0.103.7")
	want("attached", append(local, "0000:0000:0000:0000:0000:ffff:0a00:6707 IB/RoCE v1 net1", "0000:0000:0000:0000:0000:ffff:0a00:6707 RoCE "+
		"v2 net1")...)
	if got := read(t, dir, "sys/bus/pci/devices/0000:03:00.2/net/net1/mtu"); got != "9000" {
		t.Errorf("MTU %s, want 9000", got)
	}
	if err := WriteTree(dir, "node-1", nil, State{Faults: Faults{"eno5np0": Down}}); err != nil {
		t.Fatal(err)
	}
	if got := len(table()); got != 4 {
		t.Errorf("%d GIDs after the tree was rewritten, want 4", got)
	}
	attach("two net1", "10.0.103.8")
	after := append(slices.Clone(local), "0000:0000:0000:0000:0000:ffff:0a00:6708 IB/RoCE v1 net1",
		"0000:0000:0000:0000:0000:ffff:0a00:6708 RoCE v2 net1")
	want("given to another", after...)
	detach("one net1")
	want("the first one's end", after...)
	detach("two net1")
	want("detached")
	detach("two net1")
}

// Interfaces of several pods have entries in the table of a card that they share, after those of the card's own interface.
func TestAttachShared(t *testing.T) {
	dir := t.TempDir()
	layout := Layout{Form: Shared, Devices: []int{2, 3, 4, 5}}
	if err := WriteTree(dir, "node-1", nil, State{Layout: layout}); err != nil {
		t.Fatal(err)
	}
	function, _ := layout.FunctionAt("node-1", "0000:03:00.0")
	attach := func(owner, address string) error {
		return function.Attach(dir, Interface{Owner: owner, Name: "net1", Addresses: []netip.Addr{netip.MustParseAddr(address)}})
	}
	const free = "-"
	table := func() string {
		var entries []string
		for i := range gids {
			gid := read(t, dir, "sys/class/infiniband/mlx5_2/ports/1/gids/"+strconv.Itoa(i))
			switch {
			case gid == noGID:
				entries = append(entries, free)
			case strings.HasPrefix(gid, "fe80"):
				entries = append(entries, "local")
			default:
				entries = append(entries, gid[len(gid)-2:])
			}
		}
		return strings.TrimRight(strings.Join(entries, " "), " "+free)
	}
	for _, step := range []struct {
		what string
		do   func() error
		want string
	}{
		{"none", func() error { return nil }, "local local"},
		{"one", func() error { return attach("one", "10.0.103.7") }, "local local local local 07 07"},
		{"another", func() error { return attach("two", "10.0.103.8") }, "local local local local 07 07 local local 08 08"},
		{"the first one's end", func() error { return function.Detach(dir, "one") }, "local local - - - - local local 08 08"},
		{"a third one", func() error { return attach("three", "10.0.103.9") }, "local local local local 09 09 local local 08 08"},
	} {
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.what, err)
		}
		if got := table(); got != step.want {
			t.Errorf("%s: the table is %q, want %q", step.what, got, step.want)
		}
	}
	if err := errors.Join(attach("four", "10.0.103.10"), attach("five", "10.0.103.11")); err == nil || !strings.Contains(err.Error(), "full") {
		t.Errorf("%v, want that the table is full", err)
	}
}

func TestStateSurvives(t *testing.T) {
	dir := t.TempDir()
	want := FaultsOf("node-2", []NodeFault{{"node-2", "eno6np0", "rate-100"}, {"node-1", "eno5np0", Down}})
	if err := WriteState(dir, State{Faults: want, Layout: Layout{Form: HostDevices, Devices: []int{2, 3, 4, 5}}}); err != nil {
		t.Fatal(err)
	}
	got, err := ReadState(dir)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(State{Layout{HostDevices, []int{2, 3, 4, 5}}, Faults{"eno6np0": "rate-100"}}, got); diff != "" {
		t.Errorf("state (-want +got):\n%s", diff)
	}
}
