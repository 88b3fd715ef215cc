// SPDX-License-Identifier: Apache-2.0

package run

import (
	"fmt"
	"strings"
	"time"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// margin is added to the advised time, because the pods of the next run may start later.
const margin = 5 * time.Minute

const (
	// TeardownTime bounds the finally tasks if ranks have the default time to save, or less.
	TeardownTime = 5 * time.Minute
	// savingTime is the time to save that the bound of the finally tasks includes.
	savingTime = 30 * time.Second
)

// fabricTime bounds check-fabric: 90 s, and the start of its pod.
const fabricTime = 2 * time.Minute

// Needs is the time for the rest of a run. Preflight runs in parallel to the build; CheckTimeouts adds check-fabric.
type Needs struct {
	Build    time.Duration
	Start    time.Duration
	Training time.Duration
	// Grace is how long the ranks may save after the training's time. The step train waits for that, or else the teardown.
	Grace    time.Duration
	Teardown time.Duration
}

// finally returns the time of the finally tasks.
func (n Needs) finally() time.Duration { return n.Teardown + max(0, n.Grace-savingTime) }

// CheckTimeouts fails with TimeoutTooShort, and the right flags of tkn pipeline start, if the run's timeouts are shorter
// than its needs. A run that has not started counts from now.
func CheckTimeouts(r *Run, need Needs, now time.Time) error {
	var elapsed time.Duration
	if !r.Started.IsZero() {
		elapsed = max(0, now.Sub(r.Started))
	}
	t := r.Timeouts
	var fabric time.Duration
	if r.ChecksFabric && need.Training > 0 {
		fabric = fabricTime
	}
	tasks := elapsed + need.Build + need.Start + fabric + need.Training + need.Grace
	finally := need.finally()
	var short []string
	tooShort := func(name string, has, wants time.Duration) {
		if has != 0 && has < wants {
			short = append(short, fmt.Sprintf("%s %s, want %s", name, compact(has), compact(roundUp(wants))))
		}
	}
	tooShort("pipeline", t.Pipeline, tasks+need.Teardown)
	tooShort("tasks", t.Tasks, tasks)
	tooShort("finally", t.Finally, finally)
	if len(short) == 0 {
		return nil
	}
	optional := func(d time.Duration, purpose string) string {
		if d == 0 {
			return ""
		}
		return compact(d) + purpose
	}
	forTasks, forFinally := roundUp(tasks+margin), roundUp(finally)
	return fail.Finding{
		Reason: fail.TimeoutTooShort,
		Object: fmt.Sprintf("the timeouts of pipelinerun %s/%s", r.Namespace, r.Name),
		Seen: fmt.Sprintf("%s (%s since its start, %s%s to start, %s%s of training, %s%s to tear down)", strings.Join(short, "; "),
			compact(elapsed),
			optional(need.Build, " to build the image, "), compact(need.Start), optional(fabric, " to check the network, "), compact(need.Training),
			optional(need.Grace, " to save when it is stopped, "), compact(need.Teardown)),
		Next: fmt.Sprintf("tkn pipeline start ... --pipeline-timeout=%s --tasks-timeout=%s --finally-timeout=%s", compact(forTasks+forFinally),
			compact(forTasks), compact(forFinally)),
	}.Err("checking")
}

// between is the time for what has no deadline of its own: the start of the tasks' pods, sync-repo, check-fabric. It does
// not hold GPUs longer, because the training's deadline counts from its own start.
const between = 30 * time.Minute

// TimeoutsFor returns timeouts for a new run that CheckTimeouts accepts.
func TimeoutsFor(need Needs) Timeouts {
	tasks := roundUp(need.Build + need.Start + need.Training + need.Grace + between)
	finally := roundUp(need.finally())
	return Timeouts{Pipeline: tasks + finally, Tasks: tasks, Finally: finally}
}

// Fields returns the timeouts as the field of a PipelineRun.
func (t Timeouts) Fields() *v1.TimeoutFields {
	return &v1.TimeoutFields{
		Pipeline: &metav1.Duration{Duration: t.Pipeline},
		Tasks:    &metav1.Duration{Duration: t.Tasks},
		Finally:  &metav1.Duration{Duration: t.Finally},
	}
}

func roundUp(d time.Duration) time.Duration {
	if rest := d % time.Minute; rest != 0 {
		return d - rest + time.Minute
	}
	return d
}

// compact writes 25h2m where Go writes 25h2m0s.
func compact(d time.Duration) string {
	text := d.Round(time.Second).String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
