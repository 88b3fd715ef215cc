// Package checkfabric proves that the network between the nodes of an environment does
// what it should before a training relies on it.
package checkfabric

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/diagnose/cause"
	"github.com/ml-dev-env/ml-dev-env/internal/env/network"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/fabric"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/nccl"
)

// firstPort is where the ranks of an environment's first job meet. Each job has another one, so that what is
// left of an earlier one is in nobody's way.
const firstPort = 29510

// Check is one check of an environment.
type Check struct {
	Nodes nodes.Set
	// Hosts are the names or addresses by which the nodes reach each other.
	Hosts []string
	// ID begins the ids of the check's jobs; RunName names what it is part of.
	ID, RunName string
	// Mode is agent.TCP or agent.RDMA; "" is what the nodes were told.
	Mode string
	// Bound is how long it may take, without the comparison with sockets.
	Bound time.Duration
	// CompareTCP measures over sockets too.
	CompareTCP bool
	// FirstPort is where the ranks of the first job meet, 0 for that of an environment.
	FirstPort int
	// Next is what to do about nodes at fault, "" for what is done in an environment.
	Next string
	Log  *slog.Logger

	settings network.Settings
	facts    []agent.Facts
	devices  []rdma.Facts
	jobs     int
	began    time.Time
}

// Run checks the network. The report is what was found, as far as it got. Errors: NetworkBroken
// where ranks do not reach each other, TransportWrong; a slow network is none. Others are not
// about the network.
func (c *Check) Run(ctx context.Context) (fabric.Report, error) {
	c.began = time.Now()
	r := fabric.Report{Nodes: len(c.Nodes)}
	err := c.check(ctx, &r)
	r.Seconds = time.Since(c.began).Seconds()
	fabric.Sort(r.Measurements)
	switch fail.ReasonOf(err) {
	case fail.NetworkBroken:
		r.Verdict, r.Message = fabric.Broken, err.Error()
		var broken *brokenError
		if errors.As(err, &broken) {
			r.FaultyNodes, r.FaultyRails = broken.nodes, broken.rails
		}
	case fail.TransportWrong:
		r.Verdict, r.Message = fabric.WrongTransport, err.Error()
	default:
		if err != nil {
			return r, err
		}
	}
	r.Judge()
	return r, err
}

func (c *Check) check(ctx context.Context, r *fabric.Report) error {
	if err := c.ask(ctx); err != nil {
		return err
	}
	r.Mode, r.KubernetesNodes = c.settings.Mode, c.where()
	r.Backend, r.RanksPerNode = c.ranks()
	if len(c.Nodes)*r.RanksPerNode < 2 {
		r.Verdict, r.Message = fabric.NotMeasured, "one node with one rank has nobody to talk to"
		return nil
	}
	rails := c.rails()
	for _, rail := range rails {
		r.Rails = append(r.Rails, rail.report)
	}
	const mainPart = 0.6 // of the bound; the rest is for finding who is at fault
	main := c.whole(r, c.left(mainPart))
	c.Log.Info(fmt.Sprintf("Measuring %s with %s on each, by %s, for at most %s.", humanize.Count(len(c.Nodes), "node"), humanize.Count(r.RanksPerNode, "rank"), r.Backend, c.Bound), "nodes", len(c.Nodes), "ranksPerNode", r.RanksPerNode, "backend", r.Backend, "limitSeconds", c.Bound.Seconds())
	if len(rails) > 1 {
		names := railNames(rails)
		main.also(func(node int, input *fabric.Input, _ map[string]string) { input.Rails = names[node] })
	}
	out, err := main.do(ctx)
	if err != nil {
		return err
	}
	if err := c.withoutGPU(r, out); err != nil {
		return err
	}
	c.expect(r, rails)
	r.Measurements = out.measurements
	c.describe(r, out)
	if !out.done {
		if err := c.notTheNetwork(r, out); err != nil || r.Verdict != "" {
			return err
		}
		return c.isolate(ctx, r, rails, out)
	}
	if err := c.wrongTransport(r); err != nil {
		return err
	}
	if r.Backend == fabric.NCCL && len(rails) > 1 {
		if err := c.measureRails(ctx, r, rails); err != nil {
			return err
		}
	}
	if c.CompareTCP {
		return c.compareTCP(ctx, r)
	}
	return nil
}

// withoutGPU makes of r what gloo has measured, where torch sees no GPU on any node. Where it
// sees some on others that is an error.
func (c *Check) withoutGPU(r *fabric.Report, out outcome) error {
	switch {
	case len(out.withoutGPU) == 0:
		return nil
	case len(out.withoutGPU) < len(out.ready):
		slices.Sort(out.withoutGPU)
		return fail.Advise(fail.Becausef(fail.GPUMissing, "checking the fabric: torch sees no GPU on %s, and does on others", c.named(out.withoutGPU)),
			"compare the nodes: nvidia-smi in each pod; the driver there may be another one")
	}
	c.Log.Warn(fmt.Sprintf("Torch sees no GPU though the nodes have %d each: the image's torch is for CPUs, or does not go with the driver. Measured by gloo instead.", r.RanksPerNode), "gpusPerNode", r.RanksPerNode)
	r.Backend, r.RanksPerNode = fabric.Gloo, min(r.RanksPerNode, ranksWithoutGPU)
	return nil
}

// expect says what should be reached by the backend that was measured with. What devices
// give is not what gloo can take: of it only the cluster file can say something.
func (c *Check) expect(r *fabric.Report, rails []rail) {
	if c.settings.Mode == agent.RDMA && (r.Backend == fabric.NCCL || c.settings.Expected.Bandwidth > 0) {
		r.Expected = rdma.ExpectedBandwidth(c.devices, c.settings.Expected)
	}
	if r.Backend == fabric.NCCL {
		for i := range rails {
			r.Rails[i].Expected = rails[i].expected()
		}
	}
}

// ask asks all nodes what they are and have. One that does not answer is NetworkBroken
// where others do: it is cut off.
func (c *Check) ask(ctx context.Context) error {
	c.facts, c.devices = make([]agent.Facts, len(c.Nodes)), make([]rdma.Facts, len(c.Nodes))
	silent, err := c.each(ctx, func(ctx context.Context, i int) (err error) {
		c.facts[i], err = c.Nodes[i].Facts(ctx)
		return err
	})
	if err = cmp.Or(err, c.cutOff(silent)); err != nil {
		return err
	}
	c.settings = network.SettingsOf(c.facts)
	c.settings.Mode = cmp.Or(c.Mode, c.settings.Mode)
	silent, err = c.each(ctx, func(ctx context.Context, i int) (err error) {
		c.devices[i], err = c.Nodes[i].RDMA(ctx, c.settings.Expected)
		return err
	})
	return cmp.Or(err, c.cutOff(silent))
}

// each calls f for all nodes at once. silent are those whose agents do not answer; other
// errors are joined.
func (c *Check) each(ctx context.Context, f func(ctx context.Context, i int) error) (silent map[int]error, err error) {
	ctx, cancel := context.WithTimeout(ctx, min(starting, c.Bound/4))
	defer cancel()
	errs := make([]error, len(c.Nodes))
	// Each on its own: Set.Each would give up the others at the first that does not answer.
	done := make(chan struct{})
	for i := range c.Nodes {
		go func() {
			errs[i] = nodes.Retry(ctx, func() error { return f(ctx, i) })
			done <- struct{}{}
		}()
	}
	for range c.Nodes {
		<-done
	}
	silent = map[int]error{}
	for i, err := range errs {
		if fail.ReasonOf(err) == fail.AgentUnreachable {
			silent[c.Nodes[i].Node()], errs[i] = err, nil
		}
	}
	return silent, errors.Join(errs...)
}

// cutOff is the error of nodes whose agents do not answer. Where none does it is the
// agents' own: the network between the nodes may be fine.
func (c *Check) cutOff(silent map[int]error) error {
	if len(silent) == 0 {
		return nil
	}
	names := slices.Sorted(maps.Keys(silent))
	if len(silent) == len(c.Nodes) {
		return silent[names[0]]
	}
	var texts []string
	for _, node := range names {
		texts = append(texts, silent[node].Error())
	}
	return c.broken(names, nil, "%s cannot be reached while the others can: %s", c.named(names), strings.Join(texts, "; "))
}

// broken is the error of a network that does not carry what is sent.
func (c *Check) broken(nodes []int, rails []string, format string, args ...any) error {
	return &brokenError{nodes: nodes, rails: rails, err: fail.Advise(fail.Becausef(fail.NetworkBroken, "checking the fabric: "+format, args...),
		"%s", cmp.Or(c.Next, "mlenv rdma --check shows each node's devices; leave the node out of nodes.gpu_nodes until it is mended"))}
}

// brokenError knows who is at fault.
type brokenError struct {
	nodes []int
	rails []string
	err   error
}

func (e *brokenError) Error() string { return e.err.Error() }
func (e *brokenError) Unwrap() error { return e.err }

// ranksWithoutGPU is how many a node has at most where there is no GPU, as in the benchmark.
const ranksWithoutGPU = 2

// ranks is what the nodes can measure with. Without a GPU two ranks show what is inside
// a node too, where it was given as much as for two.
func (c *Check) ranks() (fabric.Backend, int) {
	gpus, given := len(c.facts[0].GPUs), c.facts[0].GPUsExpected
	for _, f := range c.facts {
		gpus, given = min(gpus, len(f.GPUs)), min(given, f.GPUsExpected)
	}
	if gpus > 0 {
		return fabric.NCCL, gpus
	}
	return fabric.Gloo, max(1, min(ranksWithoutGPU, given))
}

// left is a part of the time that is left.
func (c *Check) left(part float64) time.Duration {
	return time.Duration(float64(time.Until(c.began.Add(c.Bound))) * part)
}

// job makes a job on some of the nodes, given by their places in Nodes.
func (c *Check) job(name string, places []int, input fabric.Input, bound time.Duration) *job {
	j := &job{id: c.ID + "-" + name, run: c.RunName, input: input, bound: bound, stall: min(20*time.Second, bound/2)}
	for _, place := range places {
		j.members = append(j.members, c.Nodes[place])
	}
	j.input.Master, j.input.Port = c.Hosts[places[0]], cmp.Or(c.FirstPort, firstPort)+c.jobs
	c.jobs++
	// Of what the program may take torch's import is much, and is in it.
	j.input.Seconds = (bound * 3 / 4).Seconds()
	j.also(func(_ int, input *fabric.Input, env map[string]string) {
		if input.Backend == fabric.NCCL {
			// Tree and NVLSTree can beat the rate of the wire: a ring shows it.
			env["NCCL_ALGO"] = "Ring"
		}
	})
	return j
}

// also adds to what is each member's own.
func (j *job) also(own func(node int, input *fabric.Input, env map[string]string)) {
	before := j.own
	j.own = func(node int, input *fabric.Input, env map[string]string) {
		if before != nil {
			before(node, input, env)
		}
		own(node, input, env)
	}
}

// whole is the job on all nodes.
func (c *Check) whole(r *fabric.Report, bound time.Duration) *job {
	sizes, pairBytes := fabric.Sizes(r.Backend)
	input := fabric.Input{RanksPerNode: r.RanksPerNode, Backend: r.Backend, Sizes: sizes, WithoutGPU: fabric.LargestWithoutGPU(), Others: true, Inside: true}
	if len(c.Nodes) > 1 {
		input.Pairs, input.PairBytes = fabric.Rounds(len(c.Nodes)), pairBytes
	}
	return c.job("all", c.places(), input, bound)
}

// places are all nodes in the order of a training's ranks.
func (c *Check) places() []int {
	if order := network.Order(c.settings.Racks); order != nil {
		return order
	}
	var places []int
	for node := range c.Nodes {
		places = append(places, node)
	}
	return places
}

// describe says over what the ranks have talked.
func (c *Check) describe(r *fabric.Report, out outcome) {
	if r.Backend == fabric.Gloo {
		r.Transport = "gloo over " + cmp.Or(c.facts[0].Environment["GLOO_SOCKET_IFNAME"], "the pod network")
		return
	}
	environments := map[int]map[string]string{}
	for i, f := range c.facts {
		environments[c.Nodes[i].Node()] = f.Environment
	}
	summary, ok := agent.NCCLOf(out.statuses, c.wanted(), environments)
	if !ok {
		return
	}
	r.Transport, r.Findings = summary.Transport.Words(), summary.Findings
	summary.Processes = nil
	r.Network = &summary
}

// wanted is the slowest transport that is right: GPUDirect where all nodes can have it.
func (c *Check) wanted() nccl.Transport {
	wanted := agent.WantedTransport(c.settings.Mode, len(c.Nodes))
	if wanted == nccl.RDMAGPU && slices.ContainsFunc(c.devices, func(f rdma.Facts) bool { return f.GPUDirect.Way() == "none" }) {
		return nccl.RDMAHost
	}
	return wanted
}

// wrongTransport is the error of ranks on sockets in an environment with RDMA. gloo knows
// nothing of RDMA, and proves nothing about it.
func (c *Check) wrongTransport(r *fabric.Report) error {
	if c.settings.Mode != agent.RDMA || len(c.Nodes) < 2 {
		return nil
	}
	if r.Backend == fabric.Gloo {
		r.Message = r.Transport + " was measured: without GPUs there is no NCCL, which alone would show RDMA"
		return nil
	}
	if r.Network == nil || r.Network.Transport != nccl.Sockets {
		return nil
	}
	on := r.Network.On(nccl.Sockets)
	text := fmt.Sprintf("checking the fabric: %d of %d ranks talk over TCP sockets, want RDMA", len(on), len(r.Network.Ranks))
	next := cmp.Or(c.Next, "mlenv rdma shows devices, ports, memlock and capabilities of each node")
	for _, f := range r.Findings {
		if !f.Consequence {
			text, next = text+": "+f.Cause, f.Next
			break
		}
	}
	return fail.Advise(fail.Becausef(fail.TransportWrong, "%s", text), "%s", next)
}

// notTheNetwork is the error of a benchmark that failed for another cause. Where there is
// no torch to measure with, which is nobody's fault, the verdict says so.
func (c *Check) notTheNetwork(r *fabric.Report, out outcome) error {
	found, failed := cause.Find(out.statuses)
	if !failed {
		return nil
	}
	if p := found.Rank.Python; p != nil && p.Type == "ModuleNotFoundError" && strings.Contains(p.Message, "torch") {
		r.Verdict, r.Message = fabric.NotMeasured, "the training image has no torch for python3: "+p.Message
		return nil
	}
	if finding, ok := c.fromTorch(found); ok {
		r.Findings = append(r.Findings, finding)
		return nil
	}
	if !found.Known {
		return nil
	}
	if slices.ContainsFunc(r.Findings, func(f nccl.Finding) bool { return !f.Consequence && f.Reason != nccl.SettingChanged }) {
		return nil
	}
	return found.Err(out.statuses[0].Record)
}

// fromTorch is what a rank's own error shows of the network.
func (c *Check) fromTorch(failed cause.Cause) (nccl.Finding, bool) {
	text := strings.Join(failed.Rank.Tail, "\n")
	if p := failed.Rank.Python; p != nil {
		text = p.Type + ": " + p.Message
	}
	finding, ok := nccl.FromTorch(text)
	finding.Host = c.facts[failed.Rank.Node].Pod
	return finding, ok
}

// named is nodes with where they are: "node 1 (wrk-97)".
func (c *Check) named(nodes []int) string { return fabric.NodesAt(nodes, c.where()) }

// where are the Kubernetes nodes of all nodes.
func (c *Check) where() (names []string) {
	for _, f := range c.facts {
		names = append(names, f.KubernetesNode)
	}
	return names
}
