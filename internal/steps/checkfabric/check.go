// SPDX-License-Identifier: Apache-2.0

// Package checkfabric proves that the network between the nodes of an environment does
// what it should before a training relies on it.
package checkfabric

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cause"
	"github.com/ml-dev-env/ml-dev-env/internal/env/jobs"
	"github.com/ml-dev-env/ml-dev-env/internal/env/network"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/env/racks"
	"github.com/ml-dev-env/ml-dev-env/internal/fabric"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/nccl"
)

// firstPort is where the ranks of an environment's first job meet. Each job has another port, so that what is
// left of an earlier job is not in its way.
const firstPort = 29510

// Check is one check of an environment.
type Check struct {
	Nodes nodes.Set
	// Hosts are the names or addresses by which the nodes reach each other.
	Hosts []string
	// ID begins the ids of the check's jobs; RunName names the run that it is part of.
	ID, RunName string
	// Mode is agent.TCP or agent.RDMA, empty for the environment's.
	Mode agent.Mode
	// Bound is how long it may take.
	Bound time.Duration
	// Quick measures few sizes in a short time, and no rail by itself. Only if that finds something, all is measured.
	Quick bool
	Log   *slog.Logger

	report   fabric.Report
	settings network.Settings
	facts    []agent.Facts
	devices  []rdma.Facts
	jobs     int
	began    time.Time
	// importing is how long the last job's ranks took to import torch, and meeting how long the ranks of the main job then took to
	// meet. Both are 0 until they are known.
	importing, meeting time.Duration
}

// Run checks the network. The report holds all that was measured before an error. Errors: NetworkBroken
// if ranks do not reach each other, TransportWrong; others are not about the network. A slow network is only a verdict.
func (c *Check) Run(ctx context.Context) (fabric.Report, error) {
	defer c.Nodes.WaitForTurn(ctx, c.Log, nodes.TurnTime)()
	c.began = time.Now()
	r := &c.report
	*r = fabric.Report{Nodes: len(c.Nodes)}
	err := c.check(ctx)
	r.Seconds = time.Since(c.began).Seconds()
	fabric.SortMeasurements(r.Measurements)
	switch reason := fail.ReasonOf(err); {
	case reason == fail.NetworkBroken:
		r.Verdict, r.Message = fabric.Broken, err.Error()
	case reason == fail.TransportWrong:
		r.Verdict, r.Message = fabric.WrongTransport, err.Error()
	case err != nil:
		return *r, err
	}
	r.Judge()
	r.Condense()
	return *r, err
}

func (c *Check) check(ctx context.Context) error {
	if err := c.measure(ctx); err != nil || c.report.Verdict != "" || !c.Quick {
		return err
	}
	quick := c.report
	if quick.Judge(); quick.Verdict == fabric.Pass {
		c.report.Quick = true
		return nil
	}
	c.Log.Info("The quick check finds this, so all is measured: " + quick.Message + ".")
	c.Quick, c.report = false, fabric.Report{Nodes: len(c.Nodes)}
	return c.measure(ctx)
}

// measure does one measurement of all, and looks for what is at fault if it does not end.
func (c *Check) measure(ctx context.Context) error {
	if err := c.readNodes(ctx); err != nil {
		return err
	}
	r := &c.report
	r.Mode, r.KubernetesNodes = c.settings.Mode, c.hostNames()
	r.Backend, r.RanksPerNode = c.ranks()
	if len(c.Nodes)*r.RanksPerNode < 2 {
		r.Verdict, r.Message = fabric.NotMeasured, "one node with one rank has no peer"
		return nil
	}
	rails := c.rails()
	for _, rail := range rails {
		r.Rails = append(r.Rails, rail.report)
	}
	main := c.whole(c.mainTime())
	c.Log.Info(fmt.Sprintf("Measuring %s with %s on each, by %s, for at most %s.", humanize.Count(len(c.Nodes), "node"),
		humanize.Count(r.RanksPerNode, "rank"), r.Backend, c.limit()))
	if len(rails) > 1 && !c.Quick {
		main.own = append(main.own, func(node int, input *fabric.Input, _ map[string]string) { input.Rails = interfaces(rails, node) })
	}
	out, err := c.do(ctx, main)
	if err != nil {
		return err
	}
	c.meeting = out.meeting
	if err := c.withoutGPU(out); err != nil {
		return err
	}
	c.expect(rails)
	r.Measurements, r.Devices = out.measurements, out.devices
	c.describe(out)
	if !out.done {
		// Ranks that had no time end as this check ends them.
		if out.conclusive() {
			if err := c.notTheNetwork(out); err != nil || r.Verdict != "" {
				return err
			}
		}
		return c.isolate(ctx, rails, out)
	}
	if err := c.wrongTransport(); err != nil {
		return err
	}
	if err := c.confirmDevices(ctx); err != nil {
		return err
	}
	if r.Backend == fabric.NCCL && len(rails) > 1 && !c.Quick {
		if err := c.measureRails(ctx, rails); err != nil {
			return err
		}
	}
	return c.measureHosts(ctx, rails)
}

// withoutGPU turns the report into one of gloo if torch sees no GPU on any node. If it sees GPUs on
// some nodes only, that is an error.
func (c *Check) withoutGPU(out outcome) error {
	r := &c.report
	switch {
	case len(out.withoutGPU) == 0:
		return nil
	case len(out.withoutGPU) < len(out.ready):
		slices.Sort(out.withoutGPU)
		return fail.Advise(fail.Becausef(fail.GPUMissing, "checking the fabric: torch sees no GPU on %s, and does on others",
			c.nodeNames(out.withoutGPU)),
			"compare the nodes: nvidia-smi in each pod; the driver there may be another one")
	}
	c.Log.Warn(fmt.Sprintf("Torch sees no GPU though the nodes have %d each: the image's torch is for CPUs, or does not match the driver. "+
		"Measured by gloo instead.", r.RanksPerNode))
	r.Backend, r.RanksPerNode = fabric.Gloo, min(r.RanksPerNode, ranksWithoutGPU)
	return nil
}

// expect sets the bandwidths that the backend should reach. gloo does not reach what devices can carry: for gloo
// only the cluster file has an expectation.
func (c *Check) expect(rails []rail) {
	r := &c.report
	if c.settings.Mode == agent.RDMA && (r.Backend == fabric.NCCL || c.settings.Expected.Bandwidth > 0) {
		r.Expected = rdma.ExpectedBandwidth(c.devices, c.settings.Expected)
	}
	if c.settings.Mode == agent.TCP {
		r.Expected = c.settings.Expected.Sockets
	}
	var one rdma.BytesPerSecond
	if c.settings.Mode == agent.RDMA {
		r.Figures = c.settings.Expected.Figures
		one = r.Figures.OneGPU
	}
	if r.Backend == fabric.NCCL {
		if one > 0 && r.RanksPerNode == 1 {
			r.Expected = one
		}
		c.assignGPUs(rails)
		for i := range rails {
			r.Rails[i].Expected, r.Rails[i].Far = c.expectedOf(rails[i])
			// One GPU of each node drives the rail.
			if one > 0 {
				r.Rails[i].Expected = min(r.Rails[i].Expected, one)
			}
		}
	}
}

func (c *Check) readNodes(ctx context.Context) (err error) {
	if c.facts, err = askAll(ctx, c, (*agent.Client).Facts); err != nil {
		return err
	}
	c.settings = network.SettingsOf(c.facts)
	c.settings.Mode = cmp.Or(c.Mode, c.settings.Mode)
	c.devices, err = askAll(ctx, c, func(client *agent.Client, ctx context.Context) (rdma.Facts, error) {
		return client.RDMA(ctx, c.settings.Expected)
	})
	return err
}

// broken returns the error of a network that does not carry what is sent. It puts the faulty nodes and rails into the report.
func (c *Check) broken(faulty []int, rails []string, format string, args ...any) error {
	c.report.FaultyNodes, c.report.FaultyRails = faulty, rails
	next := "leave the node out of nodes.gpu_nodes until it is repaired"
	if exclusion := c.report.Exclusion(); exclusion != "" {
		next = "start again with param " + exclusion
	}
	return fail.Advise(fail.Becausef(fail.NetworkBroken, "checking the fabric: "+format, args...),
		"mlenv rdma --check shows each node's devices; %s", next)
}

// ranksWithoutGPU is how many ranks a node without GPU has at most, as in the benchmark.
const ranksWithoutGPU = 2

// ranks returns the backend and the number of ranks that all nodes can run. Without GPUs two ranks, if the node was
// given as much, also measure within the node.
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

// shareOfTimeLeft returns a part of the time that is left for the check.
func (c *Check) shareOfTimeLeft(part float64) time.Duration {
	return time.Duration(float64(time.Until(c.began.Add(c.limit()))) * part)
}

// limit is Bound plus the extra time that NCCL needs to initialize all ranks instead of a few.
func (c *Check) limit() time.Duration { return c.Bound + c.starting() }

func (c *Check) starting() time.Duration {
	const each = 250 * time.Millisecond // for one more rank on a node to start
	if c.report.Backend != fabric.NCCL {
		return 0
	}
	return time.Duration(len(c.Nodes)*c.report.RanksPerNode) * each
}

// mainTime is for the job of all ranks; the rest is for finding the faulty node.
func (c *Check) mainTime() time.Duration {
	const part = 0.6
	return c.shareOfTimeLeft(part) + time.Duration((1-part)*float64(c.starting()))
}

// joining returns how long the ranks of a job on a pair or rail may take to meet. It cannot be short because the check's time is:
// NCCL's initialization, which takes seconds, would look like a broken network.
func (c *Check) joining() time.Duration {
	const least, times = 10 * time.Second, 3 // NCCL's initialization takes seconds
	return max(least, times*c.meeting)
}

// hangTime returns how long a job on a pair or rail needs until a silence shows a hang.
func (c *Check) hangTime() time.Duration {
	const measuring = 5 * time.Second // for the largest message between two GPUs
	if c.report.Backend != fabric.NCCL {
		return 0
	}
	return c.importing + c.joining() + measuring
}

func (c *Check) newJob(name string, places []int, input fabric.Input, bound time.Duration) *job {
	j := &job{Job: jobs.Job{ID: c.ID + "-" + name}, run: c.RunName, input: input, bound: bound, stall: min(20*time.Second, bound/2)}
	j.joining = j.stall
	if input.Backend == fabric.NCCL {
		j.joining = c.joining()
	}
	for _, place := range places {
		j.Members = append(j.Members, c.Nodes[place])
	}
	j.input.Master, j.input.Port = c.Hosts[places[0]], firstPort+c.jobs
	c.jobs++
	// The time includes importing torch, which is slow.
	j.input.Seconds = (bound * 3 / 4).Seconds()
	j.own = []ownPart{func(_ int, input *fabric.Input, env map[string]string) {
		if input.Backend == fabric.NCCL {
			nccl.MeasureWire(env)
			env["NCCL_DEBUG_FILE"] = ""             // one of the image or the cluster file would hide the transport
			env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID" // as facts list the GPUs
		}
	}}
	return j
}

// do runs the job, and notes how long importing torch took: of the nodes' later jobs it takes no longer.
func (c *Check) do(ctx context.Context, j *job) (outcome, error) {
	outcomes, err := c.together(ctx, []*job{j})
	return outcomes[0], err
}

func (c *Check) together(ctx context.Context, all []*job) ([]outcome, error) {
	outcomes, errs := make([]outcome, len(all)), make([]error, len(all))
	var group sync.WaitGroup
	for k, j := range all {
		group.Go(func() { outcomes[k], errs[k] = j.runToEnd(ctx) })
	}
	group.Wait()
	var slowest time.Duration
	for _, out := range outcomes {
		slowest = max(slowest, out.importing)
	}
	c.importing = cmp.Or(slowest, c.importing)
	return outcomes, errors.Join(errs...)
}

func (c *Check) whole(bound time.Duration) *job {
	sizes, pairBytes := fabric.MessageSizes(c.report.Backend, c.settings.Mode != agent.RDMA && len(c.Nodes) > 1)
	input := fabric.Input{RanksPerNode: c.report.RanksPerNode, Backend: c.report.Backend, Sizes: sizes, WithoutGPU: fabric.LargestWithoutGPU(),
		Others: !c.Quick, Inside: !c.Quick || c.report.Backend == fabric.NCCL, Devices: deviceTime.Seconds()}
	name := "all"
	if c.Quick {
		const between, seconds = 1 << 20, 0.1
		name = "quick"
		input.Sizes, input.Share = []agent.Bytes{sizes[0], between, sizes[len(sizes)-1]}, seconds
	}
	if len(c.Nodes) > 1 {
		input.Pairs, input.PairBytes = fabric.Rounds(len(c.Nodes)), pairBytes
	}
	j := c.newJob(name, c.places(), input, bound)
	if input.Backend == fabric.NCCL {
		j.joining = 30*time.Second + c.starting()
	}
	return j
}

// deviceTime is how long each rank's device computes and copies.
const deviceTime = 500 * time.Millisecond

// confirmDevices measures processors a second time if one looks slow, and takes the better rates: other programs that use the same
// processors for a moment do not make a rank slow, and what throttles it does so twice. The GPU of a rank has no other users.
func (c *Check) confirmDevices(ctx context.Context) error {
	const most, least = 0.5, 5 * time.Second // the shortest time that is worth another measurement
	first := c.report
	first.Judge()
	bound := c.shareOfTimeLeft(most)
	if c.report.Backend != fabric.Gloo || len(first.SlowDevices) == 0 || bound < least {
		return nil
	}
	name := "devices"
	if c.Quick {
		name = "quick-devices"
	}
	out, err := c.do(ctx, c.newJob(name, c.places(), fabric.Input{RanksPerNode: c.report.RanksPerNode, Backend: c.report.Backend,
		Sizes: []agent.Bytes{8}, WithoutGPU: fabric.LargestWithoutGPU(), Devices: deviceTime.Seconds()}, bound))
	if err != nil {
		return err
	}
	c.report.Devices = fabric.Better(c.report.Devices, out.devices)
	return nil
}

// places returns all nodes in the order of a training's ranks.
func (c *Check) places() []int {
	if order := racks.RankOrder(c.settings.Racks); order != nil {
		return order
	}
	var places []int
	for node := range c.Nodes {
		places = append(places, node)
	}
	return places
}

func (c *Check) describe(out outcome) {
	r := &c.report
	if r.Backend == fabric.Gloo {
		r.Transport = "gloo over " + cmp.Or(c.facts[0].Environment[nccl.GlooInterface], "the pod network")
		return
	}
	environments := map[int]map[string]string{}
	for i, f := range c.facts {
		environments[c.Nodes[i].Node()] = f.Environment
	}
	r.Message = cause.Unproven(out.statuses, c.wanted())
	summary, ok := agent.NCCLOf(out.statuses, c.wanted(), environments)
	if !ok {
		return
	}
	r.Transport, r.Findings = summary.Transport.DisplayName(), summary.Findings
	summary.Processes = nil
	r.Network = &summary
}

// wanted returns the slowest transport that is right: GPUDirect if all nodes support it.
func (c *Check) wanted() nccl.Transport {
	wanted := agent.WantedTransport(c.settings.Mode, len(c.Nodes))
	if wanted == nccl.RDMAGPU && slices.ContainsFunc(c.devices, func(f rdma.Facts) bool { return f.GPUDirect.Describe() == "none" }) {
		return nccl.RDMAHost
	}
	return wanted
}

// wrongTransport returns the error of ranks on sockets in an environment with RDMA. gloo does not support RDMA
// and proves nothing about it.
func (c *Check) wrongTransport() error {
	r := &c.report
	if c.settings.Mode != agent.RDMA || len(c.Nodes) < 2 {
		return nil
	}
	if r.Backend == fabric.Gloo {
		r.Message = r.Transport + " was measured: without GPUs there is no NCCL, and only NCCL would show RDMA"
		return nil
	}
	if r.Network == nil || r.Network.Transport != nccl.Sockets {
		return nil
	}
	on := r.Network.RanksOn(nccl.Sockets)
	text := fmt.Sprintf("checking the fabric: %d of %d ranks use TCP sockets, want RDMA", len(on), len(r.Network.Ranks))
	next := "mlenv rdma shows devices, ports, memlock and capabilities of each node"
	if f, ok := c.whySockets(); ok {
		text, next = text+": first on "+f.Host+": "+f.Cause, f.Next
	}
	return fail.Advise(fail.Becausef(fail.TransportWrong, "%s", text), "%s", next)
}

// whySockets returns the finding that explains sockets best: others, as of GPUs within a node, do not.
func (c *Check) whySockets() (nccl.Finding, bool) {
	for _, reason := range []fail.Reason{nccl.NoRDMADevice, nccl.VerbsLibraryMissing, nccl.DeviceUnavailable, nccl.SocketsInsteadOfRDMA} {
		if i := slices.IndexFunc(c.report.Findings, func(f nccl.Finding) bool { return f.Reason == reason }); i >= 0 {
			return c.report.Findings[i], true
		}
	}
	return nccl.Finding{}, false
}

// notTheNetwork returns the error of a benchmark that failed for another cause. Without
// torch in the image nothing can be measured: that is a verdict and no error.
func (c *Check) notTheNetwork(out outcome) error {
	r := &c.report
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
	return found.Err(cause.Job{Record: out.statuses[0].Record})
}

func (c *Check) fromTorch(failed cause.Cause) (nccl.Finding, bool) {
	rank := failed.Rank
	if failed.Waiting != nil {
		rank = *failed.Waiting
	}
	text := strings.Join(rank.Tail, "\n")
	if p := rank.Python; p != nil {
		text = p.Type + ": " + p.Message
	}
	finding, ok := nccl.FromTorch(text)
	finding.Host = c.facts[rank.Node].Pod
	return finding, ok
}

// nodeNames returns "node 1 (wrk-97)".
func (c *Check) nodeNames(numbers []int) string { return fabric.NodesAt(numbers, c.hostNames()) }

func (c *Check) hostNames() (names []string) {
	for _, f := range c.facts {
		names = append(names, f.KubernetesNode)
	}
	return names
}
