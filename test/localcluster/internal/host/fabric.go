// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/rdma"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/topology"
)

// fabricMTU is the MTU of the rails: jumbo frames, as on the clusters.
const fabricMTU = " mtu 9000"

// FabricUp creates the rails: a switch for each NIC, with a cable to every node, in a namespace of their own. The
// switches are not connected to each other.
func FabricUp(ctx context.Context, nodes []topology.Netns) error {
	fabric := topology.Fabric()
	if _, err := os.Stat(fabric.Path()); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := ip(ctx, "netns add "+fabric.SystemName()); err != nil {
		return err
	}
	var switches []string
	for _, nic := range rdma.NICs {
		switches = append(switches, "link add "+nic.Name+fabricMTU+" type bridge", "link set "+nic.Name+" up")
	}
	if err := ipIn(ctx, fabric.SystemName(), switches...); err != nil {
		return err
	}
	for _, node := range nodes {
		if err := Plug(ctx, node); err != nil {
			return err
		}
	}
	return nil
}

// Plug gives a node its NICs, each with a cable to its switch. The kernel removes them with the node's namespace.
func Plug(ctx context.Context, node topology.Netns) error {
	var cables, up []string
	for _, nic := range rdma.NICs {
		cables = append(cables,
			"link add "+node.Port(nic.Name)+fabricMTU+" type veth peer name "+nic.Name+fabricMTU+" netns "+node.SystemName(),
			"link set "+node.Port(nic.Name)+" master "+nic.Name+" up")
		up = append(up, "link set "+nic.Name+" up")
	}
	if err := ipIn(ctx, topology.Fabric().SystemName(), cables...); err != nil {
		return err
	}
	return ipIn(ctx, node.SystemName(), up...)
}
