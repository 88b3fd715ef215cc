// SPDX-License-Identifier: Apache-2.0

// Package action implements the GitHub Action: it starts a run with the workflow's inputs, follows it, and reports how
// it ended.
package action

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sethvargo/go-githubactions"
	tekton "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/project"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

// cancelTime bounds the wait for a cancelled run: GitHub allows the steps of a cancelled job this long.
const cancelTime = 5 * time.Minute

type action struct {
	page
	log     *groups
	clients *kube.Clients
	// base is the branch or run to compare with, "" for none.
	base string
}

// begin reads the inputs and connects. It masks secrets before anything else is printed, and annotates mistakes.
func begin(gh *githubactions.Action, getenv func(string) string) (*action, settings, error) {
	a := &action{page: page{gh: gh, getenv: getenv}, log: newGroups(gh)}
	given, err := readInputs(getenv)
	for _, secret := range given.secrets() {
		gh.AddMask(secret)
	}
	if err != nil {
		return nil, settings{}, err
	}
	s, err := given.settings(getenv)
	if err != nil {
		a.annotateFile(s.clusterProblems)
		return nil, s, err
	}
	if s.audience != "" {
		tokens := &idTokens{
			ask:  func(ctx context.Context) (string, error) { return gh.GetIDToken(ctx, s.audience) },
			mask: a.log.maskSecret, now: time.Now,
		}
		s.config.Wrap(tokens.wrap)
	}
	a.base = s.base
	a.clients, err = kube.NewClients(s.config, s.namespace)
	return a, s, err
}

// run starts a run and follows it to its end. If ctx ends, it cancels the run.
func (a *action) run(ctx context.Context, s settings) error {
	pipeline, err := launch.Installed(ctx, a.clients)
	if err != nil {
		return err
	}
	// The name is stored before the run exists: this process can be killed at any time, and the step after it cancels
	// the run by its name.
	name := launch.NewName()
	if err := a.remember(name, false); err != nil {
		return err
	}
	started, err := launch.Start(ctx, a.clients, launch.Request{
		Pipeline: pipeline, Name: name, ServiceAccount: s.account, Values: valuesOf(pipeline, s.params), Annotations: a.origin(s),
		Say: func(line string) { a.gh.Infof("%s", line) },
	})
	if err != nil && !kube.Transient(err) { // an answer, that the run was not created
		return errors.Join(err, a.forget())
	}
	if err != nil {
		return err
	}
	if err := a.remember(name, true); err != nil {
		return err
	}
	a.gh.Infof("PipelineRun %s/%s started.", started.Namespace, started.Name)
	a.output("run", started.Name)
	return a.follow(ctx, started)
}

// origin returns the annotation that links the run to the workflow, and to its branch, unless the run trains another commit of the
// repository: a workflow of the branch may train a pull request.
func (a *action) origin(s settings) map[string]string {
	if a.getenv("GITHUB_RUN_ID") == "" {
		return nil
	}
	workflow := fmt.Sprintf("%s/%s/actions/runs/%s", a.getenv("GITHUB_SERVER_URL"), a.getenv("GITHUB_REPOSITORY"), a.getenv("GITHUB_RUN_ID"))
	origin := map[string]string{project.LabelPrefix + "started-by": workflow}
	own := !s.checkout || slices.Contains([]string{a.getenv("GITHUB_SHA"), a.getenv("GITHUB_REF_NAME")}, s.params["revision"])
	if a.getenv("GITHUB_REF_TYPE") == "branch" && own {
		origin[branchAnnotation] = a.getenv("GITHUB_REF_NAME")
	}
	return origin
}

// valuesOf returns the params as launch takes them: each line of an array param is an item.
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

func (a *action) follow(ctx context.Context, of *tekton.PipelineRun) error {
	outcome, err := launch.Follow(ctx, a.clients, of, a.observe)
	switch {
	case ctx.Err() != nil:
		outcome, err = a.cancel(context.WithoutCancel(ctx), of)
	case err != nil:
		// A run that cannot be followed would hold its GPUs unseen. The step after this one waits for its end.
		err = errors.Join(err, a.order(ctx, of))
	}
	a.log.close()
	if err != nil {
		return err
	}
	return a.ended(ctx, outcome)
}

// ended reports a run that the next step need not cancel any more.
func (a *action) ended(ctx context.Context, outcome launch.Outcome) error {
	if err := a.forget(); err != nil {
		return err
	}
	return a.report(ctx, outcome)
}

// lookPause is the time between two attempts of a request.
const lookPause = 2 * time.Second

// order cancels a run, and does not wait for its end. It tries again while the API server is away, for as long as GitHub allows.
func (a *action) order(ctx context.Context, of *tekton.PipelineRun) error {
	ctx, done := context.WithTimeout(ctx, cancelTime)
	defer done()
	var problem error
	err := wait.PollUntilContextCancel(ctx, lookPause, true, func(ctx context.Context) (bool, error) {
		problem = launch.Cancel(ctx, a.clients, of, false)
		return !kube.Transient(problem), nil
	})
	return cmp.Or(problem, err)
}

// cancel cancels a run and waits until its finally tasks have ended.
func (a *action) cancel(ctx context.Context, of *tekton.PipelineRun) (launch.Outcome, error) {
	ctx, done := context.WithTimeout(ctx, cancelTime)
	defer done()
	if err := a.order(ctx, of); err != nil {
		return launch.Outcome{}, err
	}
	a.log.close()
	a.gh.Infof("The run is cancelled; its teardown releases everything.")
	return launch.Follow(ctx, a.clients, of, func(launch.Event) {})
}

func (a *action) observe(e launch.Event) {
	switch e.Kind {
	case launch.TaskStarted:
		if e.Retry > 0 {
			a.log.printLine(e.Task, fmt.Sprintf("The task starts again, attempt %d.", e.Retry+1))
		}
	case launch.TaskWaiting:
		a.log.printLine(e.Task, "The task waits: "+e.Text)
		if e.Next != "" {
			a.log.printLine(e.Task, "Next: "+e.Next)
		}
	case launch.Line:
		a.log.printLine(e.Task, e.Text)
	case launch.LogLost:
		a.log.printLine(e.Task, "The rest of the log cannot be read: "+e.Text)
	case launch.TaskEnded:
		if e.Ended.Status == run.Failed {
			a.log.printLine(e.Task, "The task failed: "+e.Ended.Message)
		}
		a.log.endTask(e.Task)
	}
}

func (a *action) report(ctx context.Context, o launch.Outcome) error {
	r := receipt.Receipt{Run: o.Run.Name, Namespace: o.Run.Namespace}
	if o.Receipt != nil {
		r = *o.Receipt
	}
	r.Verdict, r.Reason, r.Message = o.Verdict, o.Reason, o.Message
	a.outputs(r)
	if err := a.writeReport(r); err != nil {
		return err
	}
	a.annotate(r)
	if err := a.summarize(r, a.compare(ctx, a.base, r)); err != nil {
		return err
	}
	if o.Verdict != receipt.Succeeded {
		a.log.print(fmt.Sprintf("%s failed: %s: %s", r.Run, r.Reason, r.Message))
		return &command.Exit{Code: command.Failed}
	}
	a.gh.Infof("%s succeeded%s.", r.Run, r.WarningClause())
	return nil
}

// cancelLeftRun cancels the run that the step before has left: GitHub kills a cancelled step after ten seconds, the answer to a creation
// may be lost, and a run that could not be followed may not have been cancelled either. It does nothing if there is none, or if it was
// reported already.
func (a *action) cancelLeftRun(ctx context.Context) error {
	name, created, err := a.stored()
	if err != nil || name == "" {
		return err
	}
	// With timeout-minutes of the step that uses the Action, GitHub stops this step as soon as it begins.
	urgent, done := outlasting(ctx, lastTime)
	defer done()
	of, err := a.find(urgent, name, created)
	if err != nil {
		return err
	}
	if of == nil {
		return a.forget() // it was never created, or was deleted
	}
	if err := a.order(urgent, of); err != nil {
		return err
	}
	outcome, err := a.cancel(ctx, of)
	if err != nil {
		return err
	}
	if err := a.ended(ctx, outcome); !command.Printed(err) {
		return err
	}
	return nil // the step before has failed the job
}

// lastTime is a little less than GitHub leaves a step after it has told it to end.
const lastTime = 8 * time.Second

// outlasting returns a context that ends a time after ctx.
func outlasting(ctx context.Context, by time.Duration) (longer context.Context, done func()) {
	longer, end := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(by, end) })
	return longer, func() { stop(); end() }
}

// commitTime is how long a request without an answer may take to create the run: as long as the API server works on one.
const commitTime = time.Minute

// find looks for a run by its name, nil if there is none. One whose creation was not answered may still come.
func (a *action) find(ctx context.Context, name string, created bool) (*tekton.PipelineRun, error) {
	ctx, done := context.WithTimeout(ctx, cancelTime)
	defer done()
	began := time.Now()
	var of *tekton.PipelineRun
	var problem error
	err := wait.PollUntilContextCancel(ctx, lookPause, true, func(ctx context.Context) (bool, error) {
		of, problem = a.clients.Tekton.TektonV1().PipelineRuns(a.clients.Namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(problem) {
			of, problem = nil, nil
			return created || time.Since(began) >= commitTime, nil
		}
		return !kube.Transient(problem), nil
	})
	if err = cmp.Or(problem, err); err != nil {
		return nil, kube.Problem(fmt.Errorf("getting pipelinerun %s/%s: %w", a.clients.Namespace, name, err))
	}
	return of, nil
}

// stateFile passes the run's name to the next step: the outputs of a killed step are lost.
func (a *action) stateFile() string { return filepath.Join(a.getenv("RUNNER_TEMP"), "mlenv-run") }

// createdMark follows the name of a run whose creation the API server has confirmed.
const createdMark = " created"

func (a *action) remember(name string, created bool) error {
	if a.getenv("RUNNER_TEMP") == "" {
		return nil
	}
	if created {
		name += createdMark
	}
	if err := os.WriteFile(a.stateFile(), []byte(name), 0o600); err != nil {
		return fail.Becausef(fail.Internal, "storing the name of the run: %w", err)
	}
	return nil
}

// stored returns the name of a run that may still be in progress, "" for none, and whether its creation was confirmed.
func (a *action) stored() (name string, created bool, err error) {
	content, err := os.ReadFile(a.stateFile())
	if errors.Is(err, fs.ErrNotExist) {
		return "", false, nil
	}
	name, created = strings.CutSuffix(string(content), createdMark)
	return name, created, err
}

func (a *action) forget() error {
	if err := os.Remove(a.stateFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
