// SPDX-License-Identifier: Apache-2.0

package teardown

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cause"
	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/env/jobs"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fabric"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/metrics"
	"github.com/ml-dev-env/ml-dev-env/internal/parallel"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

const (
	// askTime bounds a question to a node: a lost node must not keep the others' GPUs.
	askTime = 10 * time.Second
	// endTime is how long an agent may take to report the end of ranks, after the time that they have to save.
	endTime = 15 * time.Second
)

// recall returns what the steps have noted in the run's receipt. Without that Tekton's words have to do.
func (t *teardown) readJournal(ctx context.Context) receipt.Journal {
	of := t.options.Run
	if of.Name == "" {
		return receipt.Journal{}
	}
	m, err := receipt.ReadJournal(ctx, t.clients.Kube, t.clients.Namespace, of.Name)
	switch {
	case err != nil && !apierrors.IsNotFound(err):
		t.log.Warn(fmt.Sprintf("What the steps have noted is not in the receipt: %v", err))
		return receipt.Journal{}
	case err != nil, m.RunUID != of.UID:
		return receipt.Journal{}
	}
	return m
}

// summarize collects what is known of the run. It logs and leaves out missing facts, which never stop the teardown.
func (t *teardown) summarize(ctx context.Context, held *coordinationv1.Lease) receipt.Receipt {
	r := receipt.Receipt{
		Run: t.options.Run.Name, RunUID: t.options.Run.UID, Namespace: t.clients.Namespace, Environment: t.options.Name,
		Verdict: receipt.Succeeded,
	}
	if t.options.Run.Name != "" {
		t.judge(ctx, &r)
		noted := t.journal
		noted.Progress = nil // addEarlier reads it when the ranks have ended
		noted.Fold(&r)
	}
	r.Mode = cmp.Or(r.Mode, agent.TCP)
	if held != nil {
		before := r
		if err := guarded(func() error { return t.addNodes(ctx, &r) }); errors.Is(err, errPanic) {
			r = before
			t.log.Warn(fmt.Sprintf("The nodes are not in the receipt: %v", err))
		} else if err != nil {
			t.log.Warn(fmt.Sprintf("Not everything about the nodes is in the receipt: %v", err))
		}
	}
	if t.options.Run.Name != "" {
		t.addEarlier(ctx, &r)
	}
	return r
}

// judge adds how the run ended, and its tasks. A run whose tasks cannot be read has not succeeded.
func (t *teardown) judge(ctx context.Context, r *receipt.Receipt) {
	err := t.addTasks(ctx, r)
	if err == nil {
		return
	}
	end := receipt.End{Reason: fail.ReasonOf(err), Message: err.Error()}
	if apierrors.IsNotFound(err) {
		end = receipt.End{Reason: fail.Cancelled, Message: receipt.Deleted}
	}
	v := t.journal.Verdict(receipt.Seen{End: &end})
	r.Verdict, r.Reason, r.Message = v.Verdict, v.Reason, v.Message
	t.log.Warn(fmt.Sprintf("The run's tasks are not in the receipt: %v", err))
}

var errPanic = errors.New("the nodes' answers make no sense")

// guarded makes a panic of f an error: whatever nodes answer, and ranks can forge answers, the environment is released.
func guarded(f func() error) (err error) {
	defer func() {
		if panicked := recover(); panicked != nil {
			err = fmt.Errorf("%w: %v", errPanic, panicked)
		}
	}()
	return f()
}

// addEarlier keeps what the steps have noted since, such as the checkpoint of a training that was stopped, and what an earlier teardown
// of the same run learnt from nodes that are gone now.
func (t *teardown) addEarlier(ctx context.Context, r *receipt.Receipt) {
	m := t.readJournal(ctx)
	defer m.Fold(r)
	if m.Receipt == nil {
		return
	}
	earlier := *m.Receipt
	if len(r.Nodes) == 0 {
		r.Nodes, r.NCCL, r.ExcludedNodes = earlier.Nodes, earlier.NCCL, earlier.ExcludedNodes
	}
	if r.Fabric == nil {
		r.Fabric = earlier.Fabric
	}
	if len(r.Ranks) == 0 {
		r.Ranks, r.Cause, r.Network = earlier.Ranks, cmp.Or(earlier.Cause, r.Cause), earlier.Network
		r.Record, r.Training = cmp.Or(earlier.Record, r.Record), cmp.Or(earlier.Training, r.Training)
		r.Curve, r.Attempts = earlier.Curve, earlier.Attempts
	}
}

// addTasks decides how the run ended, by what its steps have noted and what Tekton shows.
func (t *teardown) addTasks(ctx context.Context, r *receipt.Receipt) error {
	of := t.options.Run
	pipelineRun, err := run.Get(ctx, t.clients.Tekton, t.clients.Namespace, of.Name)
	if err != nil {
		return err
	}
	r.Started, r.Schedule, r.User = pipelineRun.Started.UTC(), pipelineRun.Schedule, pipelineRun.User
	tasks, err := run.TaskRuns(ctx, t.clients.Tekton, t.clients.Namespace, of.Name, types.UID(of.UID))
	if err != nil {
		return err
	}
	tasks = slices.DeleteFunc(tasks, func(task run.TaskRun) bool { return task.Task == of.Task })
	v := t.journal.Verdict(receipt.Seen{Run: pipelineRun, Tasks: tasks, Over: true})
	r.Verdict, r.Reason, r.Message = v.Verdict, v.Reason, v.Message
	for _, task := range t.journal.Tasks(tasks) {
		r.Phases = append(r.Phases, receipt.PhaseOf(task))
		r.Repository = cmp.Or(r.Repository, receipt.RepositoryOf(task.RepoURL))
		if task.Task == v.Task && task.Unpulled() {
			t.explainPull(ctx, &task)
			r.Message = task.Message
		}
	}
	return nil
}

// explainPull replaces Tekton's words for an image that could not be pulled. This step's own pod has pulled it.
func (t *teardown) explainPull(ctx context.Context, task *run.TaskRun) {
	finding, _, err := launch.StepPod(t.options.Run.Name, t.clients.Namespace, *task).WithoutImage(ctx, t.clients.Kube, t.now())
	if err != nil {
		t.log.Warn(fmt.Sprintf("Why the image of task %s was not pulled is unknown: %v", task.Task, err))
	} else if finding.Reason != "" {
		task.Message = finding.Message()
	}
}

func (t *teardown) addNodes(ctx context.Context, r *receipt.Receipt) error {
	e := t.environment()
	set, err := e.StatefulSet(ctx)
	if err != nil {
		return fmt.Errorf("getting statefulset %s: %w", e, err)
	}
	_, r.ExcludedNodes = objects.Placement(&set.Spec.Template.Spec)
	clients, err := e.Nodes(ctx, t.options.ClientCerts)
	if err != nil {
		return err
	}
	defer clients.Close()
	t.addSaved(ctx, r, clients, t.endRanks(ctx, clients, objects.StopGraceOf(set)))
	return t.addAnswers(ctx, r, clients, e.Names.RecordClaims(set, len(clients)))
}

// Summarize returns the receipt of a run whose steps have ended, on nodes that this does not release, as on the user's own machine.
func Summarize(ctx context.Context, log *slog.Logger, m receipt.Journal, set nodes.Set,
	mode agent.Mode) receipt.Receipt {
	t := &teardown{options: Options{Run: run.Flags{Name: m.Run, UID: m.RunUID}}, log: log, journal: m}
	r := m.ToReceipt(m.Verdict(receipt.Seen{Over: true}), time.Now())
	r.Mode = mode
	var claims []string
	if r.Record != nil {
		claims = r.Record.Claims
	}
	if err := guarded(func() error { return t.addAnswers(ctx, &r, set, claims) }); err != nil {
		t.log.Warn(fmt.Sprintf("Not everything about the nodes is in the receipt: %v", err))
	}
	return r
}

// addAnswers adds what the nodes report; claims have their record.
func (t *teardown) addAnswers(ctx context.Context, r *receipt.Receipt, clients nodes.Set, claims []string) error {
	var problems []error
	var statuses []agent.JobStatus
	environments := map[int]map[string]string{}
	for i, a := range parallel.Map(clients, func(client *agent.Client) answer { return ask(ctx, client, t.options.Run.UID) }) {
		problems = append(problems, a.problems...)
		if a.facts != nil {
			r.Nodes = append(r.Nodes, node(i, *a.facts, a.devices))
			environments[i] = a.facts.Environment
			if i == 0 {
				r.NCCL = network(a.facts.Environment)
			}
		}
		if a.status != nil {
			statuses = append(statuses, *a.status)
		}
		r.Fabric = cmp.Or(r.Fabric, a.fabric)
		r.Curve = cmp.Or(r.Curve, a.curve)
	}
	statuses = newestOf(statuses)
	final := t.journal.Verdict(receipt.Seen{}).Final
	if r.Verdict != receipt.Succeeded && r.Reason != fail.Cancelled {
		r.Cause = culprit(statuses, final, r.Cause)
	}
	var hanging []int
	var failed *agent.Attempt
	if final != nil {
		hanging, failed = final.Hanging, final.Failed
	}
	addRanks(r, statuses, hanging)
	if r.Verdict == receipt.Succeeded {
		hidden := cause.Hidden(statuses)
		if hidden != "" {
			hidden += ". Next: " + cause.HiddenNext
		}
		r.Warning = cmp.Or(hidden, cause.Alone(statuses), cause.Unproven(statuses, agent.WantedTransport(r.Mode, len(r.Nodes))))
	}
	addAttempts(r, statuses, failed)
	if s, ok := agent.NCCLOf(statuses, agent.WantedTransport(r.Mode, len(r.Nodes)), environments); ok {
		s.Processes = nil
		r.Network = &s
	}
	if len(statuses) > 0 {
		r.Training = receipt.TrainingOf(statuses[0].Spec)
		r.Record = &receipt.Record{Folder: statuses[0].Record, Work: agent.WorkOf(statuses), Claims: claims}
		if t.options.Artifacts != "" {
			problems = append(problems, t.copyLogs(ctx, clients, statuses))
		}
	}
	return errors.Join(problems...)
}

// culprit returns the rank that failed first: the one that the step noted, with all that the nodes still know of its error. If no step was
// connected when the training ended, the nodes alone know it.
func culprit(statuses []agent.JobStatus, final *receipt.Entry, noted *cause.Culprit) *cause.Culprit {
	found, ok := cause.Find(statuses)
	switch {
	case !ok:
		return noted
	case final == nil, noted != nil && found.Culprit().Rank == noted.Rank:
		return found.Culprit()
	}
	return noted
}

// newestOf leaves out the nodes on which the newest attempt did not start.
func newestOf(statuses []agent.JobStatus) []agent.JobStatus {
	newest := 0
	for _, status := range statuses {
		newest = max(newest, status.Spec.Attempt())
	}
	return slices.DeleteFunc(statuses, func(s agent.JobStatus) bool { return s.Spec.Attempt() < newest })
}

// addAttempts lists the attempts of a training that was restarted. The last one ended as the run did. The nodes do not know it if it could
// not start: then their newest attempt is the one that failed before it.
func addAttempts(r *receipt.Receipt, statuses []agent.JobStatus, failed *agent.Attempt) {
	if len(statuses) == 0 {
		return
	}
	newest := agent.AttemptOf(statuses[0].Spec, statuses)
	switch {
	case failed != nil && failed.Attempt == newest.Attempt:
		r.Attempts = append(slices.Clip(statuses[0].Spec.Attempts), *failed, agent.Attempt{Attempt: newest.Attempt + 1, Reason: r.Reason,
			Message: r.Message})
		return
	case newest.Attempt == 1:
		return
	}
	newest.Reason, newest.Message, newest.Hang = r.Reason, r.Message, r.Hang
	if r.Cause != nil {
		newest.Rank, newest.Node = &r.Cause.Rank, &r.Cause.Node
	}
	// Node 0 has the metrics; if it could not start the last attempt, they are those of the one before.
	if r.Curve != nil && len(r.Curve.Points) > 0 && statuses[0].Node == 0 {
		newest.First, newest.Last = &r.Curve.First, &r.Curve.Points[len(r.Curve.Points)-1].Step
	}
	r.Attempts = append(slices.Clip(statuses[0].Spec.Attempts), newest)
}

// answer is what one node reported, nil for what it did not.
type answer struct {
	facts    *agent.Facts
	devices  rdma.Facts
	status   *agent.JobStatus
	fabric   *fabric.Report
	curve    *metrics.Curve
	problems []error
}

// ask asks a node about the run, unless id is "", and then about itself: nvidia-smi may not answer any more. The questions share a
// connection, because they come one after the other.
func ask(ctx context.Context, client *agent.Client, id string) (a answer) {
	questions := []func(context.Context, *agent.Client, string) error{a.askNode}
	if id != "" {
		questions = slices.Insert(questions, 0, a.askJob, a.askFabric, a.askMetrics)
	}
	for i, question := range questions {
		asking, cancel := context.WithTimeout(ctx, askTime)
		err := guarded(func() error { return question(asking, client, id) })
		silent := err != nil && asking.Err() != nil
		cancel()
		a.problems = append(a.problems, err)
		if silent && i == 0 {
			break // the others may take long by themselves
		}
	}
	return a
}

func (a *answer) askNode(ctx context.Context, client *agent.Client, _ string) error {
	facts, err := client.Facts(ctx)
	if err != nil {
		return err
	}
	a.facts = &facts
	a.devices, err = client.RDMA(ctx, rdma.Expected{})
	return err
}

func (a *answer) askJob(ctx context.Context, client *agent.Client, id string) error {
	status, err := client.Job(ctx, id)
	if err != nil {
		return agent.IgnoreNotFound(err)
	}
	if status.State == agent.Running {
		err = endJob(context.WithoutCancel(ctx), client, &status, agent.Stop{Reason: "the run has ended"}, 0)
	}
	a.status = &status
	return err
}

// endJob waits until the ranks of a node have ended, because how they ended is lost with their pod. If the run was cancelled the
// step train has given the order to stop, or does so at this moment; if it ended otherwise, for example with its pod, it may have given
// none. most is how long the ranks may save.
func endJob(ctx context.Context, client *agent.Client, status *agent.JobStatus, stop agent.Stop, most time.Duration) error {
	ordering, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	if status.Stopping.IsZero() {
		if err := client.StopJob(ordering, status.ID, stop); err != nil {
			return agent.IgnoreNotFound(err)
		}
		if now, err := client.Job(ordering, status.ID); err == nil {
			*status = now
		}
	}
	ctx, cancel = context.WithTimeout(ctx, min(max(0, time.Until(status.Kill)), most)+endTime)
	defer cancel()
	last, err := jobs.Job{ID: status.ID, Members: nodes.Set{client}}.Wait(ctx)
	if last[0].ID != "" {
		*status = last[0]
	}
	return err
}

// askFabric reads check-fabric's report in the run's record.
func (a *answer) askFabric(ctx context.Context, client *agent.Client, id string) error {
	content, err := client.ReadRecord(ctx, id, agent.FabricReport)
	if err != nil {
		return agent.IgnoreNotFound(err)
	}
	report := &fabric.Report{}
	if err := json.Unmarshal(content, report); err != nil {
		return fmt.Errorf("reading %s of node %d: %w", agent.FabricReport, client.Node(), err)
	}
	a.fabric = report
	return nil
}

// askMetrics reads the course of the training's metrics, which node 0 has.
func (a *answer) askMetrics(ctx context.Context, client *agent.Client, id string) error {
	if client.Node() != 0 {
		return nil
	}
	log, err := client.Log(ctx, id, agent.MetricsLog, 0, false)
	if err != nil {
		return agent.IgnoreNotFound(err)
	}
	defer log.Close()
	history := &metrics.History{}
	_, err = io.Copy(metrics.Lines(history.Add), log)
	a.curve = history.Curve().Later(client.Behind()) // what was read is better than nothing
	if err != nil {
		return fmt.Errorf("reading the metrics of the training: %w", err)
	}
	return nil
}

func node(number int, f agent.Facts, devices rdma.Facts) receipt.Node {
	n := receipt.Node{Node: number, Pod: f.Pod, KubernetesNode: f.KubernetesNode}
	if f.Network != nil {
		n.Rack = f.Network.Rack
	}
	for _, rail := range devices.Rails() {
		port := receipt.Rail{
			Device: rail.Device.Name, Port: rail.Port.Number, Model: rail.Device.Model, Firmware: rail.Device.Firmware,
			Interface: rail.Port.Netdev, LinkLayer: rail.Port.LinkLayer, Rate: rail.Port.Rate,
		}
		if network := rail.Port.Network(); network.IsValid() {
			port.Network = network.String()
		}
		n.Rails = append(n.Rails, port)
	}
	for _, gpu := range f.GPUs {
		n.GPUs = append(n.GPUs, gpu.UUID)
		n.Model, n.Driver, n.Compute = gpu.Model, gpu.Driver, gpu.Compute
	}
	return n
}

func network(environment map[string]string) map[string]string {
	result := maps.Clone(environment)
	maps.DeleteFunc(result, func(name, _ string) bool {
		return !strings.HasPrefix(name, "NCCL_") && !strings.HasPrefix(name, "GLOO_")
	})
	return result
}

// addRanks lists the ranks. The rank that caused the failure was not stopped because another one failed, even if it had to be stopped; nor
// were the hanging ones, for which the others waited.
func addRanks(r *receipt.Receipt, statuses []agent.JobStatus, hanging []int) {
	for _, status := range statuses {
		for _, rank := range status.Ranks {
			stopped := rank.Stopped && (r.Cause == nil || r.Cause.Rank != rank.Rank) && !slices.Contains(hanging, rank.Rank)
			entry := receipt.Rank{Rank: rank.Rank, Node: rank.Node, Exit: rank.Exit, Stopped: stopped, Started: rank.Started}
			if rank.Ended.IsZero() {
				entry.Exit = agent.Exit{Code: -1, Error: "it was still running"}
			} else {
				entry.Seconds = rank.Ended.Sub(rank.Started).Seconds()
			}
			if rank.Exit != (agent.Exit{}) {
				entry.Tail = rank.Tail
			}
			r.Ranks = append(r.Ranks, entry)
		}
	}
}

func (t *teardown) copyLogs(ctx context.Context, clients nodes.Set, statuses []agent.JobStatus) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.options.Timeout/2)
	defer cancel()
	if err := os.MkdirAll(t.options.Artifacts, 0o775); err != nil {
		return fmt.Errorf("copying the logs: %w", err)
	}
	return errors.Join(parallel.Map(statuses, func(status agent.JobStatus) (err error) {
		for _, rank := range status.Ranks {
			name := agent.RankLog + strconv.Itoa(rank.Rank)
			err = errors.Join(err, copyLog(ctx, clients[status.Node], status.ID, name, filepath.Join(t.options.Artifacts, name+".log")))
		}
		return err
	})...)
}

func copyLog(ctx context.Context, client *agent.Client, id, name, path string) error {
	log, err := client.Log(ctx, id, name, 0, false)
	if err != nil {
		return err
	}
	defer log.Close()
	file, err := claimfile.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, log)
	return errors.Join(err, file.Close())
}
