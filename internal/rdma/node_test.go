// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestUnits(t *testing.T) {
	for text, want := range map[string]BitsPerSecond{
		"400 Gb/sec (4X NDR)": 400 * Gbps, "2.5 Gb/sec (1X SDR)": 2_500_000_000, "800 Gb/sec (4X XDR)": 800 * Gbps,
		"": 0, "-1 Gb/sec": 0, "NaN Gb/sec": 0, "400": 0, "1e300 Gb/sec": 0,
	} {
		if got := parseRate(text); got != want {
			t.Errorf("parseRate(%q) = %d, want %d", text, got, want)
		}
	}
	for _, tc := range []struct {
		speed, width string
		want         Link
		rate, text   string
	}{
		{"32.0 GT/s PCIe", "16", Link{32, 16}, "504.1 Gb/s", "32 GT/s x16"},
		{"16.0 GT/s PCIe", "16", Link{16, 16}, "252.1 Gb/s", "16 GT/s x16"},
		{"8 GT/s", "8", Link{8, 8}, "63.02 Gb/s", "8 GT/s x8"}, // before Linux 5.9
		{"2.5 GT/s PCIe", "1", Link{2.5, 1}, "2 Gb/s", "2.5 GT/s x1"},
		{"64.0 GT/s PCIe", "16", Link{64, 16}, "1024 Gb/s", "64 GT/s x16"},
		{"Unknown", "0", Link{}, "0 Gb/s", "unknown"},
		{"32.0 GT/s PCIe", "63", Link{}, "0 Gb/s", "unknown"},
		{"", "", Link{}, "0 Gb/s", "unknown"},
	} {
		got := parseLink(tc.speed, tc.width)
		if got != tc.want || got.Rate().String() != tc.rate || got.String() != tc.text {
			t.Errorf("parseLink(%q, %q) = %v of %v, want %s of %s", tc.speed, tc.width, got, got.Rate(), tc.text, tc.rate)
		}
	}
}

func TestDistance(t *testing.T) {
	const socket0, socket1 = "pci0000:00", "pci0000:80"
	for _, tc := range []struct {
		name           string
		gpu, nic       string // their bridges
		gpuAt, nicAt   string
		numaG, numaNIC int
		want           Distance
	}{
		{"one switch", socket0 + "/0000:00:01.0/0000:01:00.0/0000:02:00.0", socket0 + "/0000:00:01.0/0000:01:00.0/0000:02:01.0", "0000:03:00.0",
			"0000:04:00.0", 0, 0, PIX},
		{"one bridge", socket0 + "/0000:00:01.0", socket0 + "/0000:00:01.0", "0000:03:00.0", "0000:03:00.1", 0, 0, PIX},
		{"switches behind a switch", socket0 + "/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0/0000:04:00.0", socket0 +
			"/0000:00:01.0/0000:01:00.0/0000:02:01.0", "0000:05:00.0", "0000:06:00.0", 0, 0, PXB},
		{"one host bridge", socket0 + "/0000:00:01.0", socket0 + "/0000:00:02.0", "0000:03:00.0", "0000:04:00.0", 0, 0, PHB},
		{"one NUMA node", socket0 + "/0000:00:01.0", socket1 + "/0000:80:01.0", "0000:03:00.0", "0000:83:00.0", 0, 0, NODE},
		{"two NUMA nodes", socket0 + "/0000:00:01.0", socket1 + "/0000:80:01.0", "0000:03:00.0", "0000:83:00.0", 0, 1, SYS},
		{"no NUMA", socket0 + "/0000:00:01.0", socket1 + "/0000:80:01.0", "0000:03:00.0", "0000:83:00.0", -1, -1, NODE},
		{"other domains", "pci0000:00/0000:00:01.0", "pci10000:00/10000:00:01.0", "0000:03:00.0", "10000:01:00.0", 0, 1, SYS},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHost()
			h.gpu(tc.gpu, tc.gpuAt, tc.numaG)
			h.gpu(tc.nic, tc.nicAt, tc.numaNIC)
			d := detector{tree: tree{rootfs{h.files}}}
			if got := d.distance(tc.gpuAt, tc.nicAt); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
			if got := d.distance(tc.nicAt, tc.gpuAt); got != tc.want {
				t.Errorf("the other way it is %s", got)
			}
			if got := d.distance(tc.nicAt, "0000:ff:00.0"); got != "" {
				t.Errorf("to nothing it is %s", got)
			}
		})
	}
}

// sysfs shows the host's GPUs; the driver's folder shows the container's GPUs, unless CDI injected them.
func TestGPUs(t *testing.T) {
	h := newHost()
	h.gpu("pci0000:00", "0000:01:00.0", 0)
	h.gpu("pci0000:00", "0000:02:00.0", 0)
	h.pci("pci0000:00", "0000:03:00.0", map[string]string{"vendor": "0x10de", "class": "0x068000"}) // NVSwitch
	h.pci("pci0000:00", "0000:04:00.0", map[string]string{"vendor": "0x102b", "class": "0x030000"})
	d := detector{tree: tree{rootfs{h.files}}}
	if diff := cmp.Diff([]string{"0000:01:00.0", "0000:02:00.0"}, d.gpus(nil)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for given, want := range map[string][]string{"0000:01:00.0": {"0000:01:00.0"}, "0000:99:00.0": {"0000:01:00.0", "0000:02:00.0"}} {
		if diff := cmp.Diff(want, d.gpus([]string{given})); diff != "" {
			t.Errorf("given %s (-want +got):\n%s", given, diff)
		}
	}
	h.write("proc/driver/nvidia/gpus/0000:02:00.0/information", "Model: NVIDIA H100 80GB HBM3")
	if diff := cmp.Diff([]string{"0000:02:00.0"}, d.gpus(nil)); diff != "" {
		t.Errorf("in a container (-want +got):\n%s", diff)
	}
}

func TestMemlock(t *testing.T) {
	const none, ipcLock, resource = "00000000000005fb", "00000000000045fb", "00000000010005fb"
	for _, tc := range []struct {
		name               string
		soft, hard, capEff string
		uidMap             string
		reach              Bytes
		enough             bool
		text               string
	}{
		{"IPC_LOCK", "8388608", "8388608", ipcLock, "", Unlimited, true, "without limit: IPC_LOCK is effective (limit 8 MiB, hard 8 MiB; " +
			"CapEff 00000000000045fb)"},
		{"nothing", "8388608", "8388608", none, "", 8 << 20, false, "8 MiB: IPC_LOCK is not effective (limit 8 MiB, hard 8 MiB; CapEff " +
			"00000000000005fb)"},
		{"no capability at all", "65536", "65536", "0000000000000000", "", 64 << 10, false, "64 KiB: IPC_LOCK is not effective (limit 64 KiB, " +
			"hard 64 KiB; CapEff 0000000000000000)"},
		{"no limit", "unlimited", "unlimited", none, "", Unlimited, true, "unlimited: IPC_LOCK is not effective (limit unlimited, hard " +
			"unlimited; CapEff 00000000000005fb)"},
		{"a limit to raise", "8388608", "unlimited", none, "", Unlimited, true, "unlimited: IPC_LOCK is not effective (limit 8 MiB, hard " +
			"unlimited; CapEff 00000000000005fb)"},
		{"a limit that SYS_RESOURCE raises", "8388608", "8388608", resource, "", Unlimited, true,
			"unlimited: IPC_LOCK is not effective (limit 8 MiB, hard 8 MiB; CapEff 00000000010005fb)"},
		{"a large limit", "8388608", "68719476736", none, "", 64 << 30, true, "64 GiB: IPC_LOCK is not effective (limit 8 MiB, hard 64 GiB; " +
			"CapEff 00000000000005fb)"},
		{"IPC_LOCK of a user namespace", "8388608", "8388608", ipcLock, "0 655360 65536", 8 << 20, false,
			"8 MiB: capabilities do not count in a user namespace (limit 8 MiB, hard 8 MiB; CapEff 00000000000045fb)"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHost()
			h.memlock(tc.soft, tc.hard, tc.capEff)
			h.write("proc/self/uid_map", orDefault(tc.uidMap, "         0          0 4294967295"))
			d := detector{tree: tree{rootfs{h.files}}}
			got := d.memlock()
			if got.MaxLockable() != tc.reach || got.Enough() != tc.enough || got.String() != tc.text {
				t.Errorf("reach %v, enough %v, %q; want %v, %v, %q", got.MaxLockable(), got.Enough(), got, tc.reach, tc.enough, tc.text)
			}
		})
	}
	d := detector{tree: tree{rootfs{nil}}}
	if d.memlock().Enough() {
		t.Error("what cannot be read is enough")
	}
}

// A low limit of locked memory is a finding only if there is a rail that needs it.
func TestMemoryLimited(t *testing.T) {
	h := barcelona(0, names4...)
	h.memlock("8388608", "8388608", "00000000000005fb")
	facts := h.detect(Expected{})
	if diff := cmp.Diff([]string{"broken MemoryLimited"}, kinds(facts.Findings)); diff != "" || !facts.Broken() {
		t.Errorf("broken %v, findings (-want +got):\n%s", facts.Broken(), diff)
	}
}

func TestIOMMU(t *testing.T) {
	for _, tc := range []struct {
		name    string
		types   []string
		devices []Device
		want    IOMMUMode
	}{
		{"none", nil, nil, IOMMUOff},
		{"passthrough", []string{"identity", "identity"}, nil, IOMMUPassthrough},
		{"translated", []string{"DMA", "identity"}, nil, IOMMUTranslated},
		{"lazily translated", []string{"DMA-FQ"}, nil, IOMMUTranslated},
		{"something else", []string{"unmanaged"}, nil, IOMMUUnknown},
		{"the devices count", []string{"DMA"}, []Device{{IOMMU: "identity"}}, IOMMUPassthrough},
		{"the devices are in no group", []string{"DMA"}, []Device{{}}, IOMMUOff},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHost()
			for i, typ := range tc.types {
				h.write("sys/kernel/iommu_groups/"+string(rune('0'+i))+"/type", typ)
			}
			d := detector{tree: tree{rootfs{h.files}}}
			if got := d.iommu(tc.devices); got.Mode != tc.want {
				t.Errorf("got %+v, want %s", got, tc.want)
			}
		})
	}
}

func TestGPUDirect(t *testing.T) {
	const open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (root@host)"
	const closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.82.01  Wed Oct 27 21:21:55 UTC 2021"
	for _, tc := range []struct {
		name, driver, release, peermem string
		want                           string
		findings                       []string
	}{
		{"open modules", open, "5.14.0-570.el9.x86_64", "", "DMA-BUF (nvidia_peermem is not loaded; DMA-BUF yes: open kernel modules, Linux " +
			"5.14.0-570.el9.x86_64)", nil},
		{"open modules, a later kernel", open, "6.8.0", "", "DMA-BUF (nvidia_peermem is not loaded; DMA-BUF yes: open kernel modules, " +
			"Linux 6.8.0)", nil},
		{"closed modules", closed, "5.14.0", "", "none (nvidia_peermem is not loaded; DMA-BUF no: the GPU driver's kernel modules are not the " +
			"open ones)", []string{"degraded NoGPUDirect"}},
		{"closed modules with peermem", closed, "5.14.0", "470.82.01", "nvidia_peermem (DMA-BUF no: the GPU driver's kernel modules are not " +
			"the open ones)", nil},
		{"both", open, "5.14.0", "580.95.05", "nvidia_peermem and DMA-BUF (DMA-BUF yes: open kernel modules, Linux 5.14.0)", nil},
		{"an old kernel", open, "4.18.0-553.el8", "",
			`unknown (nvidia_peermem is not loaded; DMA-BUF unknown: the kernel is "4.18.0-553.el8", want 5.12 or later, or a vendor's kernel ` +
				`with a backport)`, nil},
		{"no driver", "", "5.14.0", "", "unknown (nvidia_peermem is not loaded; DMA-BUF unknown: /proc/driver/nvidia/version is missing)", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := barcelona(0, names4...)
			delete(h.files, "proc/driver/nvidia/version")
			if tc.driver != "" {
				h.write("proc/driver/nvidia/version", tc.driver)
			}
			h.write("proc/sys/kernel/osrelease", tc.release)
			if tc.peermem != "" {
				h.write("sys/module/nvidia_peermem/version", tc.peermem)
			}
			facts := h.detect(Expected{})
			if got := facts.GPUDirect.String(); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			if diff := cmp.Diff(tc.findings, kinds(facts.Findings)); diff != "" {
				t.Errorf("findings (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRoutes(t *testing.T) {
	h := newHost()
	h.route("net1", "10.0.104.0/24")
	h.files["proc/self/net/route"].Data = append(h.files["proc/self/net/route"].Data,
		"net2\tnonsense\nnet2\t00000000\t00000000\t0201\t0\t0\t0\t00000000\t0\t0\t0\n"...)
	d := detector{tree: tree{rootfs{h.files}}}
	routes := d.readRoutes()
	if got := defaultInterface(routes); got != "eth0" {
		t.Errorf("the default route is by %q, want eth0", got)
	}
	if diff := cmp.Diff([]string{"10.0.104.0/24"}, stringsOf(routesBy(routes, "net1"))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := routesBy(routes, "net2"); got != nil {
		t.Errorf("net2 has %v; a rejecting route and one that cannot be read are none", got)
	}
}

func stringsOf[T interface{ String() string }](values []T) []string {
	var result []string
	for _, value := range values {
		result = append(result, value.String())
	}
	return result
}
