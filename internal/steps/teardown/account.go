package teardown

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/diagnose/cause"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fabric"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/metrics"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/run"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
	"github.com/ml-dev-env/ml-dev-env/internal/source/git"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/syncrepo"
)

// askTime bounds what the nodes are asked: a node that is gone must not keep the
// others' GPUs.
const askTime = 10 * time.Second

// account collects what is known of the run. What cannot be learnt is left out
// and told; it never stops the teardown.
func (t *teardown) account(ctx context.Context, held *coordinationv1.Lease) receipt.Receipt {
	r := receipt.Receipt{
		Run: t.options.Run.Name, RunUID: t.options.Run.UID, Namespace: t.clients.Namespace, Environment: t.options.Name,
		Verdict: receipt.Succeeded, Mode: string(objects.TCP),
	}
	if t.options.Run.Name != "" {
		if err := t.addTasks(ctx, &r); err != nil {
			// A run of which nothing is known has not succeeded.
			r.Verdict, r.Reason, r.Message = receipt.Failed, string(fail.ReasonOf(err)), err.Error()
			t.log.Warn(fmt.Sprintf("The run's tasks are not in the receipt: %v", err), "error", err)
		}
	}
	if held != nil {
		if err := t.addNodes(ctx, &r); err != nil {
			t.log.Warn(fmt.Sprintf("Not all of the nodes' account is in the receipt: %v", err), "error", err)
		}
	}
	if t.options.Run.Name != "" {
		t.addEarlier(ctx, &r)
	}
	return r
}

// addEarlier keeps what a teardown of the same run, which was not finished or is
// repeated, has learnt from nodes that are gone now.
func (t *teardown) addEarlier(ctx context.Context, r *receipt.Receipt) {
	earlier, err := receipt.Read(ctx, t.clients.Kube, r.Namespace, r.Run)
	if err != nil || earlier.RunUID != r.RunUID {
		return
	}
	if len(r.Nodes) == 0 {
		r.Nodes, r.NCCL = earlier.Nodes, earlier.NCCL
	}
	if r.Fabric == nil {
		r.Fabric = earlier.Fabric
	}
	if len(r.Ranks) == 0 {
		r.Ranks, r.Cause, r.Record, r.Network = earlier.Ranks, earlier.Cause, earlier.Record, earlier.Network
		r.Training, r.Curve = earlier.Training, earlier.Curve
	}
}

// addTasks reads the phases, and what the steps have said in results.
func (t *teardown) addTasks(ctx context.Context, r *receipt.Receipt) error {
	uid := types.UID(t.options.Run.UID)
	pipelineRun, err := run.Get(ctx, t.clients.Tekton, t.clients.Namespace, t.options.Run.Name)
	if err != nil {
		return err
	}
	r.Started, r.Schedule = pipelineRun.Started.UTC(), pipelineRun.Schedule
	tasks, err := run.TaskRuns(ctx, t.clients.Tekton, t.clients.Namespace, t.options.Run.Name, uid)
	if err != nil {
		return err
	}
	for _, task := range tasks {
		if task.Task == t.options.Run.Task {
			continue
		}
		phase := receipt.Phase{Name: task.Task, Status: string(task.Status), Reason: string(task.Reason), Retries: task.Retries, Started: task.Started.UTC(), Ended: task.Ended.UTC()}
		if !task.Started.IsZero() && !task.Ended.IsZero() {
			phase.Seconds = task.Ended.Sub(task.Started).Seconds()
		}
		r.Phases = append(r.Phases, phase)
		r.Repository = cmp.Or(r.Repository, repository(task.RepoURL))
		r.Commit = cmp.Or(r.Commit, task.Results["commit"])
		r.Tree = cmp.Or(r.Tree, task.Results["tree"])
		r.Image = cmp.Or(r.Image, task.Results["image-digest"])
		r.Mode = cmp.Or(task.Results["mode"], r.Mode)
		r.Storage = cmp.Or(r.Storage, task.Results["storage"])
		if metrics := task.Results["metrics"]; json.Valid([]byte(metrics)) {
			r.Metrics = json.RawMessage(metrics)
		}
		if task.Status != run.Succeeded && r.Verdict == receipt.Succeeded {
			r.Verdict = receipt.Failed
			r.Reason, r.Message = string(cmp.Or(task.Reason, fail.Internal)), task.Message
		}
	}
	if r.Verdict != receipt.Succeeded {
		return nil
	}
	// A run can end between two tasks, with all that began a success.
	if len(pipelineRun.Skipped) > 0 {
		missed := pipelineRun.Skipped[0]
		r.Verdict, r.Reason = receipt.Failed, string(cmp.Or(kube.ReasonFor(missed.Reason), fail.Internal))
		r.Message = fmt.Sprintf("task %s did not run: %s", missed.Task, missed.Reason)
	}
	if pipelineRun.Cancelled {
		r.Verdict, r.Reason, r.Message = receipt.Failed, string(fail.Cancelled), "the run was cancelled"
	}
	return nil
}

// repository is what a receipt says of a task's URL: no secret, and of a folder not which.
func repository(url string) string {
	if syncrepo.IsSentURL(url) {
		return receipt.Folder
	}
	return git.Shown(url)
}

// addNodes asks the agents what they are and how the job's ranks ended.
func (t *teardown) addNodes(ctx context.Context, r *receipt.Receipt) error {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	names := objects.NamesOf(t.options.Name)
	set, err := t.clients.Kube.AppsV1().StatefulSets(t.clients.Namespace).Get(ctx, names.StatefulSet, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("getting statefulset %s/%s: %w", t.clients.Namespace, names.StatefulSet, err)
	}
	clients, err := nodes.Connect(ctx, t.clients, t.options.Name, t.options.ClientCerts)
	if err != nil {
		return err
	}
	defer clients.Close()
	var mu sync.Mutex
	var statuses []agent.JobStatus
	environments := map[int]map[string]string{}
	var problems []error
	var group sync.WaitGroup
	for _, client := range clients {
		group.Go(func() {
			facts, err := client.Facts(ctx)
			if err != nil {
				mu.Lock()
				defer mu.Unlock()
				problems = append(problems, err)
				return
			}
			devices, err := client.RDMA(ctx, rdma.Expected{})
			mu.Lock()
			defer mu.Unlock()
			problems = append(problems, err)
			r.Nodes = append(r.Nodes, node(facts, devices))
			environments[facts.Node] = facts.Environment
			if facts.Node == 0 {
				r.NCCL = network(facts.Environment)
			}
		})
		if t.options.Run.UID == "" {
			continue
		}
		group.Go(func() {
			report, err := fabricOf(ctx, client, t.options.Run.UID)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				problems = append(problems, err)
			} else if report != nil {
				r.Fabric = report
			}
		})
		if client.Node() == 0 {
			group.Go(func() {
				curve, err := curveOf(ctx, client, t.options.Run.UID)
				mu.Lock()
				defer mu.Unlock()
				problems = append(problems, err)
				r.Curve = curve
			})
		}
		group.Go(func() {
			status, err := client.Job(ctx, t.options.Run.UID)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				statuses = append(statuses, status)
			} else if !agent.IsNotFound(err) {
				problems = append(problems, err)
			}
		})
	}
	group.Wait()
	slices.SortFunc(r.Nodes, func(a, b receipt.Node) int { return a.Node - b.Node })
	slices.SortFunc(statuses, func(a, b agent.JobStatus) int { return a.Node - b.Node })
	addRanks(r, statuses)
	addNetwork(r, statuses, environments)
	if len(statuses) > 0 {
		spec := statuses[0].Spec
		r.Training = &receipt.Training{Launcher: spec.Launcher, Script: spec.Script, Args: spec.Args, Nodes: spec.Nodes, RanksPerNode: spec.RanksOfNode()}
		r.Record = &receipt.Record{Folder: statuses[0].Record, Claims: claims(set, names)}
		if t.options.Artifacts != "" {
			problems = append(problems, t.copyLogs(ctx, clients, statuses))
		}
	}
	return errors.Join(problems...)
}

// fabricOf is what check-fabric has put into the run's record on a node, nil where it has not.
func fabricOf(ctx context.Context, client *agent.Client, id string) (*fabric.Report, error) {
	content, err := client.ReadRecord(ctx, id, agent.FabricReport)
	if agent.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	report := &fabric.Report{}
	if err := json.Unmarshal(content, report); err != nil {
		return nil, fmt.Errorf("reading %s of node %d: %w", agent.FabricReport, client.Node(), err)
	}
	return report, nil
}

// curveOf is how the training's metrics went, nil where it wrote none.
func curveOf(ctx context.Context, client *agent.Client, id string) (*metrics.Curve, error) {
	log, err := client.Log(ctx, id, agent.MetricsLog, 0, false)
	if agent.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	defer log.Close()
	history := &metrics.History{}
	if _, err := io.Copy(&metrics.Lines{Each: history.Add}, log); err != nil {
		return nil, fmt.Errorf("reading the metrics of the training: %w", err)
	}
	return history.Curve(), nil
}

func node(f agent.Facts, devices rdma.Facts) receipt.Node {
	n := receipt.Node{Node: f.Node, Pod: f.Pod, KubernetesNode: f.KubernetesNode}
	if f.Network != nil {
		n.Rack = f.Network.Rack
	}
	for _, rail := range devices.Rails() {
		port := receipt.Rail{Device: rail.Device.Name, Port: rail.Port.Number, Interface: rail.Port.Netdev, LinkLayer: rail.Port.LinkLayer, Rate: rail.Port.Rate}
		if network := rail.Port.Network(); network.IsValid() {
			port.Network = network.String()
		}
		n.Rails = append(n.Rails, port)
	}
	for _, gpu := range f.GPUs {
		n.GPUs = append(n.GPUs, gpu.UUID)
		n.Model, n.Driver = gpu.Model, gpu.Driver
	}
	return n
}

// network are the variables that say how ranks talk.
func network(environment map[string]string) map[string]string {
	result := map[string]string{}
	for key, value := range environment {
		if strings.HasPrefix(key, "NCCL_") || strings.HasPrefix(key, "GLOO_") {
			result[key] = value
		}
	}
	return result
}

func addRanks(r *receipt.Receipt, statuses []agent.JobStatus) {
	for _, status := range statuses {
		for _, rank := range status.Ranks {
			entry := receipt.Rank{Rank: rank.Rank, Node: rank.Node, Exit: rank.Exit, Stopped: rank.Stopped, Started: rank.Started}
			if !rank.Ended.IsZero() {
				entry.Seconds = rank.Ended.Sub(rank.Started).Seconds()
			}
			if rank.Exit != (agent.Exit{}) {
				entry.Tail = rank.Tail
			}
			r.Ranks = append(r.Ranks, entry)
		}
	}
	if r.Verdict == receipt.Succeeded {
		return
	}
	if found, ok := cause.Find(statuses); ok {
		r.Cause = &receipt.Cause{Rank: found.Rank.Rank, Node: found.Rank.Node, Exit: found.Rank.Exit, Python: found.Rank.Python}
	}
}

// addNetwork adds what the nodes have read in the ranks' logs of NCCL.
func addNetwork(r *receipt.Receipt, statuses []agent.JobStatus, environments map[int]map[string]string) {
	if s, ok := agent.NCCLOf(statuses, agent.WantedTransport(r.Mode, len(r.Nodes)), environments); ok {
		s.Processes = nil
		r.Network = &s
	}
}

// claims are those with the record on them.
func claims(set *appsv1.StatefulSet, names objects.Names) (result []string) {
	if len(set.Spec.VolumeClaimTemplates) == 0 {
		return []string{names.Workspace}
	}
	for node := range int(*set.Spec.Replicas) {
		result = append(result, names.Workspace+"-"+names.PodName(node))
	}
	return result
}

// copyLogs copies the whole logs, a file a rank.
func (t *teardown) copyLogs(ctx context.Context, clients nodes.Set, statuses []agent.JobStatus) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.options.Timeout/2)
	defer cancel()
	if err := os.MkdirAll(t.options.Artifacts, 0o775); err != nil {
		return fmt.Errorf("copying the logs: %w", err)
	}
	errs := make([]error, len(statuses))
	var group sync.WaitGroup
	for i, status := range statuses {
		group.Go(func() {
			for _, rank := range status.Ranks {
				name := agent.RankLog + strconv.Itoa(rank.Rank)
				errs[i] = errors.Join(errs[i], copyLog(ctx, clients[status.Node], status.ID, name, filepath.Join(t.options.Artifacts, name+".log")))
			}
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

func copyLog(ctx context.Context, client *agent.Client, id, name, path string) error {
	log, err := client.Log(ctx, id, name, 0, false)
	if err != nil {
		return err
	}
	defer log.Close()
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, log)
	return errors.Join(err, file.Close())
}
