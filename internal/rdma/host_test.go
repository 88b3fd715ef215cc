// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"encoding/binary"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"path"
	"strconv"
	"strings"
	"syscall"
	"testing/fstest"
)

// host writes the files of a machine as the kernel has them, links included.
type host struct {
	files      fstest.MapFS
	environ    []string
	interfaces []Interface
}

// unmapped is the content of a file for which the kernel answers EINVAL.
const unmapped = "EINVAL"

// rootfs returns a host's files.
type rootfs struct{ files fstest.MapFS }

func (r rootfs) Open(name string) (fs.File, error) {
	file, err := r.files.Open(name)
	if err != nil {
		return nil, err
	}
	if info, err := file.Stat(); err == nil && info.Mode().IsRegular() {
		content, err := io.ReadAll(file)
		if err == nil && string(content) == unmapped {
			return invalid{file}, nil
		}
		return r.files.Open(name)
	}
	return file, nil
}

func (r rootfs) ReadLink(name string) (string, error)      { return r.files.ReadLink(name) }
func (r rootfs) Lstat(name string) (fs.FileInfo, error)    { return r.files.Lstat(name) }
func (r rootfs) ReadDir(dir string) ([]fs.DirEntry, error) { return r.files.ReadDir(dir) }

type invalid struct{ fs.File }

func (invalid) Read([]byte) (int, error) { return 0, syscall.EINVAL }

// newHost returns a machine without RDMA, in whose pods IPC_LOCK is effective.
func newHost() *host {
	h := &host{files: fstest.MapFS{}, interfaces: []Interface{{Name: "eth0", Index: 2, MTU: 1400, Addresses: prefixes("10.128.1.7/23")}}}
	h.write("proc/cmdline", "BOOT_IMAGE=(hd0) root=/dev/sda iommu=pt intel_iommu=on quiet")
	h.write("proc/self/uid_map", "         0          0 4294967295")
	h.write("proc/sys/kernel/osrelease", "5.14.0-570.el9.x86_64")
	h.memlock("8388608", "8388608", "00000000000045fb")
	h.route("eth0", "0.0.0.0/0")
	h.route("eth0", "10.128.0.0/23")
	return h
}

func (h *host) write(name, content string) {
	h.files[name] = &fstest.MapFile{Data: []byte(content + "\n"), Mode: 0o444}
	if content == unmapped {
		h.files[name].Data = []byte(unmapped)
	}
}

// overwrite changes the only file whose path ends with end.
func (h *host) overwrite(end, content string) {
	for name := range h.files {
		if strings.HasSuffix(name, end) {
			h.write(name, content)
		}
	}
}

// link creates a relative link, as sysfs has.
func (h *host) link(name, target string) {
	up := strings.Repeat("../", strings.Count(name, "/"))
	h.files[name] = &fstest.MapFile{Data: []byte(up + target), Mode: fs.ModeSymlink | 0o777}
}

func (h *host) memlock(soft, hard, capEff string) {
	h.write("proc/self/limits", fmt.Sprintf("%-26s%-21s%-21s%-10s\n%-26s%-21s%-21s%-10s", "Limit", "Soft Limit", "Hard Limit", "Units",
		"Max locked memory", soft, hard, "bytes"))
	h.write("proc/self/status", "Name:\tmlenv-agent\nCapPrm:\t0000000000000000\nCapEff:\t"+capEff+"\nCapBnd:\t0000000000000000")
}

// route adds a line to /proc/self/net/route.
func (h *host) route(netdev, to string) {
	const name = "proc/self/net/route"
	if h.files[name] == nil {
		h.write(name, "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT")
	}
	prefix := netip.MustParsePrefix(to)
	number := func(a netip.Addr) uint32 {
		bytes := a.As4()
		return binary.NativeEndian.Uint32(bytes[:])
	}
	var mask [4]byte
	binary.BigEndian.PutUint32(mask[:], uint32(0xffffffff<<(32-uint64(prefix.Bits()))))
	h.files[name].Data = fmt.Appendf(h.files[name].Data, "%s\t%08X\t%08X\t0001\t0\t0\t0\t%08X\t0\t0\t0\n", netdev, number(prefix.Addr()), 0,
		number(netip.AddrFrom4(mask)))
}

func prefixes(texts ...string) []netip.Prefix {
	var result []netip.Prefix
	for _, text := range texts {
		result = append(result, netip.MustParsePrefix(text))
	}
	return result
}

// pci adds a function below its bridges, as in "pci0000:00/0000:00:01.0".
func (h *host) pci(below, address string, attributes map[string]string) string {
	dir := path.Join("sys/devices", below, address)
	for name, content := range attributes {
		h.write(path.Join(dir, name), content)
	}
	h.link(path.Join("sys/bus/pci/devices", address), dir)
	return dir
}

func (h *host) gpu(below, address string, numa int) {
	h.pci(below, address, map[string]string{"vendor": "0x10de", "class": "0x030200", "numa_node": strconv.Itoa(numa)})
}

// nic is an RDMA device. Its zero values stand for a virtual function of a 400 Gb/s RoCE card at PCIe 5.0 x16, which is up
// and in passthrough.
type nic struct {
	name    string
	address string // of the function, as 0000:03:00.2; the card's own address ends in 0
	below   string // its bridges
	netdev  string
	ip      string // with the length of its subnet, "" for none
	uverbs  string
	numa    int

	physical             bool
	infiniBand           bool
	state, physicalState string
	rate                 string
	speed, maxSpeed      string
	width                string
	group                string
	noFile               bool   // in /dev/infiniband
	hostNetdev           bool   // not in the pod's namespace
	auxiliary            string // name of a scalable function of the card
	guid                 string // of the node
	firmware             string
	gids                 map[int][3]string // GID, type and netdev by index, in place of the usual ones
}

func orDefault(value, usual string) string {
	if value == "" {
		return usual
	}
	return value
}

// mapped returns the form of an IPv4 address in a GID of sysfs.
func mapped(ip string) string {
	a := netip.MustParseAddr(ip).As4()
	return fmt.Sprintf("0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x", a[0], a[1], a[2], a[3])
}

// add adds the device to the machine. That does not give it to the pod, except by its file.
func (h *host) add(n nic) {
	n.below = orDefault(n.below, "pci0000:"+n.address[5:7]+"/0000:00:01.0")
	card := n.address[:len(n.address)-1] + "0"
	link := map[string]string{
		"current_link_speed": orDefault(n.speed, "32.0 GT/s PCIe"), "current_link_width": orDefault(n.width, "16"),
		"max_link_speed": orDefault(n.maxSpeed, "32.0 GT/s PCIe"), "max_link_width": "16",
		"vendor": "0x15b3", "device": "0x1021", "class": "0x020000", "numa_node": strconv.Itoa(n.numa),
	}
	dir := h.pci(n.below, card, link)
	if !n.physical {
		dir = h.pci(n.below, n.address, map[string]string{
			"current_link_speed": "Unknown", "current_link_width": "0", "max_link_speed": "Unknown", "max_link_width": "0",
			"vendor": "0x15b3", "device": "0x101e", "class": "0x020000", "numa_node": strconv.Itoa(n.numa),
		})
		h.link(path.Join(dir, "physfn"), path.Join("sys/devices", n.below, card))
	}
	if n.auxiliary != "" {
		dir = path.Join(dir, n.auxiliary)
		h.link(path.Join("sys/bus/auxiliary/devices", n.auxiliary), dir)
	}
	group := "sys/kernel/iommu_groups/" + strconv.Itoa(len(h.files))
	h.write(path.Join(group, "type"), orDefault(n.group, "identity"))
	h.link(path.Join(dir, "iommu_group"), group)

	ib := path.Join(dir, "infiniband", n.name)
	h.link("sys/class/infiniband/"+n.name, ib)
	h.write(path.Join(dir, "infiniband_verbs", n.uverbs, "ibdev"), n.name)
	h.link("sys/class/infiniband_verbs/"+n.uverbs, path.Join(dir, "infiniband_verbs", n.uverbs))
	if !n.noFile {
		h.write("dev/infiniband/"+n.uverbs, "")
	}
	port := path.Join(ib, "ports/1")
	h.write(path.Join(port, "state"), orDefault(n.state, "4: ACTIVE"))
	h.write(path.Join(port, "phys_state"), orDefault(n.physicalState, "5: LinkUp"))
	h.write(path.Join(port, "rate"), orDefault(n.rate, "400 Gb/sec (4X NDR)"))
	layer := Ethernet
	if n.infiniBand {
		layer = InfiniBand
	}
	h.write(path.Join(port, "link_layer"), layer)
	// The kernel names a virtual function by its own ID.
	h.write(path.Join(ib, "hca_type"), map[bool]string{true: "MT4129", false: "MT4126"}[n.physical])
	h.write(path.Join(ib, "fw_ver"), orDefault(n.firmware, "28.39.1002"))
	h.write(path.Join(ib, "node_guid"), orDefault(n.guid, "a088:c203:0095:29dc"))
	h.netdev(n, dir)
	h.gids(port, n.table())
}

// netdev adds the interface of a device.
func (h *host) netdev(n nic, dir string) {
	if n.netdev == "" || n.hostNetdev {
		return
	}
	h.write(path.Join(dir, "net", n.netdev, "mtu"), "9000")
	h.link("sys/class/net/"+n.netdev, path.Join(dir, "net", n.netdev))
	i := Interface{Name: n.netdev, Index: len(h.interfaces) + 2, MTU: 9000}
	if n.ip != "" {
		i.Addresses = prefixes(n.ip)
		h.route(n.netdev, i.Addresses[0].Masked().String())
	}
	h.interfaces = append(h.interfaces, i)
}

// table returns the device's GID table: each address as RoCE v1 and v2.
func (n nic) table() map[int][3]string {
	local := "fe80:0000:0000:0000:f08e:cbff:fe95:29dc"
	switch {
	case n.gids != nil:
		return n.gids
	case n.infiniBand:
		return map[int][3]string{0: {"fe80:0000:0000:0000:a088:c203:0095:29dc", RoCEv1, unmapped}}
	case n.ip == "":
		return map[int][3]string{0: {local, RoCEv1, n.netdev}, 1: {local, RoCEv2, n.netdev}}
	}
	address := mapped(netip.MustParsePrefix(n.ip).Addr().String())
	return map[int][3]string{0: {local, RoCEv1, n.netdev}, 1: {local, RoCEv2, n.netdev}, 2: {address, RoCEv1, n.netdev},
		3: {address, RoCEv2, n.netdev}}
}

// gids writes a table of 16 entries. Unused entries are zero in one kernel, and unreadable in another.
func (h *host) gids(port string, table map[int][3]string) {
	for i := range 16 {
		entry, ok := table[i]
		if !ok {
			entry = [3]string{"0000:0000:0000:0000:0000:0000:0000:0000", unmapped, unmapped}
			if i%2 == 1 {
				entry[0] = unmapped
			}
		}
		index := strconv.Itoa(i)
		h.write(path.Join(port, "gids", index), entry[0])
		h.write(path.Join(port, "gid_attrs/types", index), entry[1])
		h.write(path.Join(port, "gid_attrs/ndevs", index), entry[2])
	}
}

// allot gives a device to the pod as the SR-IOV device plugin does.
func (h *host) allot(resource, address, info string) {
	name := "PCIDEVICE_" + strings.ToUpper(strings.NewReplacer(".", "_", "/", "_").Replace(resource))
	h.environ = append(h.environ, name+"="+address)
	if info != "" {
		h.environ = append(h.environ, name+`_INFO={"`+address+`":{"generic":{"deviceID":"`+address+`"}`+info+`}}`)
	}
}

// rdmaInfo returns what plugins since version 3.10 report about a device.
func rdmaInfo(name, uverbs string) string {
	return `,"rdma":{"rdma_cm":"/dev/infiniband/rdma_cm","uverbs":"/dev/infiniband/` + uverbs + `","rdma_dev":"` + name + `"}`
}

func (h *host) detect(expected Expected) Facts {
	return Detect(Options{
		Root: rootfs{h.files}, Environ: h.environ, Expected: expected,
		Interfaces: func() ([]Interface, error) { return h.interfaces, nil },
	})
}

// rails4 returns the devices of a node as on Barcelona: a virtual function of each of four cards.
func rails4(node int, names ...string) []nic {
	var nics []nic
	for i, bus := range []string{"03", "23", "a3", "c3"} {
		nics = append(nics, nic{
			name: names[i], uverbs: "uverbs" + strconv.Itoa(i+6), address: "0000:" + bus + ":00.2",
			netdev: "net" + strconv.Itoa(i+1), ip: fmt.Sprintf("10.0.%d.%d/24", 103+i, 7+node), numa: i / 2,
		})
	}
	return nics
}

// barcelona returns a node with four rails, which the device plugin gives to the pod, and four GPUs.
func barcelona(node int, names ...string) *host {
	h := newHost()
	for i, n := range rails4(node, names...) {
		h.add(n)
		h.allot(fmt.Sprintf("openshift.io/eno%dnp0rdma", 5+i), n.address, rdmaInfo(n.name, n.uverbs))
		h.gpu("pci0000:"+n.address[5:7]+"/0000:00:01.0", "0000:"+n.address[5:7]+":01.0", n.numa)
	}
	h.write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  "+
		"(root@host)\nGCC version:  gcc version 11.5.0")
	return h
}
