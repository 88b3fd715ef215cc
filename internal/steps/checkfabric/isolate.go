// SPDX-License-Identifier: Apache-2.0

package checkfabric

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cause"
	"github.com/ml-dev-env/ml-dev-env/internal/fabric"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/nccl"
)

// isolate finds the nodes at fault after all nodes together hung or failed: nodes whose agents do
// not answer, else nodes of pairs that fail by themselves. If a rail was being measured, the pairs use it.
func (c *Check) isolate(ctx context.Context, rails []rail, whole outcome) error {
	on := whole.rail
	var names []string
	if on >= 0 && on < len(rails) {
		names = []string{rails[on].report.String()}
	} else {
		on = noRail
	}
	if _, err := askAll(ctx, c, (*agent.Client).Health); err != nil {
		return err
	}
	r := &c.report
	if !whole.conclusive() {
		r.Verdict = fabric.NotMeasured
		what, done, verb := "importing torch", whole.ready, "were ready"
		if len(whole.ready) == len(c.Nodes) {
			what, done, verb = "starting "+string(r.Backend), whole.joined, "had joined"
		}
		r.Message = fmt.Sprintf("%s left no time to measure: after %s %d of %d %s; want a longer --timeout", what,
			time.Since(c.began).Round(time.Second), len(done), len(c.Nodes), verb)
		return nil
	}
	c.Log.Info("Not all ranks answer; trying pairs of nodes.")
	untried := 0
	var good, bad []fabric.Pair
	rounds := fabric.Rounds(len(c.Nodes))
	var tried time.Duration
	for i, pairs := range rounds {
		const most = 0.9 // of the time left: rails may follow
		slice := max(c.shareOfTimeLeft(most)/time.Duration(len(rounds)-i+1), c.hangTime())
		if c.shareOfTimeLeft(most) < slice {
			untried += len(pairs)
			continue
		}
		tried = slice
		var jobs []*job
		for _, pair := range pairs {
			jobs = append(jobs, c.pair(pair, i, rails, on, slice))
		}
		outcomes, err := c.together(ctx, jobs)
		if err != nil {
			return err
		}
		for k, out := range outcomes {
			if slice >= starting { // a shorter one does not show that an agent is gone
				if err := c.cutOff(out.unreachable); err != nil {
					return err
				}
			}
			switch {
			case out.done:
				good = append(good, pairs[k])
			case len(out.unreachable) > 0 || !out.conclusive():
				untried++
			default:
				bad = append(bad, pairs[k])
				c.explain(out)
			}
		}
	}
	switch {
	case len(bad) == 0 && untried > 0:
		return c.broken(nil, names, "all nodes together hang%s, and there was no time to find the faulty one: want a longer --timeout",
			onRails(names))
	case len(bad) == 0:
		return c.broken(nil, names, "all nodes together hang%s, though each pair of them works by itself: look for duplicate addresses, and "+
			"for rails without a route to each other",
			onRails(names))
	}
	faulty := fabric.Faulty(good, bad)
	if len(names) == 0 && len(rails) > 1 {
		var err error
		if names, err = c.faultyRails(ctx, rails, bad[0]); err != nil {
			return err
		}
	}
	var texts []string
	for _, pair := range bad {
		texts = append(texts, pair.String())
	}
	what := fmt.Sprintf("%s: the pairs %s do not answer within %s%s", c.nodeNames(faulty), strings.Join(texts, ", "), tried.Round(time.Second),
		onRails(names))
	if len(c.Nodes) == 2 {
		what = fmt.Sprintf("%s do not reach each other within %s%s", c.nodeNames(faulty), tried.Round(time.Second), onRails(names))
	}
	if f, ok := c.cause(); ok {
		what += fmt.Sprintf("; %s on %s: %s", f.Reason, f.Host, f.Cause)
	}
	return c.broken(faulty, names, "%s", what)
}

// cause returns the first finding that is not the consequence of another.
func (c *Check) cause() (nccl.Finding, bool) {
	i := slices.IndexFunc(c.report.Findings, func(f nccl.Finding) bool { return !f.Consequence })
	if i < 0 {
		return nccl.Finding{}, false
	}
	return c.report.Findings[i], true
}

func onRails(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return " on rail " + strings.Join(names, " and ")
}

const noRail = -1

// pair returns a short job of two nodes: it shows only that they reach each other.
func (c *Check) pair(pair fabric.Pair, round int, rails []rail, on int, bound time.Duration) *job {
	ranks := c.report.RanksPerNode
	if c.report.Backend == fabric.Gloo {
		ranks = 1
	}
	j := c.newJob(fmt.Sprintf("pair-%d-%s-%d", round, pair, on+1), pair[:], fabric.Input{RanksPerNode: ranks, Backend: c.report.Backend,
		Sizes: []agent.Bytes{8, 1 << 20}, WithoutGPU: fabric.LargestWithoutGPU()}, bound)
	if on != noRail {
		j.own = append(j.own, func(node int, input *fabric.Input, env map[string]string) { c.limitToRail(rails[on], node, input, env) })
	}
	return j
}

// faultyRails returns the rails on which a broken pair fails. If it fails on all rails, none is named.
func (c *Check) faultyRails(ctx context.Context, rails []rail, pair fabric.Pair) ([]string, error) {
	const least, most = 8 * time.Second, 0.9 // the shortest time that is worth a job on one rail
	bound := c.shareOfTimeLeft(most)
	if bound < max(least, c.hangTime()) {
		return nil, nil
	}
	var jobs []*job
	for k := range rails {
		jobs = append(jobs, c.pair(pair, len(c.Nodes), rails, k, bound))
	}
	outcomes, err := c.together(ctx, jobs)
	if err != nil {
		return nil, err
	}
	var names []string
	for k, out := range outcomes {
		if !out.done && out.conclusive() {
			names = append(names, rails[k].report.String())
		}
	}
	if len(names) == len(rails) {
		return nil, nil
	}
	return names, nil
}

// explain adds what a failed job shows to the report's findings, each reason once.
func (c *Check) explain(out outcome) {
	var found []nccl.Finding
	if summary, ok := agent.NCCLOf(out.statuses, nccl.Unknown, nil); ok {
		found = summary.Findings
	}
	if failed, ok := cause.Find(out.statuses); ok {
		if finding, ok := c.fromTorch(failed); ok {
			found = append(found, finding)
		}
	}
	for _, f := range found {
		if !slices.ContainsFunc(c.report.Findings, func(known nccl.Finding) bool { return known.Reason == f.Reason }) {
			c.report.Findings = append(c.report.Findings, f)
		}
	}
}
