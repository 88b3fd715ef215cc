// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/metrics"
	"github.com/ml-dev-env/ml-dev-env/internal/parallel"
	"github.com/ml-dev-env/ml-dev-env/internal/rules"
)

const (
	// looksPerRule is how often a fact is looked at within the time of a rule, at least.
	looksPerRule = 8
	// checkpointLook is the longest time between two looks for checkpoints, for a rule about them.
	checkpointLook = 2 * time.Minute
	// gpuLook is the longest time between two looks at the GPUs, for a rule about their use.
	gpuLook = 15 * time.Second
	// leastLook is the shortest time between two looks for a rule.
	leastLook = 50 * time.Millisecond
)

// measure returns a line of the metrics as a fact. Its own time is by the clock of node 0.
func (t *Training) measure(line map[string]any) measured {
	at, ok := metrics.TimeOf(line)
	if !ok {
		return measured{line, time.Now()}
	}
	return measured{line, at.Add(t.Nodes[0].Behind())}
}

// watchCheckpoints sends the newest complete checkpoint, if a rule is judged by it. It sends nothing while the nodes do not answer.
func (t *Training) watchCheckpoints(ctx context.Context, send func(event)) {
	every := t.lookEvery(checkpointLook, func(rule rules.Rule) time.Duration {
		of, _ := rule.(rules.Unsaved)
		return of.For
	})
	look(ctx, every, func(ctx context.Context) {
		if newest, at, err := t.newestCheckpoint(ctx); err == nil {
			send(saved{at, newest.Modified})
		}
	})
}

// watchGPUs sends the use of the GPUs, if a rule is judged by it. It sends nothing unless all GPUs are known.
func (t *Training) watchGPUs(ctx context.Context, send func(event)) {
	every := t.lookEvery(gpuLook, func(rule rules.Rule) time.Duration {
		of, _ := rule.(rules.Idle)
		return of.For
	})
	look(ctx, every, func(ctx context.Context) {
		if use, complete := t.gpuUse(ctx); complete {
			send(use)
		}
	})
}

// lookEvery returns the time between two looks at a fact, 0 if no rule needs it. of returns the time of a rule, 0 for another fact's.
func (t *Training) lookEvery(longest time.Duration, of func(rules.Rule) time.Duration) (every time.Duration) {
	for _, rule := range slices.Concat(t.StopIf.Rules, t.RestartIf.Rules) {
		if lasts := of(rule); lasts > 0 {
			next := max(leastLook, min(longest, lasts/looksPerRule))
			if every == 0 || next < every {
				every = next
			}
		}
	}
	return every
}

func look(ctx context.Context, every time.Duration, once func(context.Context)) {
	if every == 0 {
		return
	}
	_ = wait.PollUntilContextCancel(ctx, every, true, func(ctx context.Context) (bool, error) {
		once(ctx)
		return false, nil
	})
}

// gpuUse returns the mean use of all nodes' GPUs, without GPUs if one of them does not report its use, as MIG devices do not. complete is
// false if a node does not answer, or does not see all of its GPUs.
func (t *Training) gpuUse(ctx context.Context) (use used, complete bool) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	type answer struct {
		agent.Facts
		err error
	}
	sum, hidden, complete := 0, false, true
	for _, of := range parallel.Map(t.Nodes, func(client *agent.Client) answer {
		facts, err := client.Facts(ctx)
		return answer{facts, err}
	}) {
		complete = complete && of.err == nil && len(of.GPUs) >= of.GPUsExpected
		for _, gpu := range of.GPUs {
			sum, use.gpus, hidden = sum+gpu.Utilization, use.gpus+1, hidden || gpu.Unmeasured
		}
	}
	switch {
	case hidden:
		return used{}, complete
	case use.gpus > 0:
		use.percent = float64(sum) / float64(use.gpus)
	}
	return use, complete
}

// gpuText returns the mean use of the GPUs that are known for the log, "" without GPUs.
func (t *Training) gpuText(ctx context.Context) string {
	use, _ := t.gpuUse(ctx)
	if use.gpus == 0 {
		return ""
	}
	return fmt.Sprintf("GPUs %d%% busy", int(use.percent))
}

// warnUnjudged warns of the rules of a training that has ended by itself and wrote nothing by which they are judged.
func (t *Training) warnUnjudged(shown *progress) {
	loss, step := shown.measures()
	for _, r := range watches(t.StopIf.Rules, t.RestartIf.Rules, false) {
		_, slow := r.rule.(rules.Slow)
		_, byLoss := r.watcher.(*lossWatch)
		if byLoss && !loss || slow && !step {
			t.Log.Warn(fmt.Sprintf("Rule %q of %s was not judged: the training has written no %s to its metrics.",
				r.rule, r.param(), map[bool]string{true: "loss", false: "step"}[byLoss]))
		}
	}
}
