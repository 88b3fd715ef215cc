// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
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

// gidTypes are the types of GIDs. Every address has a GID of each type.
var gidTypes = []string{"IB/RoCE v1", "RoCE v2"}

// Attach writes the GIDs of an interface of the function into the tree, beginning with the link-local one, as the kernel does when the
// interface gets its addresses: into the first entries that are unused. A virtual function has one interface. Its previous owner loses it,
// because the kubelet can allocate the function again before the network of the previous pod is removed.
func (f Function) Attach(dir string, i Interface) error {
	return f.change(dir, func(t *tree, owners string) error {
		if f.Number > 0 {
			if err := f.release(t, owners, ""); err != nil {
				return err
			}
			t.write(path.Join(f.dir(), "net", i.Name, "mtu"), strconv.Itoa(i.MTU))
			t.write(path.Join(f.dir(), "net", i.Name, "address"), i.MAC.String())
		}
		index := 0
		for _, address := range append([]netip.Addr{linkLocal(i.MAC)}, i.Addresses...) {
			for _, kind := range gidTypes {
				for index < gids && t.exists(path.Join(f.port(), "gid_attrs/types", strconv.Itoa(index))) {
					index++
				}
				if index == gids {
					return fmt.Errorf("attaching %s to %s: its table of %d GIDs is full", i.Owner, f.Device(), gids)
				}
				t.setGID(f.port(), index, GID(address), kind, i.Name)
				t.do(os.WriteFile(filepath.Join(owners, strconv.Itoa(index)), []byte(i.Owner), 0o644))
			}
		}
		return nil
	})
}

// Detach removes the entries of Attach for that owner.
func (f Function) Detach(dir, owner string) error {
	return f.change(dir, func(t *tree, owners string) error { return f.release(t, owners, owner) })
}

// change changes the function's part of the tree while no other plugin does. owners is the folder with a file for each GID of a pod's
// interface, which has the interface's owner.
func (f Function) change(dir string, change func(t *tree, owners string) error) error {
	owners := filepath.Join(dir, "gid-owners", f.Address())
	if err := os.MkdirAll(owners, 0o755); err != nil {
		return err
	}
	lock, err := os.Open(owners)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	t := &tree{root: Root(dir)}
	return errors.Join(change(t, owners), t.err)
}

// release removes the entries of an owner, or of any owner for "".
func (f Function) release(t *tree, owners, owner string) error {
	entries, err := os.ReadDir(owners)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		file := filepath.Join(owners, entry.Name())
		has, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if owner != "" && string(has) != owner {
			continue
		}
		t.remove(path.Join(f.dir(), "net"))
		t.clearGID(f.port(), entry.Name())
		t.do(os.Remove(file))
	}
	return nil
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
