// SPDX-License-Identifier: Apache-2.0

package train

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cause"
	"github.com/ml-dev-env/ml-dev-env/internal/env/jobs"
	"github.com/ml-dev-env/ml-dev-env/internal/env/network"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/env/racks"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/notify"
	"k8s.io/apimachinery/pkg/util/wait"
)

// regroupTime is how long the nodes may take to come back between two attempts. It is the default of start-timeout: a pod on
// another Kubernetes node may have to pull the image. The GPUs of the other nodes are idle meanwhile.
const regroupTime = 20 * time.Minute

// waitSays is the time between two lines about what an attempt waits for.
const waitSays = 30 * time.Second

// mends are the reasons for which another attempt may help. Any other failure would repeat itself.
var mends = []fail.Reason{
	fail.RankFailed, fail.OutOfMemory, fail.GPUMissing, fail.ContainerRestarted, fail.NodeLost, fail.Hang, fail.StopCondition,
}

// onNode is an error for one node.
type onNode struct {
	node int
	error
}

func (e onNode) Unwrap() error { return e.error }

// attempts is Attempt, repeated after a failure as often as MaxRestarts allows. A later attempt of the step continues with the
// newest attempt of the job.
func (t *Training) attempts(ctx context.Context) (Result, error) {
	if t.MaxRestarts == 0 {
		return t.Attempt(ctx)
	}
	if err := t.findNewest(ctx); err != nil {
		return Result{}, err
	}
	for {
		result, err := t.Attempt(ctx)
		if err == nil || ctx.Err() != nil || endsRun(err) {
			return result, err
		}
		failed := t.failed(result, err)
		rank := cause.Error{}
		if why := t.whyFinal(failed, errors.As(err, &rank) && rank.Guessed()); why != "" {
			return result, fmt.Errorf("%w; not restarted: %s", err, why)
		}
		left := t.MaxRestarts - failed.Attempt
		t.Log.Warn(fmt.Sprintf("Attempt %d failed%s: %v. Attempt %d starts when all nodes answer; %s left after it.",
			failed.Attempt, atStep(failed.Last), err, failed.Attempt+1, humanize.Count(left, "restart")), "event", "attempt-failed", "attempt",
			failed.Attempt, "reason", failed.Reason, "error", err)
		t.Notify(notify.Event{Kind: notify.Restart, Attempt: failed.Attempt, Nodes: len(t.Nodes), Reason: failed.Reason, Message: failed.Message,
			Seconds: notify.Took(failed.Started, failed.Ended)})
		began := time.Now()
		t.leaveOutBy(ctx, err, &failed)
		if gatherErr := t.gather(ctx, &failed); ctx.Err() != nil {
			return result, ctx.Err()
		} else if gatherErr != nil {
			return result, fmt.Errorf("%w; not restarted: %w", err, gatherErr)
		}
		t.Spec.Attempts = append(slices.Clip(t.Spec.Attempts), failed)
		t.noteFailed(ctx, failed)
		if portErr := t.newPort(); portErr != nil {
			return result, fmt.Errorf("%w; not restarted: %w", err, portErr)
		}
		t.Log.Info(fmt.Sprintf("All nodes answer %.1f s after attempt %d ended.", time.Since(began).Seconds(), failed.Attempt))
		t.findCheckpoint(ctx)
	}
}

// endsRun reports whether an attempt was ended by a rule after which none follows.
func endsRun(err error) bool {
	trouble := troubleError{}
	return fail.ReasonOf(err) == fail.StopCondition && (!errors.As(err, &trouble) || !trouble.restarts)
}

func atStep(step *float64) string {
	if step == nil {
		return ""
	}
	return fmt.Sprintf(" at step %.0f", *step)
}

// findNewest continues with the newest attempt that a node has a record of. All attempts share the first one's deadline.
func (t *Training) findNewest(ctx context.Context) error {
	var statuses []agent.JobStatus
	err := nodes.RetryUnreachable(ctx, func() (err error) {
		statuses, err = t.job().Statuses(ctx)
		return err
	})
	for _, status := range statuses {
		if found := status.Spec; found.Nodes > 0 && found.Attempt() >= t.Spec.Attempt() {
			t.Spec.Attempts, t.Spec.Deadline, t.Spec.MasterPort = found.Attempts, found.Deadline, found.MasterPort
			t.Spec.Checkpoint, t.Spec.CheckpointJob = found.Checkpoint, found.CheckpointJob
		}
	}
	return err
}

// failed returns the record of the attempt that ended with err.
func (t *Training) failed(result Result, err error) agent.Attempt {
	a := agent.AttemptOf(t.Spec, result.Statuses)
	a.Ended, a.Reason, a.Message = time.Now().UTC(), fail.ReasonOf(err), humanize.OneLine(err.Error(), 1000)
	a.First, a.Last, a.StepTimes = result.First, result.Last, result.StepTimes
	var on onNode
	var hang hangError
	var failed cause.Error
	switch {
	case errors.As(err, &on):
		a.Node = &on.node
	case errors.As(err, &failed):
		a.Node, a.Rank = &failed.Rank.Node, &failed.Rank.Rank
		if failed.Waiting == nil { // else that rank had to be stopped, which is not an error of its own
			a.Symptom = failed.Symptom()
		}
	}
	if errors.As(err, &hang) {
		a.Symptom, a.Hang = hang.culprit, &hang.silence
	}
	if trouble := (troubleError{}); errors.As(err, &trouble) {
		a.Symptom, a.Doubt = trouble.rule.String(), trouble.doubtFrom(a.Started)
	}
	a.Symptom = cmp.Or(a.Symptom, a.Message)
	return a
}

// whyFinal returns why no attempt follows the failed one, "" if one does. A guessed reason ends nothing.
func (t *Training) whyFinal(failed agent.Attempt, guessed bool) string {
	switch {
	case !guessed && !slices.Contains(mends, failed.Reason):
		return "another attempt would not help against " + string(failed.Reason)
	case !t.Spec.Deadline.IsZero() && !time.Now().Before(t.Spec.Deadline):
		return "the time of the training is over"
	case len(t.Spec.Attempts) == 0:
		return ""
	}
	last := t.Spec.Attempts[len(t.Spec.Attempts)-1]
	either := func(reason fail.Reason) bool { return last.Reason == reason || failed.Reason == reason }
	lostNode, killed := either(fail.NodeLost), either(fail.ContainerRestarted) // from outside
	progressed := last.Last != nil && failed.Last != nil && *failed.Last > *last.Last
	switch {
	case !lostNode && !progressed && last.Symptom == failed.Symptom:
		return fmt.Sprintf("attempt %d ended with the same error%s", last.Attempt, atStep(last.Last))
	case !lostNode && !killed && !progressed && last.Last != nil && failed.Last != nil:
		return fmt.Sprintf("attempt %d had already reached step %.0f", last.Attempt, *last.Last)
	case len(t.Spec.Attempts) >= t.MaxRestarts:
		return fmt.Sprintf("max-restarts allows %s", humanize.Count(t.MaxRestarts, "restart"))
	}
	return ""
}

// end stops what still runs of the job, such as the ranks of a node that could not be reached, and waits for its end.
func (t *Training) end(ctx context.Context, reason string) error {
	return t.job().StopAndWait(ctx, agent.Stop{Reason: reason, Grace: jobs.Grace})
}

// gather leaves out the nodes at fault of a failed attempt, and waits for a full set of nodes without faults on which nothing of the job
// runs any more. It prepares them as provision did, because a new pod is not prepared.
func (t *Training) gather(ctx context.Context, failed *agent.Attempt) error {
	bound := min(regroupTime, time.Until(t.Spec.Deadline)).Round(time.Second)
	ctx, cancel := context.WithTimeoutCause(ctx, bound, fmt.Errorf("the nodes were not back after %s", bound))
	defer cancel()
	renewed := map[int]bool{} // the nodes that have a new pod
	for {
		if err := t.waitAllReady(ctx); err != nil {
			return err
		}
		if err := t.readPods(ctx); err != nil {
			return err
		}
		if err := t.end(ctx, "the training is restarted"); err != nil {
			return err
		}
		if t.Exclusive { // another user may have started one meanwhile
			if err := t.stopOtherTrainings(ctx, false); err != nil {
				return err
			}
		}
		facts, err := nodes.AskAll(ctx, t.Nodes, (*agent.Client).Facts) // now that no ranks keep nvidia-smi waiting
		if err != nil {
			return err
		}
		if t.replacePods(ctx, facts, renewed) {
			continue
		}
		// A new pod does not know its network, and if all are new none does.
		settings := t.Network.Settings
		settings.Racks = racks.OfNodes(facts)
		prepared, err := network.Prepare(ctx, t.Nodes, settings)
		if node, fault := faulty(facts, prepared); fault != "" && t.leaveOut(ctx, failed, node, fault) {
			continue
		}
		if err != nil {
			return err
		}
		t.Network, t.Spec.Order = prepared, racks.RankOrder(settings.Racks)
		node, fault, err := t.checkFabric(ctx)
		if fault != "" && t.leaveOut(ctx, failed, node, fault) {
			continue
		}
		if err == nil {
			t.measured = t.uids
		}
		return err
	}
}

// waitAllReady waits until the environment has a ready pod for every node, all of them answer, and find node 0 by its name. While it waits
// it says for what.
func (t *Training) waitAllReady(ctx context.Context) error {
	pods, ok := t.podEnvironment()
	if !ok {
		return nil
	}
	var seen atomic.Pointer[string]
	waits := func(text string) { seen.Store(&text) }
	saying, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		_ = wait.PollUntilContextCancel(saying, waitSays, false, func(context.Context) (bool, error) {
			if text := seen.Load(); text != nil {
				t.Log.Info("Still waiting for the nodes: " + *text)
			}
			return false, nil
		})
	}()
	master, err := pods.WaitAllReady(ctx, len(t.Nodes), waits)
	if err != nil {
		return err
	}
	t.Nodes.Close() // connections to pods that are gone
	name := pods.TLSName(0)
	return t.Nodes.Each(ctx, func(ctx context.Context, client *agent.Client) error {
		return nodes.RetryUnreachable(ctx, func() error {
			answer, err := client.Resolve(ctx, []string{name})
			if err == nil && !slices.Contains(answer.Addresses[name], master) {
				// DNS remembers the address of an earlier pod for a while.
				err = fail.Becausef(fail.AgentUnreachable, "resolving %s on node %d: %v %s; want %s", name, client.Node(), answer.Addresses[name],
					answer.Problems[name], master)
			}
			if err != nil {
				waits(err.Error())
			}
			return err
		})
	})
}
