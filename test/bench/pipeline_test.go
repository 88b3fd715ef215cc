// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

// phases are the tasks of the pipeline in their order. The tasks of a group run in parallel.
var phases = [][]string{{"build-image", "preflight"}, {"provision"}, {"sync-repo", "check-fabric"}, {"train"}, {"teardown"}}

// phaseTimes has seconds, one value per run. A phase's own time excludes its pod's start and its waits. noticed is the
// part from the last line of the log until the task is done, which the kubelet and Tekton need.
type phaseTimes struct{ took, pod, inner, own, noticed []float64 }

// podStages are the parts of the start of a task's pod. Tekton adds the init containers and the entrypoint.
var podStages = [...]struct{ from, to, title string }{
	{"made", "scheduled", "until it is scheduled"},
	{"scheduled", "initialized", "volumes, sandbox and Tekton's init containers"},
	{"initialized", "running", "until its container runs"},
	{"running", "started", "until Tekton's entrypoint starts the step"},
}

type pipelineTimes struct {
	phases map[string]*phaseTimes
	// between is the time that Tekton needs between the tasks.
	total, between, pods, training, own []float64
	// stages has the parts of the starts of the tasks' pods, by the numbers of podStages, and plain those of a task that has nothing of
	// ours but the image.
	stages, plain        [len(podStages)][]float64
	first, step, noticed []float64
	// Times of the verdicts, from the end of the last rank.
	train, receipt, run []float64
}

// BenchmarkPipeline runs train-multi-node and splits its time into phases.
func BenchmarkPipeline(b *testing.B) {
	ns := installed(b)
	t := pipelineTimes{phases: map[string]*phaseTimes{}}
	for _, phase := range slices.Concat(phases...) {
		t.phases[phase] = &phaseTimes{}
	}
	for i := 0; b.Loop(); i++ {
		check(b, ns.timePipeline(b.Context(), "pipeline-"+strconv.Itoa(i), &t))
		check(b, ns.timePlain(b.Context(), "plain-"+strconv.Itoa(i), &t))
	}
	t.report(b)
}

func (t pipelineTimes) report(b *testing.B) {
	table := newTable("pipeline train-multi-node, of a training of one step on 2 nodes x 1 rank",
		"A pod's start is from its creation until Tekton starts its step, the environment's pods' until all are ready: what any pod costs here",
		"launcher command; images are on the nodes, claims are new; moments are those at which a watch reported them")
	inner := map[string]string{"provision": "the environment's pods start in %s s", "train": "the ranks run for %s s"}
	for _, name := range slices.Concat(phases...) {
		phase := t.phases[name]
		compared := fmt.Sprintf("its pod starts in %s s", number(median(phase.pod)))
		if text := inner[name]; text != "" {
			compared += "; " + fmt.Sprintf(text, number(median(phase.inner)))
		}
		table.add(name, "s", phase.took, compared+"; its own: "+number(median(phase.own))+" s, of that until its end is noticed "+
			number(median(phase.noticed)))
	}
	table.add("between the tasks, and before and after them", "s", t.between)
	table.add("the whole run", "s", t.total)
	table.add("… of that, the start of its pods", "s", t.pods)
	for i, stage := range podStages {
		table.add("… of each task's pod: "+stage.title, "s", t.stages[i], number(median(t.plain[i]))+
			" s in a task with the same image and nothing else")
	}
	table.add("… the ranks", "s", t.training)
	table.add("… the pipeline's own overhead: the rest", "s", t.own, less(t.own, 10, "the aim of 10 s"))
	table.add("… of that, until Kubernetes and Tekton notice the ends of its steps", "s", t.noticed)
	table.add("from the start of provision's step to the first rank", "s", t.first)
	table.add("… to the first training step", "s", t.step)
	table.add("from the last rank's end to the end of task train", "s", t.train, less(t.train, 1, "the aim of 1 s"))
	table.add("… to the receipt", "s", t.receipt)
	table.add("… to the end of the run, with everything released", "s", t.run)
	table.print(b, "pipeline")
}

// timePipeline times one run in an environment with a name of its own.
func (ns *namespace) timePipeline(ctx context.Context, name string, t *pipelineTimes) error {
	created := time.Now()
	line, tasks, err := ns.ended(ctx, ns.pipelineRun(name))
	if err != nil {
		return err
	}
	written, err := receipt.Read(ctx, ns.clients.Kube, ns.name, name)
	if err != nil {
		return err
	}
	if len(written.Ranks) != 2 {
		return fmt.Errorf("the receipt has %d ranks, want 2", len(written.Ranks))
	}
	ends := map[string]time.Time{}
	for _, task := range tasks {
		if ends[task.Name], err = ns.lastLine(ctx, task.Pod); err != nil {
			return err
		}
	}
	return errors.Join(t.addPhases(line, tasks, written, name, created, ends), t.addMoments(line, tasks, written, name))
}

// ended creates a run, follows it to its end, and returns its tasks. It has to succeed.
func (ns *namespace) ended(ctx context.Context, r *v1.PipelineRun) (*timeline, []run.TaskRun, error) {
	if _, err := ns.clients.Tekton.TektonV1().PipelineRuns(ns.name).Create(ctx, r, metav1.CreateOptions{}); err != nil {
		return nil, nil, err
	}
	line, err := ns.follow(ctx, r.Name)
	if err != nil {
		return nil, nil, err
	}
	if !line.run.IsSuccessful() {
		return nil, nil, fmt.Errorf("run %s ended with %+v", r.Name, line.run.Status.Conditions)
	}
	tasks, err := run.TaskRuns(ctx, ns.clients.Tekton, ns.name, r.Name, line.run.UID)
	return line, tasks, err
}

// timePlain times the start of the pod of a task without volumes, params, results and workspaces: what Tekton and Kubernetes need.
func (ns *namespace) timePlain(ctx context.Context, name string, t *pipelineTimes) error {
	r := &v1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Name: name}}
	r.Spec.TaskRunTemplate.ServiceAccountName = "mlenv-pipeline"
	step := v1.Step{Name: "plain", Image: ns.image, Command: []string{"git", "--version"}}
	r.Spec.PipelineSpec = &v1.PipelineSpec{Tasks: []v1.PipelineTask{{Name: "plain",
		TaskSpec: &v1.EmbeddedTask{TaskSpec: v1.TaskSpec{Steps: []v1.Step{step}}}}}}
	line, tasks, err := ns.ended(ctx, r)
	if err != nil {
		return err
	}
	if len(tasks) != 1 {
		return fmt.Errorf("run %s has %d tasks, want 1", name, len(tasks))
	}
	for i, stage := range podStages {
		took, err := line.span("pod", tasks[0].Pod, stage.from, stage.to)
		if err != nil {
			return err
		}
		t.plain[i] = append(t.plain[i], took)
	}
	return nil
}

// lastLine returns when the step of a task's pod wrote the last line of its log.
func (ns *namespace) lastLine(ctx context.Context, pod string) (time.Time, error) {
	text, err := ns.clients.Kube.CoreV1().Pods(ns.name).GetLogs(pod, &corev1.PodLogOptions{Timestamps: true, TailLines: new(int64(1))}).DoRaw(
		ctx)
	if err != nil {
		return time.Time{}, err
	}
	at, _, _ := strings.Cut(string(text), " ")
	return time.Parse(time.RFC3339Nano, at)
}

func (ns *namespace) pipelineRun(name string) *v1.PipelineRun {
	r := &v1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Name: name}}
	r.Spec.PipelineRef = &v1.PipelineRef{Name: "train-multi-node"}
	r.Spec.TaskRunTemplate.ServiceAccountName = "mlenv-pipeline"
	for _, param := range [][2]string{
		{"repo-url", "https://" + gitServer + "/" + ns.name + ".git"}, {"script", "train.py"}, {"launcher", string(agent.Command)},
		{"name", name}, {"nodes", "2"}, {"gpus-per-node", "1"}, {"image", trainingImage},
	} {
		r.Spec.Params = append(r.Spec.Params, v1.Param{Name: param[0], Value: *v1.NewStructuredValues(param[1])})
	}
	return r
}

// addPhases splits the run's time into phases. The groups of phases follow each other, so the rest of the time lies
// between them. In a group, the phase that ends last counts.
func (t *pipelineTimes) addPhases(line *timeline, tasks []run.TaskRun, written receipt.Receipt, environment string, created time.Time,
	ends map[string]time.Time) error {
	var problems []error
	span := func(kind, name, from, to string) float64 {
		took, err := line.span(kind, name, from, to)
		problems = append(problems, err)
		return took
	}
	first, last := ranks(written)
	training := last.Sub(first).Seconds()
	// The environment's pods start in parallel, until the last one is ready. provision asks the agents, and may know it before the kubelet.
	waited := 0.0
	for _, task := range tasks {
		if task.Task != "provision" {
			continue
		}
		for ordinal := range 2 {
			made, err := line.moment("pod", node{environment, ordinal}.pod(), "made")
			provisioned, err2 := line.moment("taskrun", task.Name, "done")
			problems = append(problems, err, err2)
			waited = max(waited, min(span("pod", node{environment, ordinal}.pod(), "made", "ready"), provisioned.Sub(made).Seconds()))
		}
	}
	done, err := line.moment("run", environment, "done")
	problems = append(problems, err)
	total := done.Sub(created).Seconds()
	between, pods := total, waited
	groups := make([]struct{ took, pod, noticed float64 }, len(phases))
	for _, task := range tasks {
		phase := t.phases[task.Task]
		if phase == nil {
			return fmt.Errorf("task %s is none of %v", task.Task, phases)
		}
		took, pod := span("taskrun", task.Name, "created", "done"), span("pod", task.Pod, "made", "started")
		for i, stage := range podStages {
			t.stages[i] = append(t.stages[i], span("pod", task.Pod, stage.from, stage.to))
		}
		ended, err := line.moment("taskrun", task.Name, "done")
		problems = append(problems, err)
		noticed := ended.Sub(ends[task.Name]).Seconds()
		inner := map[string]float64{"provision": waited, "train": training}[task.Task]
		phase.took, phase.pod, phase.inner = append(phase.took, took), append(phase.pod, pod), append(phase.inner, inner)
		phase.own, phase.noticed = append(phase.own, took-pod-inner), append(phase.noticed, noticed)
		group := &groups[slices.IndexFunc(phases, func(names []string) bool { return slices.Contains(names, task.Task) })]
		if took > group.took {
			group.took, group.pod, group.noticed = took, pod, noticed
		}
	}
	notices := 0.0
	for _, group := range groups {
		between -= group.took
		pods += group.pod
		notices += group.noticed
	}
	t.total, t.between, t.pods, t.training = append(t.total, total), append(t.between, between), append(t.pods, pods), append(t.training,
		training)
	t.own, t.noticed = append(t.own, total-pods-training), append(t.noticed, notices)
	return errors.Join(problems...)
}

// addMoments adds the times that BenchmarkStart also measures for the single steps.
func (t *pipelineTimes) addMoments(line *timeline, tasks []run.TaskRun, written receipt.Receipt, name string) error {
	first, last := ranks(written)
	step, err := stepTime(written.Metrics)
	problems := []error{err}
	moment := func(kind, name, what string) time.Time {
		at, err := line.moment(kind, name, what)
		problems = append(problems, err)
		return at
	}
	for _, task := range tasks {
		switch task.Task {
		case "provision":
			began := moment("pod", task.Pod, "started")
			t.first, t.step = append(t.first, first.Sub(began).Seconds()), append(t.step, step.Sub(began).Seconds())
		case "train":
			t.train = append(t.train, moment("taskrun", task.Name, "done").Sub(last).Seconds())
		}
	}
	t.receipt = append(t.receipt, moment("receipt", receipt.Name(name), "written").Sub(last).Seconds())
	t.run = append(t.run, moment("run", name, "done").Sub(last).Seconds())
	return errors.Join(problems...)
}

// ranks returns when the first rank started and the last one ended.
func ranks(r receipt.Receipt) (first, last time.Time) {
	for _, rank := range r.Ranks {
		if first.IsZero() || rank.Started.Before(first) {
			first = rank.Started
		}
		if ended := rank.Started.Add(time.Duration(rank.Seconds * float64(time.Second))); ended.After(last) {
			last = ended
		}
	}
	return first, last
}
