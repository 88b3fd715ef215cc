// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/gpu"
)

// SysRoot is the path of the tree in containers. SysRootVariable is the environment variable with this path.
const (
	SysRoot         = "/var/run/mlenv/sys-root"
	SysRootVariable = "MLENV_SYS_ROOT"
)

// Devices returns the folder with the device files of a node.
func Devices(dir string) string { return filepath.Join(dir, "dev") }

// devFolder returns the folder with a link to the node's own device files, for containers that see them.
func devFolder(dir string) string { return filepath.Join(dir, "host-dev") }

// Root returns the root folder of a node's devices. Its sys describes them, and the node's GPUs, as the kernel does.
// Every container of the node sees the whole tree, as in shared RDMA namespace mode.
func Root(dir string) string { return filepath.Join(dir, "root") }

// Visible returns the files and folders of the tree that all containers with devices see, by their names below SysRoot. On
// a node with its own devices, privileged containers also see the node's /dev/infiniband.
func Visible(dir string, form Form) map[string]string {
	visible := map[string]string{}
	for _, name := range []string{"sys", "proc/cmdline", "proc/driver/nvidia/version"} {
		visible[name] = filepath.Join(Root(dir), name)
	}
	if form == HostDevices {
		visible["dev"] = devFolder(dir)
	}
	return visible
}

// gids is the length of a port's GID table. A real table has 256 entries.
const gids = 16

const (
	pciDevices = "sys/bus/pci/devices"
	noGID      = "0000:0000:0000:0000:0000:0000:0000:0000"
)

// WriteTree creates the node's tree, or updates it for the faults. It keeps the entries of attachments.
func WriteTree(dir, node string, gpus []gpu.GPU, state State) error {
	t := &tree{root: Root(dir)}
	t.write("proc/cmdline", "BOOT_IMAGE=/vmlinuz root=/dev/sda1 intel_iommu=on iommu=pt")
	t.write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  "+gpu.DriverVersion+
		"  Release Build  (stand-in)")
	for group, f := range state.Layout.Functions(node) {
		t.function(f, group, state.Faults[f.NIC.Name])
		if form := state.Layout.Form; form == HostDevices || form == Shared {
			t.do(t.hostGIDs(f, form == HostDevices))
		}
	}
	// A privileged container has the files of the node's own /dev.
	t.do(os.MkdirAll(devFolder(dir), 0o755))
	if err := os.Symlink("/dev/infiniband", filepath.Join(devFolder(dir), "infiniband")); !errors.Is(err, fs.ErrExist) {
		t.do(err)
	}
	for i, g := range gpus {
		// There is one NIC for each GPU, or for two GPUs, on the same switch.
		nic := NICs[i*len(NICs)/max(len(gpus), len(NICs))]
		t.pci(switchOf(nic)+"01.0", PCIAddress(g), map[string]string{"vendor": "0x10de", "class": "0x030200", "numa_node": strconv.Itoa(nic.NUMA),
			"max_link_speed": "32.0 GT/s PCIe", "max_link_width": "16"})
		t.folder("proc/driver/nvidia/gpus/" + PCIAddress(g))
	}
	return t.err
}

// PCIAddress returns the GPU's address in the form of sysfs: 0000:19:00.0 for NVIDIA's 00000000:19:00.0.
func PCIAddress(g gpu.GPU) string { return strings.ToLower(strings.TrimPrefix(g.BusID, "0000")) }

// switchOf returns the sysfs path prefix of the ports of the PCIe switch that the NIC and its GPUs are on.
func switchOf(nic NIC) string {
	socket := nic.Bus[:1]
	if nic == storage {
		return "pci0000:" + socket + "0/0000:" + socket + "0:01.0/0000:" + socket + "1:"
	}
	return "pci0000:" + socket + "0/0000:" + socket + "0:01.0/0000:" + socket + "1:00.0/0000:" + socket + "2:"
}

// rates are sysfs's names of link rates in Gb/s.
var rates = map[string]string{
	"10": "4X SDR", "25": "1X EDR", "40": "4X QDR", "50": "2X EDR", "100": "4X EDR", "200": "4X HDR", "400": "4X NDR",
}

// The PCI IDs of a ConnectX-7, and of the virtual functions of all cards of its kind.
const (
	connectX7ID = "0x1021"
	virtualID   = "0x101e"
)

func (t *tree) function(f Function, group int, fault Fault) {
	attributes := map[string]string{
		"vendor": "0x15b3", "device": virtualID, "class": "0x020000", "numa_node": strconv.Itoa(f.NIC.NUMA),
		// The link registers of a virtual function are reserved.
		"current_link_speed": "Unknown", "current_link_width": "0", "max_link_speed": "Unknown", "max_link_width": "0",
	}
	if f.Number == 0 {
		attributes["device"] = connectX7ID
		attributes["current_link_speed"], attributes["max_link_speed"] = "32.0 GT/s PCIe", "32.0 GT/s PCIe"
		attributes["current_link_width"], attributes["max_link_width"] = "16", "16"
		if fault == SlowPCIe {
			attributes["current_link_speed"] = "16.0 GT/s PCIe"
		}
	}
	dir := t.pci(switchOf(f.NIC)+"00.0", f.Address(), attributes)
	if f.Number > 0 {
		t.link(path.Join(dir, "physfn"), path.Join(path.Dir(dir), Function{NIC: f.NIC}.Address()))
	}
	iommu := "sys/kernel/iommu_groups/" + strconv.Itoa(group)
	t.write(path.Join(iommu, "type"), "identity")
	t.link(path.Join(dir, "iommu_group"), iommu)

	t.write(path.Join(dir, "infiniband_verbs", f.Uverbs(), "ibdev"), f.Device())
	t.link("sys/class/infiniband_verbs/"+f.Uverbs(), path.Join(dir, "infiniband_verbs", f.Uverbs()))
	t.link("sys/class/infiniband/"+f.Device(), path.Join(dir, "infiniband", f.Device()))
	id, err := strconv.ParseUint(attributes["device"], 0, 16)
	t.do(err)
	t.write(path.Join(dir, "infiniband", f.Device(), "hca_type"), "MT"+strconv.FormatUint(id, 10))
	t.write(path.Join(dir, "infiniband", f.Device(), "fw_ver"), "28.39.1002")
	port := f.port()
	state, physical, rate := "4: ACTIVE", "5: LinkUp", fault.rate()
	if fault == Down {
		// mlx5 reports RoCE without a link like this.
		state, physical, rate = "1: DOWN", "3: Disabled", "40"
	}
	t.write(path.Join(port, "state"), state)
	t.write(path.Join(port, "phys_state"), physical)
	t.write(path.Join(port, "rate"), rate+" Gb/sec ("+rates[rate]+")")
	t.write(path.Join(port, "link_layer"), "Ethernet")
	if !t.exists(path.Join(port, "gids")) {
		for i := range gids {
			t.clearGID(port, strconv.Itoa(i))
		}
	}
}

// hostGIDs writes the GIDs of the addresses that the function's interface has on the node: the link-local one, and IPv4 if it has that. The
// interface itself is not visible in pods.
func (t *tree) hostGIDs(f Function, hasIPv4 bool) error {
	mac, err := net.ParseMAC(f.MAC())
	if err != nil {
		return err
	}
	addresses := []netip.Addr{linkLocal(mac)}
	if hasIPv4 {
		addresses = append(addresses, f.HostAddress().Addr())
	}
	for n, address := range addresses {
		for k, kind := range gidTypes {
			t.setGID(f.port(), len(gidTypes)*n+k, GID(address), kind, f.NIC.Name)
		}
	}
	return nil
}

// dir returns the folder of the function, and port the folder of the only port of its RDMA device.
func (f Function) dir() string {
	return path.Join("sys/devices", switchOf(f.NIC)+"00.0", f.Address())
}

func (f Function) port() string { return path.Join(f.dir(), "infiniband", f.Device(), "ports/1") }

// tree writes small files, and keeps the first error.
type tree struct {
	root string
	err  error
}

func (t *tree) path(name string) string { return filepath.Join(t.root, name) }

func (t *tree) exists(name string) bool {
	_, err := os.Lstat(t.path(name))
	return err == nil
}

func (t *tree) do(err error) {
	if t.err == nil {
		t.err = err
	}
}

func (t *tree) folder(name string) { t.do(os.MkdirAll(t.path(name), 0o755)) }

func (t *tree) write(name, content string) {
	t.folder(path.Dir(name))
	content += "\n"
	if old, err := os.ReadFile(t.path(name)); err == nil && string(old) == content {
		return
	}
	// Write in place, because the folder of a table must contain only its entries.
	t.do(os.WriteFile(t.path(name), []byte(content), 0o644))
}

func (t *tree) remove(name string) { t.do(os.RemoveAll(t.path(name))) }

// link creates a relative link from one path of the tree to another.
func (t *tree) link(name, target string) {
	t.folder(path.Dir(name))
	relative, err := filepath.Rel(path.Dir(name), target)
	t.do(err)
	if err := os.Symlink(relative, t.path(name)); !errors.Is(err, fs.ErrExist) {
		t.do(err)
	}
}

// pci creates a function below its bridges and returns its folder.
func (t *tree) pci(below, address string, attributes map[string]string) string {
	dir := path.Join("sys/devices", below, address)
	for name, content := range attributes {
		t.write(path.Join(dir, name), content)
	}
	t.link(path.Join(pciDevices, address), dir)
	return dir
}

// setGID writes an entry of a port's table.
func (t *tree) setGID(port string, index int, gid, kind, netdev string) {
	name := strconv.Itoa(index)
	t.write(path.Join(port, "gid_attrs/types", name), kind)
	t.write(path.Join(port, "gid_attrs/ndevs", name), netdev)
	t.write(path.Join(port, "gids", name), gid)
}

// clearGID marks an entry as unused. Unused entries have no attributes, for which the kernel returns EINVAL.
func (t *tree) clearGID(port, index string) {
	t.write(path.Join(port, "gids", index), noGID)
	for _, attribute := range []string{"types", "ndevs"} {
		t.remove(path.Join(port, "gid_attrs", attribute, index))
	}
}
