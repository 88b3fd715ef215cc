// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

var names4 = []string{"mlx5_6", "mlx5_7", "mlx5_10", "mlx5_11"}

// usable returns the names of the devices with a usable port.
func usable(f Facts) []string {
	var names []string
	for _, rail := range f.Rails() {
		names = append(names, rail.Device.Name)
	}
	return names
}

// kinds returns the findings as "severity Kind", sorted.
func kinds(findings []fail.Finding) []string {
	var result []string
	for _, finding := range findings {
		result = append(result, string(finding.Level)+" "+string(finding.Reason))
	}
	slices.Sort(result)
	return result
}

func TestDetect(t *testing.T) {
	vf := nic{name: "mlx5_6", uverbs: "uverbs6", address: "0000:03:00.2", netdev: "net1", ip: "10.0.103.7/24"}
	one := func(change func(*nic)) *host {
		h := newHost()
		n := vf
		change(&n)
		h.add(n)
		h.allot("openshift.io/eno5np0rdma", n.address, rdmaInfo(n.name, n.uverbs))
		return h
	}
	unchanged := func(*nic) {}
	four := func(change func(i int, n *nic)) *host {
		h := newHost()
		for i, n := range rails4(0, names4...) {
			change(i, &n)
			h.add(n)
			h.allot(fmt.Sprintf("openshift.io/eno%dnp0rdma", 5+i), n.address, rdmaInfo(n.name, n.uverbs))
		}
		return h
	}
	// hostDevices returns a host as on Cairo: five physical functions, one of which is for storage and two of which are
	// down. No device plugin gives a device to the pod.
	hostDevices := func() *host {
		h := newHost()
		for i := range 7 {
			n := nic{name: fmt.Sprintf("mlx5_%d", i), uverbs: fmt.Sprintf("uverbs%d", i), address: fmt.Sprintf("0000:%d3:00.0", i+1), physical: true,
				infiniBand: true}
			if i < 2 {
				n.state, n.physicalState, n.rate = "1: DOWN", "3: Disabled", "10 Gb/sec (4X SDR)"
			}
			if i == 6 {
				n.infiniBand, n.rate, n.netdev, n.hostNetdev = false, "100 Gb/sec (4X EDR)", "eno1", true
				n.gids = map[int][3]string{0: {mapped("192.168.7.9"), RoCEv1, "eno1"}, 1: {mapped("192.168.7.9"), RoCEv2, "eno1"}}
			}
			h.add(n)
		}
		return h
	}
	nearGPUs := hostDevices()
	nearGPUs.memlock("unlimited", "unlimited", "000001ffffffffff") // privileged, as on Cairo
	for _, bus := range []string{"33", "43"} {
		nearGPUs.gpu("pci0000:"+bus+"/0000:00:01.0", "0000:"+bus+":01.0", 0)
	}
	nearGPUs.gpu("pci0000:f0/0000:f0:01.0", "0000:f1:00.0", 1)
	for _, tc := range []struct {
		name     string
		host     *host
		expected Expected
		usable   []string
		others   int
		findings []string
	}{
		{"nothing", newHost(), Expected{}, nil, 0, []string{"broken NoDevice"}},
		{"one rail", one(unchanged), Expected{Devices: []string{"mlx5_6"}, Interfaces: []string{"net1"}}, []string{"mlx5_6"}, 0, nil},
		{"one rail of InfiniBand", one(func(n *nic) { n.infiniBand, n.ip = true, "" }), Expected{}, []string{"mlx5_6"}, 0, nil},
		{"four rails", barcelona(0, names4...), Expected{Devices: names4}, names4, 0, nil},
		{"four rails of InfiniBand", four(func(_ int, n *nic) { n.infiniBand, n.netdev, n.ip = true, "", "" }), Expected{}, names4, 0, nil},
		{"four rails, one down", four(func(i int, n *nic) {
			if i == 2 {
				n.state, n.physicalState = "1: DOWN", "2: Polling"
			}
		}), Expected{Devices: names4}, []string{"mlx5_6", "mlx5_7", "mlx5_11"}, 0, []string{"degraded DevicesDiffer", "degraded PortDown"}},
		{"all down", one(func(n *nic) { n.state = "2: INIT" }), Expected{}, nil, 0, []string{"broken NoRail", "degraded PortDown"}},
		{"rates mixed", four(func(i int, n *nic) {
			if i == 3 {
				n.rate = "100 Gb/sec (4X EDR)"
			}
		}), Expected{}, names4, 0, []string{"degraded RatesMixed"}},
		{"link layers mixed", four(func(i int, n *nic) {
			if i == 3 {
				n.infiniBand = true
			}
		}), Expected{}, names4, 0, []string{"degraded LinkLayersMixed"}},
		{"all attachments with one range", four(func(i int, n *nic) { n.ip = fmt.Sprintf("10.0.103.%d/24", 7+i) }), Expected{}, names4, 0,
			[]string{"degraded SubnetShared"}},
		{"renamed since the file was written", barcelona(0, "mlx5_2", "mlx5_3", "mlx5_4", "mlx5_5"), Expected{Devices: names4},
			[]string{"mlx5_2", "mlx5_3", "mlx5_4", "mlx5_5"}, 0, []string{"note DevicesDiffer"}},
		{"other interfaces", one(unchanged), Expected{Interfaces: []string{"net1", "net2"}}, []string{"mlx5_6"}, 0,
			[]string{"note InterfacesDiffer"}},
		{"PCIe 4.0 card in its slot", one(func(n *nic) { n.speed, n.maxSpeed = "16.0 GT/s PCIe", "16.0 GT/s PCIe" }), Expected{},
			[]string{"mlx5_6"}, 0, []string{"note PCIeBelowPort"}},
		{"PCIe 5.0 card in a slot of 4.0", one(func(n *nic) { n.speed = "16.0 GT/s PCIe" }), Expected{}, []string{"mlx5_6"}, 0,
			[]string{"degraded PCIeBelowMaximum", "note PCIeBelowPort"}},
		{"PCIe at half its width", one(func(n *nic) { n.width = "8" }), Expected{}, []string{"mlx5_6"}, 0,
			[]string{"degraded PCIeBelowMaximum", "note PCIeBelowPort"}},
		{"no address", one(func(n *nic) { n.ip = "" }), Expected{}, nil, 0, []string{"broken NoRail", "degraded NoGID"}},
		{"no interface", one(func(n *nic) { n.netdev, n.ip = "", "" }), Expected{}, nil, 0, []string{"broken NoRail", "degraded NoGID"}},
		{"the IOMMU translates", one(func(n *nic) { n.group = "DMA-FQ" }), Expected{}, []string{"mlx5_6"}, 0,
			[]string{"degraded IOMMUTranslates"}},
		{"no device file", one(func(n *nic) { n.noFile = true }), Expected{}, nil, 0, []string{"broken NoRail", "degraded DeviceFileMissing"}},
		{"host devices that the file chooses", hostDevices(), Expected{Devices: []string{"mlx5_2", "mlx5_3", "mlx5_4", "mlx5_5"}},
			[]string{"mlx5_2", "mlx5_3", "mlx5_4", "mlx5_5"}, 3, nil},
		{"host devices, of which the file has one that is gone", hostDevices(), Expected{Devices: []string{"mlx5_2", "mlx5_3", "mlx5_9"}},
			[]string{"mlx5_2", "mlx5_3"}, 5, []string{"degraded DevicesDiffer"}},
		{"host devices, all renamed", hostDevices(), Expected{Devices: []string{"mlx5_12", "mlx5_13"}},
			[]string{"mlx5_2", "mlx5_3", "mlx5_4", "mlx5_5"}, 0, []string{"note DevicesDiffer", "note NoGID", "note PortDown", "note PortDown"}},
		{"host devices on GPUs' switches, all renamed", nearGPUs, Expected{Devices: []string{"mlx5_12", "mlx5_13"}}, []string{"mlx5_2", "mlx5_3"},
			5, []string{"note DevicesDiffer"}},
		{"host devices on GPUs' switches, some renamed", nearGPUs, Expected{Devices: []string{"mlx5_2", "mlx5_13"}}, []string{"mlx5_2", "mlx5_3"},
			5, []string{"note DevicesDiffer"}},
		{"host devices on GPUs' switches, but all names exist", nearGPUs, Expected{Devices: []string{"mlx5_4", "mlx5_5"}},
			[]string{"mlx5_4", "mlx5_5"}, 5, nil},
		// A cluster file of mlenv init lists no devices: detection leaves out the storage's device, mlx5_6.
		{"host devices on GPUs' switches, and no names", nearGPUs, Expected{}, []string{"mlx5_2", "mlx5_3"}, 5, nil},
		{"host devices that nothing chooses", hostDevices(), Expected{},
			[]string{"mlx5_2", "mlx5_3", "mlx5_4", "mlx5_5"}, 0, []string{"note NoGID", "note PortDown", "note PortDown"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			facts := tc.host.detect(tc.expected)
			if diff := cmp.Diff(tc.usable, usable(facts)); diff != "" {
				t.Errorf("usable devices (-want +got):\n%s", diff)
			}
			if len(facts.Others) != tc.others {
				t.Errorf("other devices are %q, want %d", facts.Others, tc.others)
			}
			if diff := cmp.Diff(tc.findings, kinds(facts.Findings)); diff != "" {
				t.Errorf("findings (-want +got):\n%s%v", diff, facts.Findings)
			}
			line, fine := facts.Check()
			if wrong := slices.ContainsFunc(tc.findings, func(f string) bool { return !strings.HasPrefix(f, "note ") }); fine == wrong ||
				strings.Contains(line, "\n") {
				t.Errorf("Check = %q, %v", line, fine)
			}
		})
	}
}

// A device plugin reports the devices that it gave in one of these ways.
// The RDMA shared device plugin names no device: it gives a pod the files of the cards that its administrator has chosen, whatever switch
// they are on. A macvlan of each card has an address, which is in the card's table of GIDs.
func TestSharedDevices(t *testing.T) {
	h := newHost()
	for i := range 3 {
		n := nic{name: fmt.Sprintf("mlx5_%d", i), uverbs: fmt.Sprintf("uverbs%d", i), address: fmt.Sprintf("0000:%d3:00.0", i+1), physical: true,
			noFile: i == 2, netdev: fmt.Sprintf("ens%df0np0", i), hostNetdev: true}
		net := fmt.Sprintf("net%d", i+1)
		n.gids = map[int][3]string{1: {mapped(fmt.Sprintf("172.16.%d.9", i)), RoCEv2, n.netdev}, 4: {mapped(fmt.Sprintf("192.168.%d.7", i)),
			RoCEv1, net}, 5: {mapped(fmt.Sprintf("192.168.%d.7", i)), RoCEv2, net}}
		h.add(n)
		h.interfaces = append(h.interfaces, Interface{Name: net, Index: 5 + i, MTU: 9000, Addresses: prefixes(fmt.Sprintf("192.168.%d.7/24", i))})
	}
	h.gpu("pci0000:13/0000:00:01.0", "0000:13:01.0", 0)
	facts := h.detect(Expected{MTU: 9000})
	if diff := cmp.Diff([]string{"mlx5_0", "mlx5_1"}, usable(facts)); diff != "" || facts.Broken() {
		t.Errorf("usable (-want +got):\n%s%v", diff, facts.Findings)
	}
	for i, rail := range facts.Rails() {
		if p := rail.Port; p.GIDIndex != 5 || p.Netdev != fmt.Sprintf("net%d", i+1) || p.MTU != 9000 || p.OfHost ||
			p.Network().String() != fmt.Sprintf("192.168.%d.0/24", i) {
			t.Errorf("rail %d: %+v", i, *p)
		}
	}
}

func TestAllotted(t *testing.T) {
	address := "0000:03:00.2"
	// The pod sees every device of the host, and the plugin gave it the first one.
	giving := func(allot func(h *host)) *host {
		h := newHost()
		for i, n := range rails4(0, names4...) {
			n.noFile = i > 0
			h.add(n)
		}
		allot(h)
		return h
	}
	for _, tc := range []struct {
		name     string
		host     *host
		givenBy  string // of mlx5_6, "" if it is not given
		findings []string
	}{
		{"rdma_dev", giving(func(h *host) { h.allot("openshift.io/eno5np0rdma", address, rdmaInfo("mlx5_6", "uverbs6")) }),
			"PCIDEVICE_OPENSHIFT_IO_ENO5NP0RDMA_INFO", nil},
		{"rdma without rdma_dev, before 3.10",
			giving(func(h *host) { h.allot("openshift.io/r", address, `,"rdma":{"uverbs":"/dev/infiniband/uverbs6"}`) }),
			"PCIDEVICE_OPENSHIFT_IO_R_INFO", nil},
		{"rdma: {}", giving(func(h *host) { h.allot("openshift.io/r", address, `,"rdma":{}`) }), "PCIDEVICE_OPENSHIFT_IO_R_INFO", nil},
		{"_INFO without rdma", giving(func(h *host) { h.allot("openshift.io/r", address, `,"vdpa":{}`) }), "PCIDEVICE_OPENSHIFT_IO_R_INFO", nil},
		{"no _INFO", giving(func(h *host) { h.allot("openshift.io/r", address, "") }), "PCIDEVICE_OPENSHIFT_IO_R", nil},
		{"_INFO that is broken", giving(func(h *host) { h.allot("r", address, ",") }), "PCIDEVICE_R", []string{"note VariableUnreadable"}},
		{"a resource named *_info", giving(func(h *host) { h.allot("openshift.io/net_info", address, rdmaInfo("mlx5_6", "uverbs6")) }),
			"PCIDEVICE_OPENSHIFT_IO_NET_INFO_INFO", nil},
		{"a resource named *_info without _INFO", giving(func(h *host) { h.allot("openshift.io/net_info", address, "") }),
			"PCIDEVICE_OPENSHIFT_IO_NET_INFO", nil},
		{"a resource with hyphens", giving(func(h *host) { h.allot("nvidia.com/rail-1", address, rdmaInfo("mlx5_6", "uverbs6")) }),
			"PCIDEVICE_NVIDIA_COM_RAIL-1_INFO", nil},
		{"renamed since", giving(func(h *host) { h.allot("r", address, rdmaInfo("mlx5_2", "uverbs2")) }), "PCIDEVICE_R_INFO",
			[]string{"note DeviceRenamed"}},
		{"another's name", giving(func(h *host) { h.allot("r", address, rdmaInfo("mlx5_7", "uverbs7")) }), "PCIDEVICE_R_INFO",
			[]string{"note DeviceRenamed"}},
		{"a name that is a path", giving(func(h *host) { h.allot("r", address, rdmaInfo("../mlx5_7", "../uverbs7")) }), "PCIDEVICE_R_INFO", nil},
		{"no PCI address", giving(func(h *host) { h.environ = []string{"PCIDEVICE_R=virtio0," + address} }), "PCIDEVICE_R",
			[]string{"note VariableUnreadable"}},
		{"given for RDMA, without a device", giving(func(h *host) { h.allot("r", "0000:03:00.5", `,"rdma":{}`) }), "",
			[]string{"broken NoDevice", "degraded DeviceMissing"}},
		{"a network device alone", giving(func(h *host) { h.allot("r", "0000:03:00.5", "") }), "",
			[]string{"broken NoDevice", "note DeviceMissing"}},
		{"none, the file's being there", giving(func(*host) {}), GivenByDev, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			facts := tc.host.detect(Expected{})
			var given, others []string
			for _, device := range facts.Devices {
				given = append(given, device.Name+" by "+device.GivenBy)
			}
			want := []string{"mlx5_6 by " + tc.givenBy}
			if tc.givenBy == "" {
				want = nil
			}
			others = append(others, facts.Others...)
			if diff := cmp.Diff(want, given); diff != "" {
				t.Errorf("given (-want +got):\n%s", diff)
			}
			if len(others)+len(given) != 4 {
				t.Errorf("others are %q", others)
			}
			if diff := cmp.Diff(tc.findings, kinds(facts.Findings)); diff != "" {
				t.Errorf("findings (-want +got):\n%s%v", diff, facts.Findings)
			}
		})
	}
}

func TestFacts(t *testing.T) {
	h := newHost()
	h.add(nic{name: "mlx5_6", uverbs: "uverbs6", address: "0000:03:00.2", below: "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0",
		netdev: "net1", ip: "10.0.103.7/24", numa: 1})
	h.gpu("pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0", "0000:04:00.0", 1)
	h.gpu("pci0000:80/0000:80:01.0", "0000:81:00.0", 0)
	h.allot("openshift.io/eno5np0rdma", "0000:03:00.2", rdmaInfo("mlx5_6", "uverbs6"))
	h.write("sys/module/nvidia_peermem/version", "580.95.05")
	gid := func(index int, text, typ string) GID { return GID{index, mustGID(text), typ, "net1"} }
	want := Facts{
		Devices: []Device{{
			Name: "mlx5_6", Model: "MT4129", Firmware: "28.39.1002", PCI: "0000:03:00.2", GivenBy: "PCIDEVICE_OPENSHIFT_IO_ENO5NP0RDMA_INFO",
			PhysicalFunction: "0000:03:00.0", Uverbs: "uverbs6", NUMA: 1,
			PCIe: Link{32, 16}, PCIeMaximum: Link{32, 16}, IOMMU: "identity", GPUs: map[string]Distance{"0000:04:00.0": PIX, "0000:81:00.0": SYS},
			Ports: []Port{{
				Number: 1, State: "ACTIVE", PhysicalState: "LinkUp", LinkLayer: Ethernet, Rate: 400 * Gbps,
				GIDs: []GID{gid(0, "fe80::f08e:cbff:fe95:29dc", RoCEv1), gid(1, "fe80::f08e:cbff:fe95:29dc", RoCEv2),
					gid(2, "::ffff:10.0.103.7", RoCEv1), gid(3, "::ffff:10.0.103.7", RoCEv2)},
				Netdev: "net1", MTU: 9000, GIDIndex: 3, Address: prefixes("10.0.103.7/24")[0], Routes: prefixes("10.0.103.0/24"),
			}},
		}},
		GPUs:         []string{"0000:04:00.0", "0000:81:00.0"},
		Interfaces:   h.interfaces,
		PodInterface: "eth0",
		Memory:       Memlock{Soft: 8 << 20, Hard: 8 << 20, CapEff: "00000000000045fb"},
		IOMMU:        IOMMU{Mode: IOMMUPassthrough, CommandLine: "iommu=pt intel_iommu=on"},
		GPUDirect:    GPUDirect{Peermem: true, DMABUF: Unknown, Why: "/proc/driver/nvidia/version is missing"},
	}
	got := h.detect(Expected{})
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(mustGID("::"), prefixes("0.0.0.0/0")[0])); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	text, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	var back Facts
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, back, cmpopts.EquateComparable(mustGID("::"), prefixes("0.0.0.0/0")[0])); diff != "" {
		t.Errorf("after JSON (-want +got):\n%s", diff)
	}
}

// In a real folder the kernel resolves links; in an os.Root links may not lead outside it.
func TestRealFolder(t *testing.T) {
	h := barcelona(0, names4...)
	dir := t.TempDir()
	for name, file := range h.files {
		if string(file.Data) == unmapped {
			continue // a real folder has no unreadable files
		}
		full := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		err := error(nil)
		if file.Mode&fs.ModeSymlink != 0 {
			err = os.Symlink(string(file.Data), full)
		} else {
			err = os.WriteFile(full, file.Data, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	want := h.detect(Expected{})
	for name, tree := range map[string]fs.FS{"os.DirFS": os.DirFS(dir), "os.Root": root.FS(), "Root": RootFS(dir)} {
		got := Detect(Options{Root: tree, Environ: h.environ, Interfaces: func() ([]Interface, error) { return h.interfaces, nil }})
		if diff := cmp.Diff(want, got, cmpopts.EquateComparable(mustGID("::"), prefixes("0.0.0.0/0")[0])); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// If the root has a /sys, it hides the machine's /sys. The machine's /proc stays visible, although the root has some of
// its files.
func TestRoot(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"sys/class/net/net1/mtu": "9000", "proc/cmdline": "iommu=pt"} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	laid := tree{RootFS(dir)}
	if got := laid.readText("proc/cmdline"); got != "iommu=pt" {
		t.Errorf("the command line is %q", got)
	}
	if got := laid.readText("sys/class/net/net1/mtu"); got != "9000" {
		t.Errorf("the MTU is %q", got)
	}
	if laid.exists("sys/kernel") {
		t.Error("the machine's /sys shows through")
	}
	if laid.readText("proc/self/status") == "" {
		t.Error("the machine's /proc does not show through")
	}
}

// On any machine Detect reads what it finds without an error, and Check reports it if there is no RDMA device.
func TestThisMachine(t *testing.T) {
	facts := Detect(Options{Root: RootFS(""), Interfaces: SystemInterfaces})
	line, fine := facts.Check()
	t.Logf("%s (others %d, %s, IOMMU %s)", line, len(facts.Others), facts.Memory, facts.IOMMU.Mode)
	if len(facts.Devices) == 0 && (fine || !strings.Contains(line, "looking for RDMA devices")) {
		t.Errorf("Check = %q, %v; want it to report that there is no device", line, fine)
	}
	if facts.Memory.CapEff == "" || facts.Memory.Soft == 0 && facts.Memory.Hard == 0 {
		t.Errorf("locked memory is %+v, want it to be read", facts.Memory)
	}
}

func TestInterfacesUnknown(t *testing.T) {
	facts := Detect(Options{Root: rootfs{newHost().files}, Interfaces: func() ([]Interface, error) {
		return nil, errors.New("route ip+net: too many open files")
	}})
	if got := kinds(facts.Findings); !slices.Contains(got, "degraded InterfacesUnknown") {
		t.Errorf("findings %q", got)
	}
}

// TestScalableFunctions: the device plugin gives auxiliary devices, which have no PCI address of their own. The card has an interface of
// its own, which is not the pod's.
func TestScalableFunctions(t *testing.T) {
	for _, info := range []string{rdmaInfo("mlx5_8", "uverbs8"), "", `,"rdma":{}`} {
		h := newHost()
		h.add(nic{name: "mlx5_0", uverbs: "uverbs0", address: "0000:03:00.0", physical: true, noFile: true, netdev: "eno5", hostNetdev: true})
		h.write("sys/devices/pci0000:03/0000:00:01.0/0000:03:00.0/net/eno5/mtu", "1500")
		h.add(nic{name: "mlx5_8", uverbs: "uverbs8", address: "0000:03:00.0", physical: true, auxiliary: "mlx5_core.sf.4", netdev: "net1",
			ip: "10.0.103.7/24"})
		h.allot("nvidia.com/rail", "mlx5_core.sf.4", info)
		facts := h.detect(Expected{})
		if got := usable(facts); !slices.Equal(got, []string{"mlx5_8"}) || len(facts.Findings) > 0 {
			t.Errorf("info %q: usable %q, findings %+v; want mlx5_8 and none", info, got, facts.Findings)
			continue
		}
		device := facts.Devices[0]
		if device.PCI != "0000:03:00.0" || device.Auxiliary != "mlx5_core.sf.4" || device.Ports[0].Netdev != "net1" ||
			device.Ports[0].MTU != 9000 {
			t.Errorf("info %q: got %+v", info, device)
		}
		if !slices.Equal(facts.Others, []string{"mlx5_0"}) {
			t.Errorf("others %q, want the card's own", facts.Others)
		}
	}
}

// TestSubnetManager: only the subnet manager moves a port of InfiniBand from INIT to ACTIVE, and it finds ports by their GUIDs.
func TestSubnetManager(t *testing.T) {
	const none = "0000:0000:0000:0000"
	for _, tc := range []struct {
		name     string
		nic      nic
		kinds    []string
		advice   string
		evidence string
	}{
		{"INIT", nic{infiniBand: true, state: "2: INIT"}, []string{"broken NoRail", "degraded PortDown"}, "sminfo", "state INIT"},
		{"ARMED", nic{infiniBand: true, state: "3: ARMED"}, []string{"broken NoRail", "degraded PortDown"}, "sminfo", "state ARMED"},
		{"without a GUID, DOWN", nic{infiniBand: true, state: "1: DOWN", physicalState: "5: LinkUp", guid: none},
			[]string{"broken NoRail", "degraded PortDown"}, "give the virtual function a GUID", "node GUID 0"},
		{"without a GUID, INIT", nic{infiniBand: true, state: "2: INIT", guid: none}, []string{"broken NoRail", "degraded PortDown"},
			"give the virtual function a GUID", "node GUID 0"},
		{"without a GUID, ACTIVE", nic{infiniBand: true, guid: none}, []string{"degraded PortDown"}, "subnet manager", "its node GUID is 0"},
		{"a cable", nic{infiniBand: true, state: "1: DOWN", physicalState: "2: Polling"}, []string{"broken NoRail", "degraded PortDown"}, "",
			"physical state Polling"},
		{"Ethernet", nic{state: "2: INIT", guid: none, netdev: "net1", ip: "10.0.103.7/24"}, []string{"broken NoRail", "degraded PortDown"}, "",
			"state INIT"},
		{"Ethernet without a GUID", nic{guid: none, netdev: "net1", ip: "10.0.103.7/24"}, nil, "", ""},
	} {
		h := newHost()
		tc.nic.name, tc.nic.uverbs, tc.nic.address = "mlx5_6", "uverbs6", "0000:03:00.2"
		h.add(tc.nic)
		h.allot("openshift.io/rail", "0000:03:00.2", rdmaInfo("mlx5_6", "uverbs6"))
		facts := h.detect(Expected{})
		if got := kinds(facts.Findings); !slices.Equal(got, tc.kinds) {
			t.Errorf("%s: findings %q, want %q", tc.name, got, tc.kinds)
		}
		for _, f := range facts.Findings {
			if f.Reason == PortDown && (!strings.Contains(f.Next, tc.advice) || tc.advice == "" && f.Next != "" ||
				!strings.Contains(f.Seen, tc.evidence)) {
				t.Errorf("%s: %q, next %q; want %q, next %q", tc.name, f.Seen, f.Next, tc.evidence, tc.advice)
			}
		}
	}
}

// TestExpectedMTU: an MTU that is not the expected one is a finding, even if all rails of all nodes have it.
func TestExpectedMTU(t *testing.T) {
	for _, tc := range []struct {
		expected int
		change   func(*host)
		want     []string
	}{
		{0, func(*host) {}, nil},
		{9000, func(*host) {}, nil},
		{1500, func(*host) {}, []string{"the MTU of net1, net2, net3, net4 is 9000: want 1500, as network.rdma.mtu has it"}},
		{9000, func(h *host) { h.overwrite("net/net2/mtu", "1500") }, []string{"the MTU of net2 is 1500: want 9000, as network.rdma.mtu has it"}},
		{9000, func(h *host) { h.overwrite("net/net2/mtu", "1500"); h.overwrite("net/net3/mtu", "4200") },
			[]string{"the MTU of net2 is 1500: want 9000, as network.rdma.mtu has it",
				"the MTU of net3 is 4200: want 9000, as network.rdma.mtu has it"}},
	} {
		h := barcelona(0, names4...)
		tc.change(h)
		var got []string
		for _, f := range h.detect(Expected{MTU: tc.expected}).Findings {
			got = append(got, f.Seen)
			if f.Reason != MTUDiffers || f.Level != fail.Degraded {
				t.Errorf("got %+v, want MTUDiffers", f)
			}
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("expected %d: got %q, want %q", tc.expected, got, tc.want)
		}
	}
	// InfiniBand without an interface has none.
	h := newHost()
	h.add(nic{name: "mlx5_6", uverbs: "uverbs6", address: "0000:03:00.2", infiniBand: true})
	h.allot("openshift.io/rail", "0000:03:00.2", rdmaInfo("mlx5_6", "uverbs6"))
	if found := h.detect(Expected{MTU: 4092}).Findings; len(found) > 0 {
		t.Errorf("got %+v, want none", found)
	}
}
