package train

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// replaced is why a training was stopped that another one took the place of.
const replaced = "another training was started in its place"

// clear looks for trainings that run on the nodes already: two would want the same port and
// the same GPUs. With replace it stops those of people and waits for their end. Else, and where one is of a
// run, which somebody else waits for, it is EnvironmentBusy.
func (t *Training) clear(ctx context.Context, replace bool) error {
	var mu sync.Mutex
	var running, runs []string
	err := t.Nodes.Each(ctx, func(ctx context.Context, client *agent.Client) error {
		facts, err := client.Facts(ctx)
		if err != nil {
			return err
		}
		for _, id := range facts.Running {
			job, err := client.Job(ctx, id)
			if agent.IsNotFound(err) {
				continue
			} else if err != nil {
				return err
			}
			mu.Lock()
			running = append(running, id)
			if job.Spec.Run != "" {
				runs = append(runs, job.Spec.Run)
			}
			mu.Unlock()
		}
		return nil
	})
	if err != nil {
		return err
	}
	slices.Sort(running)
	running = slices.Compact(running)
	if len(runs) > 0 {
		return fail.Advise(fail.Becausef(fail.EnvironmentBusy, "launching %s: run %s works on these nodes", t.Spec.Script, strings.Join(slices.Compact(slices.Sorted(slices.Values(runs))), ", ")),
			"wait for its end, or mlenv cancel %s; --replace stops only what people have started", runs[0])
	}
	if len(running) > 0 && !replace {
		return fail.Advise(fail.Becausef(fail.EnvironmentBusy, "launching %s: job %s runs on these nodes", t.Spec.Script, strings.Join(running, ", ")),
			"wait for its end, or stop it with --replace")
	}
	for _, id := range running {
		t.Log.Info(fmt.Sprintf("Stopping job %s, which runs on these nodes.", id))
		other := &Training{Nodes: t.Nodes, ID: id, Log: t.Log}
		other.Stop(ctx, replaced)
		err = errors.Join(err, other.waitEnd(ctx))
	}
	return err
}

// waitEnd waits until no node runs a part of the job any more.
func (t *Training) waitEnd(ctx context.Context) error {
	return t.Nodes.Each(ctx, func(ctx context.Context, client *agent.Client) error {
		err := client.WatchJob(ctx, t.ID, func(agent.JobStatus) error { return nil })
		if agent.IsNotFound(err) {
			return nil
		}
		return err
	})
}
