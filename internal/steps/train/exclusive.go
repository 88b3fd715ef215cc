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

// clear makes sure that no other training runs on the nodes: two would use the same port and GPUs. With replace it
// stops those that users started and waits until they end. Otherwise, and for the training of a run, the error is EnvironmentBusy.
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
	running, runs = unique(running), unique(runs)
	if len(runs) > 0 {
		return fail.Advise(fail.Becausef(fail.EnvironmentBusy, "launching %s: run %s works on these nodes", t.Spec.Script, strings.Join(runs, ", ")),
			"wait until it ends, or mlenv cancel %s; --replace stops only trainings that users started", runs[0])
	}
	if len(running) > 0 && !replace {
		return fail.Advise(fail.Becausef(fail.EnvironmentBusy, "launching %s: job %s runs on these nodes", t.Spec.Script, strings.Join(running, ", ")),
			"wait until it ends, or stop it with --replace")
	}
	for _, id := range running {
		t.Log.Info(fmt.Sprintf("Stopping job %s, which runs on these nodes.", id), "job", id)
		other := &Training{Deps: t.Deps, Nodes: t.Nodes, ID: id}
		other.stop(ctx, agent.StopReplaced, "another training was started in its place")
		err = errors.Join(err, t.Nodes.Each(ctx, func(ctx context.Context, client *agent.Client) error {
			return agent.IgnoreNotFound(client.WatchJob(ctx, id, func(agent.JobStatus) error { return nil }))
		}))
	}
	return err
}

func unique(names []string) []string { return slices.Compact(slices.Sorted(slices.Values(names))) }
