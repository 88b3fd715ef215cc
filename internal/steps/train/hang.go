// SPDX-License-Identifier: Apache-2.0

package train

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cause"
	"github.com/ml-dev-env/ml-dev-env/internal/env/jobs"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/notify"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/param"
)

// HangTimeout is how long no rank of a training may print or measure anything before it counts as hanging. The zero value adapts
// to the training.
//
// What counts as progress is output and metrics alone, of any rank. Processor time does not: a rank that waits in NCCL uses a
// whole processor. An adapted bound ends a training only if all nodes answer, no rank evidently works (cause.DoesOtherWork), and some
// rank evidently waits for another (cause.WaitsForOther); with launcher command it only warns. An explicit bound is a promise, and
// ends the training whatever its ranks do.
type HangTimeout struct {
	// Explicit is true if Bound is the user's.
	Explicit bool
	// Bound is 0 for never.
	Bound time.Duration
}

// String implements pflag.Value.
func (h *HangTimeout) String() string {
	switch {
	case !h.Explicit:
		return "auto"
	case h.Bound == 0:
		return "0"
	}
	return h.Bound.String()
}

// Set implements pflag.Value.
func (h *HangTimeout) Set(text string) error {
	var err error
	h.Bound, h.Explicit, err = param.ParseHangTimeout(text)
	return err
}

// Type implements pflag.Value.
func (h *HangTimeout) Type() string { return "auto|duration" }

const (
	// quietWarning is after how much silence the log warns.
	quietWarning = 3 * time.Minute
	// leastHang is the shortest silence that hang-timeout=auto takes for a hang.
	leastHang = 5 * time.Minute
	// margin is how many times the longest step, or the longest silence that ended, that bound is.
	margin = 3
	// lookEvery is how often the agents are asked whether ranks still print or measure something.
	lookEvery = 15 * time.Second
	// againAfter is after what time a silent rank that works is looked at again.
	againAfter = 2 * time.Minute
	// stacksTime is how long the agents may take for stacks.
	stacksTime = time.Minute
)

func (h HangTimeout) every() time.Duration {
	if h.Explicit && h.Bound > 0 {
		return min(lookEvery, max(h.Bound/8, 50*time.Millisecond))
	}
	return lookEvery
}

// warning returns the silence after which the log warns, for such a bound.
func (h HangTimeout) warning(bound time.Duration) time.Duration {
	switch {
	case bound == 0:
		return quietWarning
	case h.Explicit:
		return min(quietWarning, bound/2)
	}
	return max(quietWarning, bound/2)
}

// silenceWatch decides what the silence of a training means.
type silenceWatch struct {
	timeout HangTimeout
	// next is the silence after which the stacks are looked at again, before what they were.
	next   time.Duration
	before []agent.RankActivity
	// last is the silence at the last look, and longest the longest one that ended.
	last, longest time.Duration
}

// bound returns the longest silence from now on of a training that started then, 0 for any. A training that was silent before, and then
// printed something, may be so again.
func (w *silenceWatch) bound(spec agent.JobSpec, quiet time.Duration, shown *progress, start time.Time) time.Duration {
	if quiet < w.last {
		w.longest = max(w.longest, w.last)
	}
	w.last = quiet
	switch {
	case w.timeout.Explicit:
		return w.timeout.Bound
	case spec.Launcher == agent.Command: // its process may wait for anything
		return 0
	}
	first, longest := shown.stepTime(start)
	return max(leastHang, first, margin*longest, margin*w.longest)
}

type meaning int

const (
	// goesOn: it is too short to mean anything, or another look is needed.
	goesOn meaning = iota
	// silent: users should know.
	silent
	// working: it is longer than the bound, and a rank works.
	working
	// unclear: it is longer than the bound, and nothing shows that ranks wait for another one.
	unclear
	// hanging: the training hangs.
	hanging
)

// look judges a silence. It asks what the ranks do only if that matters, and returns it; worker is the rank that works.
func (w *silenceWatch) look(statuses []agent.JobStatus, quiet, bound time.Duration, ask func() (now []agent.RankActivity, complete bool)) (
	m meaning, now []agent.RankActivity, worker int) {
	if quiet < w.timeout.warning(bound) {
		w.next, w.before = 0, nil
		return goesOn, nil, 0
	}
	if quiet < w.next {
		return goesOn, nil, 0
	}
	now, complete := ask()
	before := w.before
	w.before = now
	worker, works := cause.DoesOtherWork(before, now)
	switch {
	case bound == 0:
		w.next = 2 * quiet
		return silent, now, 0
	case quiet < bound:
		w.next = bound
		return silent, now, 0
	case w.timeout.Explicit:
		return hanging, now, 0
	case works:
		w.next = quiet + againAfter
		return working, now, worker
	case !complete || !cause.WaitsForOther(statuses, before, now):
		w.next = quiet + againAfter
		return unclear, now, 0
	case before == nil: // one look does not show whether the stacks change
		return goesOn, now, 0
	}
	return hanging, now, 0
}

// watchSilence warns about a training that is silent, and sends hung if it hangs.
func (t *Training) watchSilence(ctx context.Context, shown *progress, send func(event)) {
	if t.Spec.DebugRank != nil {
		return // a rank that waits for its debugger is silent
	}
	w, m, toldUnhooked := silenceWatch{timeout: t.HangTimeout}, meeting{}, false
	_ = wait.PollUntilContextCancel(ctx, t.HangTimeout.every(), false, func(ctx context.Context) (over bool, err error) {
		statuses, quiet, ok := t.silence(ctx)
		if !ok || slices.ContainsFunc(statuses, func(s agent.JobStatus) bool { return !s.Stopping.IsZero() }) {
			return false, nil // ranks that save may be silent, and have their own bound
		}
		t.watchRendezvous(ctx, &m, statuses, time.Now())
		toldUnhooked = toldUnhooked || t.warnUnhooked(statuses)
		bound := w.bound(t.Spec, quiet, shown, statuses[0].Started)
		means, now, worker := w.look(statuses, quiet, bound, func() ([]agent.RankActivity, bool) { return t.activities(ctx) })
		if means == goesOn || ctx.Err() != nil {
			return false, nil //nolint:nilerr // the poll itself ends with ctx
		}
		culprit, ranks := cause.Suspects(t.Spec, statuses, now)
		text := fmt.Sprintf("No rank has printed or measured anything for %s: %s. Last output: %s.", quiet.Round(time.Second), culprit,
			lastOutput(statuses))
		switch {
		case means == hanging:
			err := t.hangFailure(statuses, quiet, bound, hangError{culprit: culprit, ranks: ranks})
			t.Notify(notify.Event{Kind: notify.Hang, Attempt: t.Spec.Attempt(), Nodes: len(t.Nodes), Reason: fail.Hang, Message: err.Error()})
			send(hung{err: err, why: "it hangs: " + culprit})
			return true, nil
		case means == working:
			text += fmt.Sprintf(" Rank %d works, so the training continues.", worker)
		case means == unclear:
			text += " Nothing shows that ranks wait for another one, so the training continues; an explicit hang-timeout would end it."
		case bound > 0:
			text += fmt.Sprintf(" After %s of silence the training counts as hanging (hang-timeout).", bound.Round(time.Second))
		}
		t.Log.Warn(text, "event", "hang", "quietSeconds", quiet.Seconds())
		return false, nil
	})
}

// warnUnhooked warns of a rank whose Python the hook does not reach, and reports whether there is one.
func (t *Training) warnUnhooked(statuses []agent.JobStatus) bool {
	for _, status := range statuses {
		for _, rank := range status.Ranks {
			if rank.Unhooked != "" {
				t.Log.Warn(fmt.Sprintf("Rank %d on node %d started a Python with PYTHONPATH=%s, without the folder that ranks get: its steps are "+
					"not shown, and it does not save when it is stopped. Next: add :$PYTHONPATH where the script sets the variable.", rank.Rank,
					rank.Node, rank.Unhooked))
				return true
			}
		}
	}
	return false
}

// silence returns how long no rank has printed or measured anything. ok is false if a node does not answer, or no node runs: whether
// it is lost is decided elsewhere.
func (t *Training) silence(ctx context.Context) (statuses []agent.JobStatus, quiet time.Duration, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, jobs.Reachable)
	defer cancel()
	statuses, err := t.job().Statuses(ctx)
	for _, status := range statuses {
		if status.State == agent.Running && (!ok || status.Quiet < quiet) {
			quiet, ok = status.Quiet, true
		}
	}
	unknown := func(status agent.JobStatus) bool { return status.ID == "" }
	return statuses, quiet, ok && err == nil && !slices.ContainsFunc(statuses, unknown)
}

// activities returns what the live ranks of all nodes that answer do, complete if all nodes do. The nodes write the stacks into the
// record.
func (t *Training) activities(parent context.Context) (all []agent.RankActivity, complete bool) {
	ctx, cancel := context.WithTimeout(parent, stacksTime)
	defer cancel()
	var mu sync.Mutex
	all, complete = []agent.RankActivity{}, true // not nil, also if no rank has started
	_ = t.Nodes.Each(ctx, func(ctx context.Context, client *agent.Client) error {
		found, err := client.Stacks(ctx, t.ID)
		mu.Lock()
		defer mu.Unlock()
		complete = complete && err == nil
		if err != nil && parent.Err() == nil {
			t.Log.Warn(fmt.Sprintf("Node %d did not report what its ranks do: %v", client.Node(), err))
		}
		all = append(all, found...)
		return nil
	})
	slices.SortFunc(all, func(a, b agent.RankActivity) int { return cmp.Compare(a.Rank, b.Rank) })
	return all, complete
}

func lastOutput(statuses []agent.JobStatus) string {
	var live []agent.RankStatus
	for _, status := range statuses {
		for _, rank := range status.Ranks {
			if rank.Ended.IsZero() {
				live = append(live, rank)
			}
		}
	}
	if len(live) == 0 {
		return "no rank runs"
	}
	slices.SortStableFunc(live, func(a, b agent.RankStatus) int { return cmp.Compare(b.Quiet, a.Quiet) })
	const most = 8
	var parts []string
	for _, rank := range live[:min(len(live), most)] {
		parts = append(parts, fmt.Sprintf("rank %d %s ago", rank.Rank, rank.Quiet.Round(time.Second)))
	}
	if more := len(live) - most; more > 0 {
		parts = append(parts, fmt.Sprintf("%d more later", more))
	}
	return strings.Join(parts, ", ")
}

// hangError is an error of type Hang with its culprit, without the time of the silence.
type hangError struct {
	culprit string
	// ranks are those that the culprit names.
	ranks []int
	// silence is the one that was too long.
	silence agent.Hang
	error
}

func (e hangError) Unwrap() error { return e.error }

func (t *Training) hangFailure(statuses []agent.JobStatus, quiet, bound time.Duration, hang hangError) error {
	now := time.Now().UTC()
	hang.silence = agent.Hang{Since: now.Add(-quiet), Named: now}
	hang.error = fmt.Errorf("training: %s; no rank has printed or measured anything for %s, want progress within %s",
		hang.culprit, quiet.Round(time.Second), bound.Round(time.Second))
	err := fail.Because(fail.Hang, hang)
	if t.Spec.Run != "" { // the nodes will be gone
		return fail.Advise(err, "mlenv fetch %s %s%s   # the stacks of all ranks are stacks-RANK.txt there", t.Spec.Run, statuses[0].Record,
			cause.Job{Namespace: t.Clients.Namespace}.NamespaceFlag())
	}
	return fail.Advise(err, "the stacks of all ranks are %s/stacks-RANK.txt on the nodes", statuses[0].Record)
}
