// SPDX-License-Identifier: Apache-2.0

package kueue

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
)

// Queue is a LocalQueue, the zero value for none.
type Queue struct{ Namespace, Name string }

// RackLevel returns the innermost level of the queue's topology whose domains have several nodes, "" if there is none.
func (q Queue) RackLevel(ctx context.Context, client kubernetes.Interface) string {
	levels := q.Levels(ctx, client)
	if len(levels) == 0 {
		return ""
	}
	return levels[len(levels)-1]
}

// Levels returns the node labels of the topology of the queue's flavours, outermost first, without the one that names single
// nodes. They are nil if a flavour has no topology or another one, and if the topology cannot be read.
func (q Queue) Levels(ctx context.Context, client kubernetes.Interface) []string {
	if q.Name == "" {
		return nil
	}
	var queue struct {
		Spec struct{ ClusterQueue string }
		// Kueue before 0.15 has the flavours here, which needs no right outside the namespace.
		Status struct {
			Flavors []struct {
				Topology struct{ Levels []string }
			}
		}
	}
	if !GetNewest(ctx, client, &queue, Group, "namespaces", q.Namespace, "localqueues", q.Name) {
		return nil
	}
	var topologies [][]string
	for _, flavour := range queue.Status.Flavors {
		topologies = append(topologies, flavour.Topology.Levels)
	}
	if len(topologies) == 0 {
		topologies = flavourTopologies(ctx, client, queue.Spec.ClusterQueue)
	}
	for _, levels := range topologies {
		if !slices.Equal(levels, topologies[0]) {
			return nil
		}
	}
	if len(topologies) == 0 {
		return nil
	}
	return slices.DeleteFunc(topologies[0], func(label string) bool { return label == corev1.LabelHostname })
}

// flavourTopologies returns the levels of each flavour of a ClusterQueue.
func flavourTopologies(ctx context.Context, client kubernetes.Interface, clusterQueue string) [][]string {
	var queue struct {
		Spec struct {
			ResourceGroups []struct{ Flavors []struct{ Name string } }
		}
	}
	GetNewest(ctx, client, &queue, Group, "clusterqueues", clusterQueue)
	var topologies [][]string
	for _, group := range queue.Spec.ResourceGroups {
		for _, of := range group.Flavors {
			var flavour struct{ Spec struct{ TopologyName string } }
			var topology struct {
				Spec struct{ Levels []struct{ NodeLabel string } }
			}
			if GetNewest(ctx, client, &flavour, Group, "resourceflavors", of.Name) && flavour.Spec.TopologyName != "" {
				GetNewest(ctx, client, &topology, Group, "topologies", flavour.Spec.TopologyName)
			}
			var levels []string
			for _, level := range topology.Spec.Levels {
				levels = append(levels, level.NodeLabel)
			}
			topologies = append(topologies, levels)
		}
	}
	return topologies
}
