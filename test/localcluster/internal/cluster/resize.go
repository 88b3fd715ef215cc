package cluster

import (
	"context"
	"os"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/host"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/process"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/topology"
)

// resize changes the number of nodes: it removes the last nodes, or adds new ones. All others continue unchanged.
func (u *startup) resize(ctx context.Context, from int) error {
	to := u.options.Nodes
	all := topology.Nodes(max(from, to))
	if to < from {
		return u.progress.stage("nodes removed", func() error {
			for _, n := range all[to:] {
				if err := removeNode(ctx, n); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return u.progress.stage("network and cgroups of new nodes", func() error {
		for _, n := range all[from:] {
			// An up that was cut off may have left half of it.
			if err := removeHost(ctx, n); err != nil {
				return err
			}
		}
		network := host.Network{Namespaces: append(all, topology.Control())}
		if err := network.Up(ctx); err != nil {
			return err
		}
		cgroups, err := host.DetectCgroups()
		if err != nil {
			return err
		}
		for _, n := range all[from:] {
			if err := host.Plug(ctx, n); err != nil {
				return err
			}
			if err := cgroups.Create(nodeCgroup(n)); err != nil {
				return err
			}
		}
		return nil
	})
}

// removeNode ends a node with everything that runs on it, as when its machine is taken away.
func removeNode(ctx context.Context, n topology.Netns) error {
	if err := removeHost(ctx, n); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"delete", "pods", "--all-namespaces", "--field-selector=spec.nodeName=" + n.Name, "--force", "--grace-period=0", "--wait=false"},
		{"delete", "node", n.Name, "--ignore-not-found"},
	} {
		if err := kubectl(ctx, "", args); err != nil {
			return err
		}
	}
	return nil
}

// killNode ends every process of a node at once.
func killNode(n topology.Netns) error {
	components, err := process.List()
	if err != nil {
		return err
	}
	for _, c := range components {
		if process.NodeOf(c.Name) == n.Name {
			if err := process.Stop(c.Name); err != nil {
				return err
			}
		}
	}
	cgroups, err := host.DetectCgroups()
	if err != nil {
		return err
	}
	// Pods have a cgroup of their node's; containerd's shims are in its network namespace alone.
	if err := host.KillInside(n); err != nil {
		return err
	}
	if cgroup := nodeCgroup(n); cgroups.Exists(cgroup) {
		return cgroups.KillAll(cgroup)
	}
	return nil
}

func nodeCgroup(n topology.Netns) string { return topology.CgroupRoot + "/" + n.Name }

// removeHost takes away what this machine has of a node, and does nothing if it has nothing.
func removeHost(ctx context.Context, n topology.Netns) error {
	if err := killNode(n); err != nil {
		return err
	}
	cgroups, err := host.DetectCgroups()
	if err != nil {
		return err
	}
	if err := host.UnmountBelow(n.Dir()); err != nil {
		return err
	}
	if err := host.RemoveNamespace(ctx, n); err != nil {
		return err
	}
	if err := cgroups.Remove(nodeCgroup(n)); err != nil {
		return err
	}
	return os.RemoveAll(n.Dir())
}
