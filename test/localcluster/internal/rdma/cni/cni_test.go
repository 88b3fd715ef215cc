// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vishvananda/netlink"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/rdma"
)

func TestAddRefusesInTheRealOnesWords(t *testing.T) {
	for _, test := range []struct{ name, config, want string }{
		{"no JSON", `{`, "SRIOV-CNI failed to load netconf: LoadConf(): failed to load netconf: "},
		{"no device", rdma.NICs[0].AttachmentConfig(rdma.SRIOV), "SRIOV-CNI failed to load netconf: LoadConf(): VF pci addr is required"},
		{"no such device", `{"deviceID":"0000:ff:00.2"}`, `the device "0000:ff:00.2" is no virtual function of node-1`},
		{"a physical function", `{"deviceID":"0000:03:00.0"}`, `the device "0000:03:00.0" is no virtual function of node-1`},
		{"no namespace", `{"deviceID":"0000:03:00.2"}`, `failed to open netns "/nowhere"`},
	} {
		err := plugin{node: "node-1", dir: t.TempDir()}.add(&skel.CmdArgs{StdinData: []byte(test.config), Netns: "/nowhere"})
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q in it", test.name, err, test.want)
		}
	}
}

// DEL succeeds even if nothing exists.
func TestDelOfNothing(t *testing.T) {
	args := &skel.CmdArgs{ContainerID: "a", IfName: "net1", Netns: "/nowhere", StdinData: []byte(`{"deviceID":"0000:03:00.2"}`)}
	if err := (plugin{node: "node-1", dir: t.TempDir()}).del(args); err != nil {
		t.Error(err)
	}
}

func TestInterfaceOf(t *testing.T) {
	attributes := netlink.NewLinkAttrs()
	attributes.HardwareAddr, attributes.MTU = net.HardwareAddr{2, 0, 0, 0, 0, 1}, 9000
	result := &current.Result{IPs: []*current.IPConfig{{Address: net.IPNet{IP: net.ParseIP("10.0.103.7"), Mask: net.CIDRMask(24, 32)}}}}
	got := interfaceOf(&skel.CmdArgs{ContainerID: "a", IfName: "net1"}, &attributes, result)
	want := rdma.Interface{Owner: "a net1", Name: "net1", MAC: attributes.HardwareAddr, MTU: 9000,
		Addresses: []netip.Addr{netip.MustParseAddr("10.0.103.7")}}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
