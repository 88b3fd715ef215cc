package checkfabric

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/diagnose/cause"
	"github.com/ml-dev-env/ml-dev-env/internal/fabric"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/nccl"
)

// isolate finds who is at fault where all nodes together hang or fail: nodes whose agents do
// not answer, else those of the pairs that do not work by themselves, on the rail whose turn
// it was.
func (c *Check) isolate(ctx context.Context, r *fabric.Report, rails []rail, whole outcome) error {
	on := whole.rail
	silent, err := c.each(ctx, func(ctx context.Context, i int) error {
		_, err := c.Nodes[i].Health(ctx)
		return err
	})
	if err != nil {
		return err
	}
	if err := c.cutOff(silent); err != nil {
		return err
	}
	if !whole.began(len(c.Nodes)) {
		r.Verdict = fabric.NotMeasured
		r.Message = fmt.Sprintf("python3 had not imported torch on all nodes within %s: %d of %d were ready", time.Since(c.began).Round(time.Second), len(whole.ready), len(c.Nodes))
		return nil
	}
	c.Log.Info("Not all ranks answer; trying pairs of nodes.")
	untried := 0
	var good, bad []fabric.Pair
	rounds := fabric.Rounds(len(c.Nodes))
	var slice time.Duration
	for i, together := range rounds {
		const most = 0.9 // of the time left: rails may follow
		slice = c.left(most) / time.Duration(len(rounds)-i+1)
		outcomes, err := c.together(ctx, func(k int) *job { return c.pair(together[k], i, r, rails, on, slice) }, len(together))
		if err != nil {
			return err
		}
		for k, out := range outcomes {
			if err := c.cutOff(out.unreachable); err != nil {
				return err
			}
			if out.done {
				good = append(good, together[k])
				continue
			}
			if !out.began(len(together[k])) {
				untried++
				continue
			}
			bad = append(bad, together[k])
			c.explain(r, out)
		}
	}
	var names []string
	if on >= 0 && on < len(rails) {
		names = []string{rails[on].report.String()}
	}
	switch {
	case len(bad) == 0 && untried > 0:
		return c.broken(nil, names, "all nodes together hang%s, and there was no time to find out which of them is at fault: want a longer --timeout", onRails(names))
	case len(bad) == 0:
		return c.broken(nil, names, "all nodes together hang%s, though each pair of them works by itself: look for addresses given twice, and for rails that have no route to each other",
			onRails(names))
	}
	faulty := fabric.Faulty(good, bad)
	if len(names) == 0 && len(rails) > 1 {
		if names, err = c.faultyRails(ctx, r, rails, bad[0]); err != nil {
			return err
		}
	}
	var texts []string
	for _, pair := range bad {
		texts = append(texts, pair.String())
	}
	what := fmt.Sprintf("%s: the pairs %s do not answer within %s%s", c.named(faulty), strings.Join(texts, ", "), slice.Round(time.Second), onRails(names))
	if len(c.Nodes) == 2 {
		what = fmt.Sprintf("%s do not reach each other within %s%s", c.named(faulty), slice.Round(time.Second), onRails(names))
	}
	for _, f := range r.Findings {
		if !f.Consequence {
			what += fmt.Sprintf("; %s: %s", f.Reason, f.Cause)
			break
		}
	}
	return c.broken(faulty, names, "%s", what)
}

func onRails(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return " on rail " + strings.Join(names, " and ")
}

// pair is the job of two nodes, short: that they talk at all is what it shows.
func (c *Check) pair(pair fabric.Pair, round int, r *fabric.Report, rails []rail, on int, bound time.Duration) *job {
	ranks := r.RanksPerNode
	if r.Backend == fabric.Gloo {
		ranks = 1
	}
	j := c.job(fmt.Sprintf("pair-%d-%s-%d", round, pair, on+1), pair[:], fabric.Input{RanksPerNode: ranks, Backend: r.Backend, Sizes: []agent.Bytes{8, 1 << 20}, WithoutGPU: fabric.LargestWithoutGPU()}, bound)
	if on >= 0 && on < len(rails) {
		j.also(rails[on].only)
	}
	return j
}

// faultyRails are the rails on which a pair that does not work does not work, none where
// it does on no rail.
func (c *Check) faultyRails(ctx context.Context, r *fabric.Report, rails []rail, pair fabric.Pair) ([]string, error) {
	const least, most = 8 * time.Second, 0.9
	bound := c.left(most)
	if bound < least {
		return nil, nil
	}
	outcomes, err := c.together(ctx, func(k int) *job { return c.pair(pair, len(c.Nodes), r, rails, k, bound) }, len(rails))
	if err != nil {
		return nil, err
	}
	var names []string
	for k, out := range outcomes {
		if !out.done {
			names = append(names, rails[k].report.String())
		}
	}
	if len(names) == len(rails) {
		return nil, nil
	}
	return names, nil
}

// explain adds what a failed job shows to the report's findings, once each.
func (c *Check) explain(r *fabric.Report, out outcome) {
	var found []nccl.Finding
	if summary, ok := agent.NCCLOf(out.statuses, nccl.Unknown, nil); ok {
		found = summary.Findings
	}
	if failed, ok := cause.Find(out.statuses); ok {
		if finding, ok := c.fromTorch(failed); ok {
			found = append(found, finding)
		}
	}
	known := map[fail.Reason]bool{}
	for _, f := range r.Findings {
		known[f.Reason] = true
	}
	for _, f := range found {
		if !known[f.Reason] {
			known[f.Reason] = true
			r.Findings = append(r.Findings, f)
		}
	}
}
