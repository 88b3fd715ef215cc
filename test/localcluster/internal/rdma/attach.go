// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"strconv"
)

// Interface is a function's network interface in a pod.
type Interface struct {
	// Owner identifies the interface among all pods' interfaces.
	Owner     string
	Name      string
	MAC       net.HardwareAddr
	MTU       int
	Addresses []netip.Addr
}

// The types of GIDs. Every address has a GID of each type.
const (
	roceV1 = "IB/RoCE v1"
	roceV2 = "RoCE v2"
)

// Attach writes the GIDs of a function's interface into the tree, beginning with the link-local one, as the kernel does
// when the interface gets its addresses.
func (f Function) Attach(dir string, i Interface) error {
	if err := os.MkdirAll(filepath.Dir(f.owner(dir)), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(f.owner(dir), []byte(i.Owner), 0o644); err != nil {
		return err
	}
	t := &tree{root: Root(dir)}
	t.detach(f)
	t.write(path.Join(f.dir(), "net", i.Name, "mtu"), strconv.Itoa(i.MTU))
	t.write(path.Join(f.dir(), "net", i.Name, "address"), i.MAC.String())
	t.gids(f, i.Name, append([]netip.Addr{linkLocal(i.MAC)}, i.Addresses...))
	return t.err
}

// gids writes the GIDs of an interface's addresses.
func (t *tree) gids(f Function, netdev string, addresses []netip.Addr) {
	for n, address := range addresses {
		for k, kind := range []string{roceV1, roceV2} {
			t.setGID(f.port(), 2*n+k, GID(address), kind, netdev)
		}
	}
}

// Detach removes the entries of Attach for that owner. The function may already have another owner, because the kubelet
// can allocate it again before the network of the previous pod is removed.
func (f Function) Detach(dir, owner string) error {
	has, err := os.ReadFile(f.owner(dir))
	if errors.Is(err, fs.ErrNotExist) || err == nil && string(has) != owner {
		return nil
	}
	if err != nil {
		return err
	}
	t := &tree{root: Root(dir)}
	t.detach(f)
	t.do(os.Remove(f.owner(dir)))
	return t.err
}

// owner returns the path of the file with the owner of the function's interface.
func (f Function) owner(dir string) string { return filepath.Join(dir, "owners", f.Address()) }

func (t *tree) detach(f Function) {
	t.remove(path.Join(f.dir(), "net"))
	t.clearGIDs(f.port())
}

// GID returns the address in the form of sysfs: eight groups of four digits.
func GID(address netip.Addr) string {
	b := address.As16()
	return fmt.Sprintf("%x:%x:%x:%x:%x:%x:%x:%x", b[0:2], b[2:4], b[4:6], b[6:8], b[8:10], b[10:12], b[12:14], b[14:16])
}

// linkLocal returns the link-local address for the MAC (RFC 4291, appendix A).
func linkLocal(mac net.HardwareAddr) netip.Addr {
	if len(mac) != 6 {
		return netip.MustParseAddr("fe80::")
	}
	return netip.AddrFrom16([16]byte{0xfe, 0x80, 8: mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]})
}
