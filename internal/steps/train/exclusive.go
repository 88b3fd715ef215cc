// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/jobs"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// stopOtherTrainings makes sure that no other training runs on the nodes: two would use the same port and GPUs. With replace it
// stops those that users started and waits until they end. Otherwise, and for the training of a run, the error is EnvironmentBusy.
func (t *Training) stopOtherTrainings(ctx context.Context, replace bool) error {
	found, err := jobs.Running(ctx, t.Nodes)
	if err != nil {
		return err
	}
	var running, runs []string
	for _, job := range found {
		running = append(running, job.ID)
		if job.Spec.Run != "" {
			runs = append(runs, job.Spec.Run)
		}
	}
	running, runs = unique(running), unique(runs)
	if len(runs) > 0 {
		return fail.Advise(fail.Becausef(fail.EnvironmentBusy, "launching %s: run %s works on these nodes", t.Spec.Script,
			strings.Join(runs, ", ")),
			"wait until it ends, or mlenv cancel %s; --replace stops only trainings that users started", runs[0])
	}
	if len(running) > 0 && !replace {
		return fail.Advise(fail.Becausef(fail.EnvironmentBusy, "launching %s: job %s runs on these nodes", t.Spec.Script,
			strings.Join(running, ", ")),
			"wait until it ends, or stop it with --replace")
	}
	for _, id := range running {
		t.Log.Info(fmt.Sprintf("Stopping job %s, which runs on these nodes.", id))
		ending, cancel := context.WithTimeout(ctx, jobs.Reachable)
		stop := agent.Stop{Cause: agent.StopReplaced, Reason: "another training was started in its place", Grace: jobs.Grace}
		err = errors.Join(err, jobs.Job{ID: id, Members: t.Nodes}.StopAndWait(ending, stop))
		cancel()
	}
	return err
}

func unique(names []string) []string { return slices.Compact(slices.Sorted(slices.Values(names))) }
