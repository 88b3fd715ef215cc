package checkfabric

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/fabric"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/nccl"
)

// rail is a network that all nodes have, with each node's port on it.
type rail struct {
	report fabric.Rail
	ports  []rdma.RailPort
}

// rails are those that join all nodes. On InfiniBand several ports of a node are on one
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
			next := rail{report: fabric.Rail{Network: network.Network.String()}}
			for _, ports := range network.Ports {
				next.ports = append(next.ports, ports[k])
			}
			next.report.Name = cmp.Or(next.ports[0].Port.Netdev, next.ports[0].Device.Name)
			rails = append(rails, next)
		}
	}
	return rails
}

// expected is what the slowest of its ports should give.
func (r rail) expected() rdma.BytesPerSecond {
	least := r.ports[0].ExpectedBandwidth()
	for _, port := range r.ports[1:] {
		least = min(least, port.ExpectedBandwidth())
	}
	return least
}

// railNames are each node's interfaces, in the rails' order.
func railNames(rails []rail) map[int][]string {
	names := map[int][]string{}
	for _, r := range rails {
		for node, port := range r.ports {
			names[node] = append(names[node], port.Port.Netdev)
		}
	}
	return names
}

// only lets a job use one rail alone.
func (r rail) only(node int, input *fabric.Input, env map[string]string) {
	port := r.ports[node]
	if input.Backend == fabric.Gloo {
		env["GLOO_SOCKET_IFNAME"] = port.Port.Netdev
		return
	}
	env["NCCL_IB_HCA"] = nccl.ExactHCA(port.HCA())
}

// measureRails measures all rails at once, each by one rank a node with a GPU of its own:
// NCCL reads the devices that it may use once in a process.
func (c *Check) measureRails(ctx context.Context, r *fabric.Report, rails []rail) error {
	const least = 15 * time.Second
	bound := c.left(0.9)
	if bound < least {
		c.Log.Info("There is no time left to measure the rails one by one.")
		return nil
	}
	outcomes, err := c.together(ctx, func(k int) *job {
		sizes, _ := fabric.Sizes(r.Backend)
		j := c.job(fmt.Sprintf("rail-%d", k), c.places(), fabric.Input{
			RanksPerNode: 1, FirstDevice: k % r.RanksPerNode, Backend: r.Backend, Sizes: sizes[len(sizes)-2:],
		}, bound/2)
		j.also(rails[k].only)
		return j
	}, len(rails))
	if err != nil {
		return err
	}
	for k, out := range outcomes {
		if !out.done {
			out.rail = k
			return c.isolate(ctx, r, rails, out)
		}
		for _, m := range out.measurements {
			m.Scope, m.Rail = fabric.ByRail, k
			r.Measurements = append(r.Measurements, m)
		}
	}
	return nil
}

// together does several jobs at once.
func (c *Check) together(ctx context.Context, make func(k int) *job, count int) ([]outcome, error) {
	outcomes, errs := []outcome{}, []error{}
	var mu sync.Mutex
	var group sync.WaitGroup
	for k := range count {
		j := make(k)
		outcomes = append(outcomes, outcome{})
		group.Go(func() {
			out, err := j.do(ctx)
			mu.Lock()
			defer mu.Unlock()
			outcomes[k] = out
			if err != nil {
				errs = append(errs, err)
			}
		})
	}
	group.Wait()
	if len(errs) > 0 {
		return nil, errs[0]
	}
	return outcomes, nil
}

// compareTCP measures over sockets on the pod network. It has its own time.
func (c *Check) compareTCP(ctx context.Context, r *fabric.Report) error {
	j := c.whole(r, c.Bound*6/10)
	j.id = c.ID + "-tcp"
	j.input.Pairs, j.input.Others, j.input.Inside = nil, false, false
	j.also(func(node int, _ *fabric.Input, env map[string]string) {
		interfaces := ""
		if pod := c.devices[node].PodInterface; pod != "" {
			interfaces = "=" + pod
		}
		maps.Copy(env, nccl.SocketsOnly(interfaces))
		env["NCCL_NET"] = "Socket"
	})
	out, err := j.do(ctx)
	if err != nil {
		return err
	}
	if r.Sockets = fabric.Best(out.measurements); r.Sockets == 0 {
		c.Log.Warn("Over TCP sockets nothing could be measured.")
	}
	return nil
}
