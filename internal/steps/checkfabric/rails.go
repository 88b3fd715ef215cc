// SPDX-License-Identifier: Apache-2.0

package checkfabric

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/fabric"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/nccl"
)

type rail struct {
	report fabric.Rail
	ports  []rdma.RailPort
	// gpus are, for each node, the place of the GPU that drives the rail when it is measured by itself.
	gpus []int
}

// rails returns the networks with ports of all nodes. On InfiniBand several ports of a node are on one
// network: each is a rail, in the order of the devices.
func (c *Check) rails() (rails []rail) {
	for _, network := range rdma.Rails(c.devices) {
		if !network.Common() {
			continue
		}
		width := len(network.Ports[0])
		for _, ports := range network.Ports {
			width = min(width, len(ports))
		}
		for k := range width {
			next := rail{report: fabric.Rail{Network: network.String()}}
			for _, ports := range network.Ports {
				next.ports = append(next.ports, ports[k])
			}
			next.report.Name = cmp.Or(next.ports[0].Port.Netdev, next.ports[0].Device.Name)
			rails = append(rails, next)
		}
	}
	return rails
}

// assignGPUs chooses the GPU of each node that drives each rail: the nearest one, and of equally near ones the least used.
func (c *Check) assignGPUs(rails []rail) {
	for node := range c.Nodes {
		used := make([]int, c.report.RanksPerNode)
		for k := range rails {
			distances := rails[k].ports[node].Device.GPUs
			best := 0
			for gpu := range used {
				nearer := distances[c.gpu(node, gpu)].Compare(distances[c.gpu(node, best)])
				if nearer < 0 || nearer == 0 && used[gpu] < used[best] {
					best = gpu
				}
			}
			used[best]++
			rails[k].gpus = append(rails[k].gpus, best)
		}
	}
}

// gpu returns the PCI address of a node's GPU, empty if it is not known.
func (c *Check) gpu(node, place int) string {
	if gpus := c.facts[node].GPUs; place < len(gpus) {
		return gpus[place].PCI
	}
	return ""
}

// expectedOf returns what a rail's slowest port should reach, driven by its GPU. Nothing is expected of a rail that is far from the GPU
// on some node.
func (c *Check) expectedOf(r rail) (least rdma.BytesPerSecond, far bool) {
	for node, port := range r.ports {
		gpu := c.gpu(node, r.gpus[node])
		if port.Device.GPUs[gpu].CrossesHostBridge() {
			return 0, true
		}
		if b := c.devices[node].RailBandwidth(port, gpu); node == 0 || b < least {
			least = b
		}
	}
	return least, false
}

// turns returns groups of rails, by their places, that can be measured at once: no two of a group share a GPU on any node.
func turns(rails []rail) (groups [][]int) {
	for k := range rails {
		shares := func(other int) bool {
			for node, gpu := range rails[k].gpus {
				if rails[other].gpus[node] == gpu {
					return true
				}
			}
			return false
		}
		i := slices.IndexFunc(groups, func(group []int) bool { return !slices.ContainsFunc(group, shares) })
		if i < 0 {
			groups, i = append(groups, nil), len(groups)
		}
		groups[i] = append(groups[i], k)
	}
	return groups
}

func interfaces(rails []rail, node int) (names []string) {
	for _, r := range rails {
		names = append(names, r.ports[node].Port.Netdev)
	}
	return names
}

// limitToRail limits a node's ranks to the rail. They meet on the pod's interface, so that a dead rail does not keep them from starting.
func (c *Check) limitToRail(r rail, node int, input *fabric.Input, env map[string]string) {
	port := r.ports[node]
	if input.Backend == fabric.Gloo {
		env[nccl.GlooInterface] = port.Port.Netdev
		return
	}
	nccl.UseRail(env, port.HCA(), c.devices[node].PodInterface)
}

// measureRails measures each rail by one rank a node, on its nearest GPU: NCCL reads the devices that it may use only
// once in a process. Rails that share a GPU take turns.
func (c *Check) measureRails(ctx context.Context, rails []rail) error {
	const most = 0.9 // of the time left: a rail that hangs is looked into
	groups := turns(rails)
	sizes, _ := fabric.MessageSizes(c.report.Backend, false)
	for i, group := range groups {
		bound := max(c.shareOfTimeLeft(most)/time.Duration(len(groups)-i+1), c.hangTime())
		if c.shareOfTimeLeft(most) < bound {
			c.Log.Info("There is no time left to measure all rails one by one.")
			return nil
		}
		var jobs []*job
		for _, k := range group {
			input := fabric.Input{RanksPerNode: 1, Backend: c.report.Backend, Sizes: sizes[len(sizes)-2:]}
			j := c.newJob(fmt.Sprintf("rail-%d", k), c.places(), input, bound)
			j.own = append(j.own, func(node int, input *fabric.Input, env map[string]string) {
				input.FirstDevice = rails[k].gpus[node]
				c.limitToRail(rails[k], node, input, env)
			})
			jobs = append(jobs, j)
		}
		outcomes, err := c.together(ctx, jobs)
		if err != nil {
			return err
		}
		for j, out := range outcomes {
			if !out.done && out.conclusive() {
				out.rail = group[j]
				return c.isolate(ctx, rails, out)
			}
			for _, m := range out.measurements {
				m.Scope, m.Rail = fabric.ByRail, group[j]
				c.report.Measurements = append(c.report.Measurements, m)
			}
		}
	}
	return nil
}
