package host

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/rdma"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/topology"
)

// fabricMTU is that of the rails: jumbo frames, as on the clusters.
const fabricMTU = " mtu 9000"

// FabricUp makes the rails: in a namespace of their own a switch for each NIC, with
// a cable to every node. Nothing joins one switch to another.
func FabricUp(ctx context.Context, nodes []topology.Netns) error {
	fabric := topology.Fabric()
	if _, err := os.Stat(fabric.Path()); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := ip(ctx, "netns add "+fabric.SystemName()); err != nil {
		return err
	}
	var inside []string
	for _, nic := range rdma.NICs {
		inside = append(inside, "link add "+nic.Name+fabricMTU+" type bridge", "link set "+nic.Name+" up")
		for _, node := range nodes {
			inside = append(inside,
				"link add "+node.Port(nic.Name)+fabricMTU+" type veth peer name "+nic.Name+fabricMTU+" netns "+node.SystemName(),
				"link set "+node.Port(nic.Name)+" master "+nic.Name+" up")
		}
	}
	if err := ipIn(ctx, fabric.SystemName(), inside...); err != nil {
		return err
	}
	for _, node := range nodes {
		var up []string
		for _, nic := range rdma.NICs {
			up = append(up, "link set "+nic.Name+" up")
		}
		if err := ipIn(ctx, node.SystemName(), up...); err != nil {
			return err
		}
	}
	return nil
}
