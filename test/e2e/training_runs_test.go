// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	pipelinerun "github.com/ml-dev-env/ml-dev-env/internal/run"
)

// How long the tests wait for what has no limit of its own, on a machine whose cores are busy with something else.
const (
	timeForARunToEnd         = 10 * time.Minute
	timeForAPodToStart       = 10 * time.Minute
	timeForTheTextToBeLogged = 10 * time.Minute
	timeForTheObjectToChange = 5 * time.Minute
	timeForTeardown          = 4 * time.Minute
)

// timeUntilAllIsReleased is the promise of the design: two minutes after a run's end nothing of it holds a GPU.
const timeUntilAllIsReleased = 2 * time.Minute

// Params of most scenarios: they run only a shell script, on one GPU of each node.
const (
	byShell = "--param=launcher=command"
	oneGPU  = "--param=gpus-per-node=1"
)

// start starts train-multi-node with the script by the real tkn and returns the run's name. flags
// adds more flags, such as "--param=nodes=1". The run measures the network only if a flag requests
// it, because that takes time.
func (u trainer) start(script string, flags ...string) string {
	u.Helper()
	if u.workstation != nil {
		return u.startThere(script, flags...)
	}
	if !slices.ContainsFunc(flags, func(flag string) bool { return strings.HasPrefix(flag, "--param=check-fabric=") }) {
		flags = append(flags, "--param=check-fabric=false")
	}
	return u.startTkn("pipeline", "train-multi-node", append([]string{"--param=repo-url=" + u.repo, "--param=script=" + script}, flags...)...)
}

// startTkn starts a pipeline or task and returns its run's name.
func (u trainer) startTkn(kind, name string, flags ...string) string {
	u.Helper()
	out := u.tkn(append([]string{kind, "start", name, "--serviceaccount=" + launch.ServiceAccount, "--use-param-defaults",
		"--skip-optional-workspace"}, flags...)...)
	match := runStarted.FindStringSubmatch(out)
	if match == nil {
		u.Fatalf("starting %s %s: tkn printed %q", kind, name, out)
	}
	started := match[1]
	u.Cleanup(func() {
		if u.Failed() {
			out, _ := run(u.T, nil, stateDir+"/bin/tkn", kind+"run", "logs", started, "--namespace="+u.namespace)
			u.printLater("the log of %s:\n%s", started, shortened(out))
		}
	})
	return started
}

// runStarted matches tkn's message about a started PipelineRun or TaskRun.
var runStarted = regexp.MustCompile(`Run started: (\S+)`)

// ending holds all facts about a run that has ended.
type ending struct {
	trainer
	run     *v1.PipelineRun
	tasks   map[string]pipelinerun.TaskRun
	results map[string]string
	receipt receipt.Receipt
}

// end watches the run until it ends, and checks what must be equal in the results and receipt of every run.
func (u trainer) end(name string) ending {
	u.Helper()
	return u.endWithin(name, timeForARunToEnd)
}

// endWithin is end for a run that takes longer.
func (u trainer) endWithin(name string, limit time.Duration) ending {
	u.Helper()
	if u.workstation != nil {
		return u.endThere(name)
	}
	e := ending{trainer: u, tasks: map[string]pipelinerun.TaskRun{}, results: map[string]string{}}
	ctx, cancel := u.within(limit)
	defer cancel()
	err := kube.WatchUntil(ctx, "pipelinerun "+name, u.clients.Tekton.TektonV1().PipelineRuns(u.namespace), named(name),
		func(runs []*v1.PipelineRun) (bool, error) {
			if len(runs) == 0 {
				return false, errors.New("the run is gone")
			}
			e.run = runs[0]
			return e.run.IsDone(), nil
		})
	if err != nil {
		u.Fatal(err)
	}
	tasks, err := pipelinerun.TaskRuns(ctx, u.clients.Tekton, u.namespace, name, e.run.UID)
	if err != nil {
		u.Fatal(err)
	}
	for _, task := range tasks {
		e.tasks[task.Task] = task
	}
	for _, result := range e.run.Status.Results {
		e.results[result.Name] = result.Value.StringVal
	}
	if e.receipt, err = receipt.Read(ctx, u.clients.Kube, u.namespace, name); err != nil {
		u.Fatal(err)
	}
	teardown, results := pipelinerun.Succeeded, e.results
	if strings.Contains(e.receipt.Teardown, "cannot be confirmed free") {
		// Tekton 1.9 leaves the results of failed tasks out of the run's results, and 1.15 does not.
		teardown, results = pipelinerun.Failed, e.tasks["teardown"].Results
	}
	e.equal("result receipt", results["receipt"], receipt.Name(name))
	e.equal("result verdict", results["verdict"], string(e.receipt.Verdict))
	e.equal("the receipt's run", e.receipt.Run, name)
	e.equal("the teardown task", string(e.tasks["teardown"].Status), string(teardown))
	return e
}

// succeeded fails unless the run trained from the repository's commit.
func (e ending) succeeded() ending {
	e.Helper()
	e.equal("verdict", string(e.receipt.Verdict), string(receipt.Succeeded))
	e.equal("reason", e.receipt.Reason, "")
	if e.workstation == nil {
		if !e.run.IsSuccessful() {
			e.Fatalf("run %s ended with %+v", e.run.Name, e.run.Status.Conditions)
		}
		e.equal("result commit", e.results["commit"], e.commit)
		e.equal("the receipt's commit", e.receipt.Commit, e.commit)
		e.equal("the receipt's image", e.receipt.Image, e.results["image"])
		e.mustContain(e.results["image"], "@sha256:")
		e.equal("what teardown says", e.receipt.Teardown, "all pods and GPUs were released")
	}
	for _, rank := range e.receipt.Ranks {
		if rank.Exit != (agent.Exit{}) {
			e.Errorf("rank %d ended with %+v in a run that succeeded", rank.Rank, rank.Exit)
		}
	}
	return e
}

// ranks checks the number of ranks, on both nodes.
func (e ending) ranks(want int) ending {
	e.Helper()
	if len(e.receipt.Nodes) != 2 || len(e.receipt.Ranks) != want {
		e.Errorf("the receipt has %d nodes and %d ranks, want 2 and %d", len(e.receipt.Nodes), len(e.receipt.Ranks), want)
	}
	return e
}

// failed fails unless the task ended the run with the reason and a message that contains the
// parts.
func (e ending) failed(task string, reason fail.Reason, parts ...string) ending {
	e.Helper()
	if e.workstation != nil {
		e.equal("reason", e.receipt.Reason, string(reason))
		e.mustContain(e.receipt.Message, parts...)
		return e
	}
	if !e.run.IsDone() || e.run.IsSuccessful() {
		e.Fatalf("run %s ended with %+v, want a failure", e.run.Name, e.run.Status.Conditions)
	}
	found := e.tasks[task]
	e.equal("task "+task, string(found.Status), string(pipelinerun.Failed))
	e.equal("result reason of "+task, found.Results["reason"], string(reason))
	e.mustContain(found.Results["message"], parts...)
	e.equal("verdict", string(e.receipt.Verdict), string(receipt.Failed))
	e.equal("the receipt's reason", e.receipt.Reason, string(reason))
	// A result is short; the receipt has all that the step said.
	said := strings.TrimSuffix(humanize.Lines(found.Results["message"], len(e.receipt.Message)+1), "…")
	if said == "" || !strings.HasPrefix(e.receipt.Message, said) {
		e.Errorf("the receipt's message is %q, want one that begins with %q", e.receipt.Message, said)
	}
	return e
}

func (u user) equal(what string, got, want any) {
	u.Helper()
	if diff := cmp.Diff(fmt.Sprint(want), fmt.Sprint(got)); diff != "" {
		u.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// log returns the output of all attempts of a task of the run.
func (e ending) log(task string) string {
	e.Helper()
	if e.workstation != nil {
		return e.workstation.runs[e.run.Name].String()
	}
	return e.kubectl("logs", "--selector=tekton.dev/pipelineRun="+e.run.Name+",tekton.dev/pipelineTask="+task, "--container=step-"+task,
		"--tail=-1")
}

// stepTook returns how long the task's step ran, without the time in which its pod was scheduled and its image pulled.
func (e ending) stepTook(task string) time.Duration {
	e.Helper()
	times := strings.Fields(e.kubectl("get", "taskrun", e.tasks[task].Name, "--output=jsonpath={.status.steps[0].terminated.startedAt} "+
		"{.status.steps[0].terminated.finishedAt}"))
	if len(times) != 2 {
		e.Fatalf("the step of %s has the times %q, want two", task, times)
	}
	began, err := time.Parse(time.RFC3339, times[0])
	if err != nil {
		e.Fatal(err)
	}
	ended, err := time.Parse(time.RFC3339, times[1])
	if err != nil {
		e.Fatal(err)
	}
	return ended.Sub(began)
}

// waitOutput follows the log of a running task until it contains every text.
func (u trainer) waitOutput(name, task string, texts ...string) {
	u.Helper()
	if u.workstation != nil {
		for _, text := range texts {
			u.waitPrinted(text, "exec", "machine", "--", "mlenv", "logs", name, "--follow")
		}
		return
	}
	pod := u.startedPod(name, task, "").Name
	for _, text := range texts {
		u.waitLog(pod, "step-"+task, text)
	}
}

// waitLog follows a container's log until it contains the text.
func (u trainer) waitLog(pod, container, text string) {
	u.Helper()
	u.waitPrinted(text, "logs", "--follow", pod, "--container="+container)
}

// waitPrinted runs kubectl until it has printed the text.
func (u trainer) waitPrinted(text string, args ...string) {
	u.Helper()
	ctx, cancel := u.within(timeForTheTextToBeLogged)
	defer cancel()
	cmd := exec.CommandContext(ctx, stateDir+"/bin/kubectl", append([]string{"--kubeconfig=" + kubeconfig, "--namespace=" + u.namespace},
		args...)...)
	found := &finder{text: text, done: cancel}
	cmd.Stdout, cmd.Stderr = found, found
	err := cmd.Run()
	if !found.seen {
		u.Fatalf("%v never printed %q (%v):\n%s", args, text, err, shortened(found.all.String()))
	}
}

// startedPod waits until the task's step runs in a pod other than the given one, and returns that
// pod.
func (u trainer) startedPod(name, task string, other types.UID) (pod *corev1.Pod) {
	u.Helper()
	ctx, cancel := u.within(timeForAPodToStart)
	defer cancel()
	options := metav1.ListOptions{LabelSelector: "tekton.dev/pipelineRun=" + name + ",tekton.dev/pipelineTask=" + task}
	err := kube.WatchUntil(ctx, "the pod of task "+task, u.clients.Kube.CoreV1().Pods(u.namespace), options,
		func(pods []*corev1.Pod) (bool, error) {
			for _, found := range pods {
				for _, container := range found.Status.ContainerStatuses {
					if container.Name == "step-"+task && found.UID != other && started(container) {
						pod = found
					}
				}
			}
			return pod != nil, nil
		})
	if err != nil {
		u.Fatal(err)
	}
	return pod
}

func started(container corev1.ContainerStatus) bool {
	return container.State.Running != nil || container.State.Terminated != nil
}

// taskEnd waits until a TaskRun that was started alone has ended.
func (u trainer) taskEnd(name string) (ended *v1.TaskRun, results map[string]string) {
	u.Helper()
	ctx, cancel := u.within(timeForARunToEnd)
	defer cancel()
	err := kube.WatchUntil(ctx, "taskrun "+name, u.clients.Tekton.TektonV1().TaskRuns(u.namespace), named(name),
		func(runs []*v1.TaskRun) (bool, error) {
			if len(runs) == 0 {
				return false, errors.New("the run is gone")
			}
			ended = runs[0]
			return ended.IsDone(), nil
		})
	if err != nil {
		u.Fatal(err)
	}
	results = map[string]string{}
	for _, result := range ended.Status.Results {
		results[result.Name] = result.Value.StringVal
	}
	return ended, results
}

// release creates the file for which scripts on a shared workspace wait.
func (u trainer) release(pod, file string) {
	u.Helper()
	u.kubectl("exec", pod, "--container=train", "--", "touch", "/workspace/"+file)
}

func (u trainer) within(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(u.Context(), d)
}

func named(name string) metav1.ListOptions {
	return metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()}
}

// shortened returns the end of a long text.
func shortened(text string) string {
	const bytesThatAreRead = 30_000
	if len(text) <= bytesThatAreRead {
		return text
	}
	return "...\n" + text[len(text)-bytesThatAreRead:]
}
