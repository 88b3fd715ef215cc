// Package action is what the GitHub Action does: it starts a run with the workflow's
// inputs, follows it, and tells the workflow how it ended.
package action

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sethvargo/go-githubactions"
	tekton "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/run"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
)

// cancelTime bounds how long a run that was cancelled is waited for: what GitHub gives
// the steps of a cancelled job.
const cancelTime = 5 * time.Minute

// action is one step of a workflow.
type action struct {
	page
	log     *groups
	clients *kube.Clients
}

// begin reads the inputs and connects. Mistakes are annotated.
func begin(gh *githubactions.Action, getenv func(string) string) (*action, wanted, error) {
	a := &action{page: page{gh: gh, getenv: getenv}, log: newGroups(gh)}
	given, err := readInputs(getenv)
	if err != nil {
		return nil, wanted{}, err
	}
	for _, secret := range given.secrets() {
		gh.AddMask(secret)
	}
	w, err := given.wanted(getenv)
	if err != nil {
		a.annotateFile(w.clusterProblems)
		return nil, w, err
	}
	a.clients, err = kube.For(w.config, w.namespace)
	return a, w, err
}

// run starts a run and follows it to its end. The end of ctx cancels it.
func (a *action) run(ctx context.Context, w wanted) error {
	pipeline, err := launch.Installed(ctx, a.clients, w.namespace, launch.Pipeline)
	if err != nil {
		return err
	}
	// Before there is a run: what kills this process leaves nobody else who knows of it.
	name := launch.NewName()
	if err := a.remember(name); err != nil {
		return err
	}
	started, err := launch.Start(ctx, a.clients, launch.Request{
		Namespace: w.namespace, Name: name, ServiceAccount: w.account, Values: valuesOf(pipeline, w.params), Annotations: a.origin(),
	})
	if err != nil {
		return err
	}
	a.gh.Infof("PipelineRun %s/%s started.", started.Namespace, started.Name)
	a.output("run", started.Name)
	return a.follow(ctx, started)
}

// origin says in the cluster where the run is from.
func (a *action) origin() map[string]string {
	if a.getenv("GITHUB_RUN_ID") == "" {
		return nil
	}
	return map[string]string{"ml-dev-env/started-by": fmt.Sprintf("%s/%s/actions/runs/%s", a.getenv("GITHUB_SERVER_URL"), a.getenv("GITHUB_REPOSITORY"), a.getenv("GITHUB_RUN_ID"))}
}

// valuesOf are the params as the pipeline takes them: of an array each line is an item.
func valuesOf(pipeline *tekton.Pipeline, params map[string]string) map[string][]string {
	values := map[string][]string{}
	for name, value := range params {
		values[name] = []string{value}
	}
	for _, param := range pipeline.Spec.Params {
		if value, given := params[param.Name]; given && param.Type == tekton.ParamTypeArray {
			values[param.Name] = strings.Split(strings.TrimRight(value, "\n"), "\n")
		}
	}
	return values
}

// follow follows a run to its end, and tells of it.
func (a *action) follow(ctx context.Context, of *tekton.PipelineRun) error {
	outcome, err := launch.Follow(ctx, a.clients, of, a.observe)
	switch {
	case ctx.Err() != nil:
		outcome, err = a.cancel(context.WithoutCancel(ctx), of)
	case err != nil:
		// Nobody would see how it ends, nor that it does.
		err = errors.Join(err, launch.Cancel(ctx, a.clients, of))
	}
	a.log.close()
	if err != nil {
		return err
	}
	return a.ended(outcome)
}

// ended tells of a run that nobody needs to see to any more.
func (a *action) ended(outcome launch.Outcome) error {
	if err := a.forget(); err != nil {
		return err
	}
	return a.tell(outcome)
}

// cancel cancels a run and waits until it has given everything back.
func (a *action) cancel(ctx context.Context, of *tekton.PipelineRun) (launch.Outcome, error) {
	ctx, done := context.WithTimeout(ctx, cancelTime)
	defer done()
	if err := launch.Cancel(ctx, a.clients, of); err != nil {
		return launch.Outcome{}, err
	}
	a.log.close()
	a.gh.Infof("The run is cancelled; it gives everything back.")
	// What it had printed before has been told.
	return launch.Follow(ctx, a.clients, of, func(launch.Event) {})
}

func (a *action) observe(e launch.Event) {
	switch e.Kind {
	case launch.TaskStarted:
		if e.Retry > 0 {
			a.log.line(e.Task, fmt.Sprintf("The task begins again, try %d.", e.Retry+1))
		}
	case launch.TaskWaiting:
		a.log.line(e.Task, "The task waits: "+e.Text)
	case launch.Line:
		a.log.line(e.Task, e.Text)
	case launch.LogLost:
		a.log.line(e.Task, "No more of the log can be had: "+e.Text)
	case launch.TaskEnded:
		if e.Ended.Status == run.Failed {
			a.log.line(e.Task, "The task failed: "+e.Ended.Message)
		}
		a.log.end(e.Task)
	}
}

// tell tells the workflow how the run ended.
func (a *action) tell(o launch.Outcome) error {
	r := receipt.Receipt{Run: o.Run.Name, Namespace: o.Run.Namespace}
	if o.Receipt != nil {
		r = *o.Receipt
	}
	r.Verdict, r.Reason, r.Message = o.Verdict, string(o.Reason), o.Message
	a.outputs(r)
	if err := a.writeReport(r); err != nil {
		return err
	}
	a.annotate(r)
	if err := a.summarize(r); err != nil {
		return err
	}
	if o.Verdict != receipt.Succeeded {
		a.log.say(fmt.Sprintf("%s failed: %s: %s", r.Run, r.Reason, r.Message))
		return &step.Exit{Code: step.Failed}
	}
	a.gh.Infof("%s succeeded.", r.Run)
	return nil
}

// end is the step after a cancelled one, which GitHub kills after ten seconds: it sees to
// the run's end. Where there is none, or it has been told of, it does nothing.
func (a *action) end(ctx context.Context) error {
	name, err := a.remembered()
	if err != nil || name == "" {
		return err
	}
	of, err := a.clients.Tekton.TektonV1().PipelineRuns(a.clients.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return a.forget() // it was never made, or is gone
	}
	if err != nil {
		return kube.Problem(fmt.Errorf("getting pipelinerun %s/%s: %w", a.clients.Namespace, name, err))
	}
	outcome, err := a.cancel(ctx, of)
	if err != nil {
		return err
	}
	if err := a.ended(outcome); !step.Printed(err) {
		return err
	}
	return nil // the job is cancelled, whatever this step says
}

// stateFile is where a step leaves the run's name to the next one: outputs of a step
// that was killed are lost.
func (a *action) stateFile() string { return filepath.Join(a.getenv("RUNNER_TEMP"), "mlenv-run.json") }

func (a *action) remember(name string) error {
	if a.getenv("RUNNER_TEMP") == "" {
		return nil
	}
	content, err := json.Marshal(name)
	if err != nil {
		return err
	}
	if err := os.WriteFile(a.stateFile(), content, 0o600); err != nil {
		return fail.Becausef(fail.Internal, "remembering the run: %w", err)
	}
	return nil
}

// remembered is the run that may go on, "" for none.
func (a *action) remembered() (name string, err error) {
	content, err := os.ReadFile(a.stateFile())
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return name, json.Unmarshal(content, &name)
}

func (a *action) forget() error {
	if err := os.Remove(a.stateFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
