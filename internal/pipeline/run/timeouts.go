package run

import (
	"fmt"
	"strings"
	"time"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// margin is added to the time that is advised: the next run's tasks do not wait
// for their pods exactly as long as this one's.
const margin = 5 * time.Minute

// TeardownTime is what the finally tasks take.
const TeardownTime = 5 * time.Minute

// fabricTime is what measuring the network takes: its bound of 90 s, and the pod's start.
const fabricTime = 2 * time.Minute

// Needs is what a run still has to do. Preflight is in none of them: it runs beside the
// build, and before the environment starts. What measuring the network takes is added
// where the run does that.
type Needs struct {
	// Build is until there is an image, Start until the environment can be used,
	// Training its own deadline.
	Build    time.Duration
	Start    time.Duration
	Training time.Duration
	// Teardown is what the finally tasks take.
	Teardown time.Duration
}

// CheckTimeouts fails with TimeoutTooShort where the run would be ended before
// its work can be, with the flags of tkn pipeline start that fit. A run that has
// not started counts from now.
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
	tasks := elapsed + need.Build + need.Start + fabric + need.Training
	var short []string
	tooShort := func(name string, has, wants time.Duration) {
		if has != 0 && has < wants {
			short = append(short, fmt.Sprintf("%s %s, want %s", name, compact(has), compact(roundUp(wants))))
		}
	}
	tooShort("pipeline", t.Pipeline, tasks+need.Teardown)
	tooShort("tasks", t.Tasks, tasks)
	tooShort("finally", t.Finally, need.Teardown)
	if len(short) == 0 {
		return nil
	}
	build, check := "", ""
	if need.Build > 0 {
		build = compact(need.Build) + " to build the image, "
	}
	if fabric > 0 {
		check = compact(fabric) + " to check the network, "
	}
	forTasks, forFinally := roundUp(tasks+margin), roundUp(need.Teardown)
	return fail.Advise(
		fail.Becausef(fail.TimeoutTooShort, "checking the timeouts of pipelinerun %s/%s: %s (%s since its start, %s%s to start, %s%s of training, %s to tear down)",
			r.Namespace, r.Name, strings.Join(short, "; "), compact(elapsed), build, compact(need.Start), check, compact(need.Training), compact(need.Teardown)),
		"tkn pipeline start ... --pipeline-timeout=%s --tasks-timeout=%s --finally-timeout=%s",
		compact(forTasks+forFinally), compact(forTasks), compact(forFinally))
}

// between is what a run may take beside what has a deadline of its own: waiting for its tasks' pods, sending
// the repository and installing its requirements, measuring the network. GPUs are held no longer by it: the
// training's own deadline counts from its own start.
const between = 30 * time.Minute

// TimeoutsFor are the timeouts of a run about to be started that CheckTimeouts does not refuse.
func TimeoutsFor(need Needs) Timeouts {
	tasks, finally := roundUp(need.Build+need.Start+need.Training+between), roundUp(need.Teardown)
	return Timeouts{Pipeline: tasks + finally, Tasks: tasks, Finally: finally}
}

// Fields are the timeouts as a PipelineRun has them.
func (t Timeouts) Fields() *v1.TimeoutFields {
	return &v1.TimeoutFields{
		Pipeline: &metav1.Duration{Duration: t.Pipeline},
		Tasks:    &metav1.Duration{Duration: t.Tasks},
		Finally:  &metav1.Duration{Duration: t.Finally},
	}
}

// roundUp is to whole minutes.
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
