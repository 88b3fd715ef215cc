// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/diagnose"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

const (
	// lookEvery is the least time between two looks at all pods that start, because changes come in bursts.
	lookEvery = 500 * time.Millisecond
	// mostPause is how late the cause that keeps a pod from starting may be found.
	mostPause = 10 * time.Second
	// lookShare is how many times longer than a look the pause after it is.
	lookShare = 10
)

// pauseAfter returns how long nothing is read after a look that took so long. A look at hundreds of nodes reads megabytes, and while they
// start there is always a change.
func pauseAfter(took time.Duration) time.Duration {
	return min(max(lookEvery, lookShare*took), mostPause)
}

// repeatEvery is how often a state that does not change is logged.
const repeatEvery = 30 * time.Second

// railTime is how long pods may fail to get RDMA devices and networks before mode auto uses TCP: others may release them.
const railTime = 2 * time.Minute

// waitReady waits until every node's agent answers, or until that is known to be impossible. set is the StatefulSet as it was
// applied.
func (p *provisioner) waitReady(ctx context.Context, credentials agent.Credentials, set *appsv1.StatefulSet) ([]*corev1.Pod, error) {
	watching, stop := context.WithCancelCause(ctx)
	var watches sync.WaitGroup
	defer watches.Wait() // the request may change afterwards
	defer stop(nil)
	changed := make(chan struct{}, 1)
	poke := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	agents := &readiness{p: p, credentials: credentials, changed: poke, answered: map[types.UID]bool{}}
	watches.Go(func() {
		stop(p.environment().WatchPods(watching, func(pods []*corev1.Pod) (bool, error) {
			agents.askNewPods(watching, pods)
			poke()
			return false, nil
		}))
	})
	watches.Go(func() {
		// Only events show some causes, such as a refused pod.
		_ = kube.WatchUntil(watching, "events", p.clients.Kube.CoreV1().Events(p.request.Namespace), metav1.ListOptions{},
			func([]*corev1.Event) (bool, error) { poke(); return false, nil })
	})
	report := &reporter{p: p, set: set}
	// A cause counts for longer if nothing changes, too.
	again := time.NewTicker(repeatEvery)
	defer again.Stop()
	var next time.Time
	for {
		select {
		case <-changed:
		case <-again.C:
		case <-watching.Done():
			return nil, p.notReady(ctx, context.Cause(watching))
		}
		if pods, ready := agents.allReady(); ready {
			return pods, nil
		}
		if left := time.Until(next); left > 0 {
			time.AfterFunc(left, poke)
			continue
		}
		began := time.Now()
		if err := report.look(watching); err != nil && watching.Err() == nil {
			return nil, err
		}
		next = time.Now().Add(pauseAfter(time.Since(began)))
	}
}

// notReady returns the error after the waiting ended: it names the cause if there is one.
func (p *provisioner) notReady(ctx context.Context, cause error) error {
	if errors.Is(cause, context.Canceled) {
		return fail.Becausef(fail.Cancelled, "waiting for environment %s/%s: the step was stopped", p.request.Namespace, p.request.Name)
	}
	if ctx.Err() == nil || isLost(cause) {
		return cause
	}
	looking, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	snapshot, err := diagnose.Collect(looking, p.clients.Kube, p.request.Namespace, p.request.Name)
	if err != nil {
		return errors.Join(cause, err)
	}
	if findings := diagnose.Explain(snapshot, p.now()); len(findings) > 0 {
		err := findings[0].Err("waiting for")
		return fail.Advise(fail.Because(fail.ReasonOf(err), fmt.Errorf("%w (%w)", err, cause)), "%s", fail.NextOf(err))
	}
	return fail.Advise(fail.Becausef(fail.PodsNotReady, "waiting for environment %s/%s: %w: %v", p.request.Namespace, p.request.Name, cause,
		grouped(diagnose.Progress(snapshot, p.now()))),
		"give it more time with --start-timeout, or look: oc describe pods -n %s -l %s", p.request.Namespace, p.environment().Selector())
}

// reporter logs the pods' progress when it changes, and now and then.
type reporter struct {
	p    *provisioner
	set  *appsv1.StatefulSet
	last []string
	at   time.Time
}

func (r *reporter) look(ctx context.Context) error {
	snapshot, err := diagnose.Collect(ctx, r.p.clients.Kube, r.p.request.Namespace, r.p.request.Name)
	if err != nil {
		if fail.ReasonOf(err) != fail.PermissionDenied {
			err = nil // the next look may succeed, and the nodes may come up without one
		}
		return err
	}
	now := r.p.now()
	findings, err := r.p.leaveOut(ctx, diagnose.Explain(snapshot, now), r.set)
	if err != nil {
		return err
	}
	if f, found := r.p.withoutRail(findings, now); found {
		return fail.Because(fail.RDMAUnavailable, f.Err("waiting for"))
	}
	if i := slices.IndexFunc(findings, func(f fail.Finding) bool { return f.Final }); i >= 0 {
		return findings[i].Err("waiting for")
	}
	if err := r.p.replaceWithoutPullSecrets(ctx, snapshot, r.set); err != nil {
		return err
	}
	lines := grouped(diagnose.Progress(snapshot, now))
	for _, finding := range findings {
		lines = append(lines, fmt.Sprintf("%s: %s", finding.Reason, finding.Err("waiting for")))
	}
	for _, line := range lines {
		similar := func(old string) bool { return withoutTime(old) == withoutTime(line) }
		if !slices.Contains(r.last, line) && (now.Sub(r.at) > repeatEvery || !slices.ContainsFunc(r.last, similar)) {
			r.p.log.Info("  " + line)
			r.at = now
		}
	}
	r.last = lines
	return nil
}

// mostLines is up to how many pods have a line each.
const mostLines = 16

// grouped joins the lines of many pods that are in the same state, on whichever node.
func grouped(lines []string) []string {
	if len(lines) <= mostLines {
		return lines
	}
	var states []string
	pods := map[string][]string{}
	for _, line := range lines {
		name, state, _ := strings.Cut(line, ": ")
		if _, onNode, found := strings.Cut(state, ", "); found && strings.HasPrefix(state, "on ") {
			state = onNode
		}
		if pods[state] == nil {
			states = append(states, state)
		}
		pods[state] = append(pods[state], name)
	}
	const shown = 3
	return humanize.Each(states, func(state string) string { return humanize.FirstAnd(pods[state], shown) + ": " + state })
}

// withoutRail returns the finding for which mode auto uses TCP: it is about RDMA alone, and waiting does not help. If GPUs are
// held by others, their RDMA devices are too, and TCP would start the pods no sooner.
func (p *provisioner) withoutRail(findings []fail.Finding, now time.Time) (fail.Finding, bool) {
	others := func(f fail.Finding) bool { return !f.Rail && (f.Final || f.Reason == fail.GPUsUnavailable) }
	if p.request.Mode != agent.RDMA || !p.modeIsOpen() || slices.ContainsFunc(findings, others) {
		return fail.Finding{}, false
	}
	// Pods over TCP need time to start, too.
	limit := min(railTime, p.options.StartTimeout/3)
	i := slices.IndexFunc(findings, func(f fail.Finding) bool {
		return f.Rail && (f.Final || !f.Since.IsZero() && now.Sub(f.Since) > limit)
	})
	if i < 0 {
		return fail.Finding{}, false
	}
	return findings[i], true
}

// withoutTime removes durations, in which lines differ that report the same.
func withoutTime(line string) string {
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune("0123456789ms", r) {
			return -1
		}
		return r
	}, line)
}
