// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"os"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/host"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/process"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/topology"
)

// resize changes the nodes: it removes surplus nodes, renames nodes, and adds new ones. All other nodes continue
// unchanged.
func (u *startup) resize(ctx context.Context, from []topology.Netns) error {
	all := u.options.nodes()
	for i, n := range from {
		if i < len(all) && all[i] == n {
			continue
		}
		if err := u.progress.stage("node "+n.Node+" removed", func() error { return removeNode(ctx, n, i < len(all)) }); err != nil {
			return err
		}
	}
	if len(all) <= len(from) {
		return nil
	}
	return u.progress.stage("network and cgroups of new nodes", func() error {
		for _, n := range all[len(from):] {
			// An interrupted up may have left a part of the node.
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
		for _, n := range all[len(from):] {
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

// removeNode removes a node with everything that runs on it, as if its machine were removed. If the node returns under
// another name, its network and images stay.
func removeNode(ctx context.Context, n topology.Netns, returns bool) error {
	remove := removeHost
	if returns {
		remove = forgetNode
	}
	if err := remove(ctx, n); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"delete", "pods", "--all-namespaces", "--field-selector=spec.nodeName=" + n.Node, "--force", "--grace-period=0", "--wait=false"},
		{"delete", "node", n.Node, "--ignore-not-found"},
	} {
		if err := kubectl(ctx, "", args); err != nil {
			return err
		}
	}
	return nil
}

// forgetNode ends everything on a node, and removes the state of its kubelet and its devices.
func forgetNode(_ context.Context, n topology.Netns) error {
	if err := killNode(n); err != nil {
		return err
	}
	for _, dir := range []string{nodeBinds(n)["/var/lib/kubelet"], topology.RDMADir(n.Name)} {
		if err := host.UnmountBelow(dir); err != nil {
			return err
		}
		if err := os.RemoveAll(dir); err != nil {
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
	// Pods are in the node's cgroup; containerd's shims are only in its network namespace.
	if err := host.KillInside(n); err != nil {
		return err
	}
	if cgroup := nodeCgroup(n); cgroups.Exists(cgroup) {
		return cgroups.KillAll(cgroup)
	}
	return nil
}

func nodeCgroup(n topology.Netns) string { return topology.CgroupRoot + "/" + n.Name }

// removeHost removes everything of a node from this machine, and does nothing if nothing exists.
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
