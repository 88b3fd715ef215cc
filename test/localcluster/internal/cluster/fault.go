// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/host"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/topology"
)

// StopNode ends everything that runs on a node at once, like a loss of power. StartNode or any Up starts the node
// again.
func StopNode(name string) error {
	return onNode(name, killNode)
}

// StartNode starts a stopped node, and returns when it is ready.
func StartNode(ctx context.Context, name string, out io.Writer) error {
	options, _, err := storedWith(name)
	if err != nil {
		return err
	}
	return Up(ctx, options, Extras{}, out)
}

// CutNode cuts a node off the cluster's network, in both directions, until JoinNode. What runs on the node continues; its
// rails stay.
func CutNode(ctx context.Context, name string) error {
	return onNode(name, func(n topology.Netns) error { return host.Cable(ctx, n, false) })
}

// JoinNode connects the node again after CutNode.
func JoinNode(ctx context.Context, name string) error {
	return onNode(name, func(n topology.Netns) error { return host.Cable(ctx, n, true) })
}

func onNode(name string, do func(topology.Netns) error) error {
	_, node, err := storedWith(name)
	if err != nil {
		return err
	}
	cacheDir, err := topology.CacheDir()
	if err != nil {
		return err
	}
	unlock, err := lock(cacheDir)
	if err != nil {
		return err
	}
	defer unlock()
	return do(node)
}

// storedWith returns the options of the present cluster, and the node of that name.
func storedWith(name string) (Options, topology.Netns, error) {
	options, ok, err := Stored()
	if err != nil {
		return options, topology.Netns{}, err
	}
	if !ok {
		return options, topology.Netns{}, errors.New("there is no cluster; localcluster up makes one")
	}
	node, err := nodeNamed(options.nodes(), name)
	return options, node, err
}

func nodeNamed(nodes []topology.Netns, name string) (topology.Netns, error) {
	for _, node := range nodes {
		if node.Name == name || node.Node == name {
			return node, nil
		}
	}
	return topology.Netns{}, fmt.Errorf("no node is named %q; the cluster has node-1 to node-%d", name, len(nodes))
}
