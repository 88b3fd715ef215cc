// SPDX-License-Identifier: Apache-2.0

// Package launch starts, follows and cancels PipelineRuns of an installed pipeline.
package launch

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/project"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

// Defaults of a Request.
const (
	// Pipeline is the pipeline that trains.
	Pipeline = "train-multi-node"
	// ServiceAccount is the account of the steps unless mlenv install names another.
	ServiceAccount = "mlenv-pipeline"
	// AccountAnnotation, on the installed pipeline, names the account that mlenv install was given.
	AccountAnnotation = project.LabelPrefix + "service-account"
)

// AccountOf returns the account to which mlenv install has given the rights of the steps. The pipeline may be nil.
func AccountOf(pipeline *v1.Pipeline) string {
	if pipeline == nil {
		return ServiceAccount
	}
	return cmp.Or(pipeline.Annotations[AccountAnnotation], ServiceAccount)
}

// Account returns AccountOf the pipeline that is installed in the clients' namespace, or of none if it cannot be read.
func Account(ctx context.Context, clients *kube.Clients) string {
	if clients.Tekton == nil {
		return ServiceAccount
	}
	pipeline, err := Installed(ctx, clients)
	if err != nil {
		return ServiceAccount
	}
	return AccountOf(pipeline)
}

// Request is a run to be started.
type Request struct {
	// Pipeline is what Installed returns.
	Pipeline *v1.Pipeline
	// Name of the PipelineRun. Start adopts an existing run of that name that has the same request. With "" Start creates a name, and
	// not the API server: the request can be sent again if its answer is lost.
	Name string
	// Values of the params by their names: one for a string, any number for an array.
	Values map[string][]string
	// ServiceAccount of the steps; "" is AccountOf the pipeline.
	ServiceAccount string
	Labels         map[string]string
	Annotations    map[string]string
	// Say gets a line when Start waits for something. It may be nil.
	Say func(line string)
}

const (
	createTime = 30 * time.Second // bounds the search for a run whose creation got no answer
	deleteTime = 2 * time.Minute  // bounds the wait for the end of a run that was deleted
)

// NewName returns a new name for a run. A caller that names the run can cancel it even if the answer of Start is lost.
func NewName() string {
	const letters = 8
	return Pipeline + "-" + rand.String(letters)
}

// Start creates the PipelineRun, unless Params refuses the values. Before, it waits until the account of the steps has its pull
// secrets. If ctx ends during the creation, Start still creates and returns the run. Errors: InvalidInput, PermissionDenied.
func Start(ctx context.Context, clients *kube.Clients, request Request) (*v1.PipelineRun, error) {
	request.Name = cmp.Or(request.Name, NewName())
	wanted, err := request.pipelineRun()
	if err != nil {
		return nil, err
	}
	say := request.Say
	if say == nil {
		say = func(string) {}
	}
	_, err = clients.AccountWithPullSecrets(ctx, wanted.Namespace, wanted.Spec.TaskRunTemplate.ServiceAccountName, say)
	if errors.Is(err, context.Cause(ctx)) && ctx.Err() != nil {
		return nil, err // otherwise the pods of the run show what is wrong with their account
	}
	// A caller that is interrupted now must get the run to cancel it.
	creating, done := context.WithTimeout(context.WithoutCancel(ctx), createTime)
	defer done()
	if person, err := lease.Person(creating, clients.Kube); err == nil { // else nobody is noted
		metav1.SetMetaDataAnnotation(&wanted.ObjectMeta, run.UserAnnotation, person.ID)
	}
	made, err := create(creating, clients, wanted)
	if err == nil {
		request.beginReceipt(creating, clients, made)
	}
	return made, err
}

// create creates a run, or finds the one that another caller has created with the same request. The clients send a request again whose
// answer is lost.
func create(ctx context.Context, clients *kube.Clients, wanted *v1.PipelineRun) (*v1.PipelineRun, error) {
	runs := clients.Tekton.TektonV1().PipelineRuns(wanted.Namespace)
	made, err := runs.Create(ctx, wanted, metav1.CreateOptions{FieldManager: kube.FieldManager})
	switch {
	case apierrors.IsAlreadyExists(err):
		return adopt(ctx, clients, wanted)
	case err != nil:
		err = kube.Problem(fmt.Errorf("starting pipeline %s/%s: %w", wanted.Namespace, Pipeline, err))
		if kube.Transient(err) { // the answer alone may be lost, and an error of the API server may follow what it has stored
			err = fail.Advise(err, "mlenv status %[1]s -n %[2]s   # run %[1]s may have started all the same; to end it: mlenv cancel %[1]s -n %[2]s",
				wanted.Name, wanted.Namespace)
		}
		return nil, err
	}
	return made, nil
}

// beginReceipt begins the receipt of a run. A user who may start runs may not be allowed to: then the first step does.
func (r Request) beginReceipt(ctx context.Context, clients *kube.Clients, made *v1.PipelineRun) {
	start := receipt.Start{
		Run: made.Name, Namespace: made.Namespace, RunUID: string(made.UID), Environment: ParamValue(r.Pipeline, r.Values, "name"),
		Schedule: made.Labels[run.ScheduleLabel], User: made.Annotations[run.UserAnnotation], Started: made.CreationTimestamp.UTC(),
	}
	if start.Environment != "" {
		_ = receipt.BeginJournal(ctx, clients.Kube, start)
	}
}

// Delete deletes a run, and returns when it is gone with its TaskRuns: a run of the same name would take those that are left for its own.
// Errors: PermissionDenied, or it was not gone within deleteTime.
func Delete(ctx context.Context, clients *kube.Clients, of *v1.PipelineRun) error {
	ctx, done := context.WithTimeoutCause(ctx, deleteTime, fmt.Errorf("it was not seen to be gone within %s", deleteTime))
	defer done()
	title := "pipelinerun " + of.Namespace + "/" + of.Name
	runs := clients.Tekton.TektonV1().PipelineRuns(of.Namespace)
	options := metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(of.UID)),
		PropagationPolicy: new(metav1.DeletePropagationForeground)}
	if err := kube.Deleted(title, runs.Delete(ctx, of.Name, options)); err != nil {
		// The API server may have deleted it all the same.
		found, again := runs.Get(ctx, of.Name, metav1.GetOptions{})
		if again == nil && found.UID == of.UID && found.DeletionTimestamp == nil || again != nil && !apierrors.IsNotFound(again) {
			return err
		}
	}
	return kube.UntilOne(ctx, title, runs, of.Name, func(found *v1.PipelineRun) (bool, error) {
		return found == nil || found.UID != of.UID, nil
	})
}

// Restart deletes a run of which no step has run and starts it again under its name, by the request that Start was called with.
// Errors: InvalidInput, PermissionDenied.
func Restart(ctx context.Context, clients *kube.Clients, of *v1.PipelineRun, request Request) (*v1.PipelineRun, error) {
	if err := Delete(ctx, clients, of); err != nil {
		return nil, fail.Advise(err, "start it again; mlenv runs shows whether it is gone")
	}
	request.Name = of.Name
	return Start(ctx, clients, request)
}

// Installed returns the pipeline that is installed in the clients' namespace.
func Installed(ctx context.Context, clients *kube.Clients) (*v1.Pipeline, error) {
	namespace := clients.Namespace
	pipeline, err := clients.Tekton.TektonV1().Pipelines(namespace).Get(ctx, Pipeline, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		if err := kube.NoNamespace(ctx, clients.Kube, namespace); err != nil {
			return nil, err
		}
		return nil, fail.Advise(fail.Becausef(fail.InvalidInput, "looking for pipeline %s/%s: %w", namespace, Pipeline, err),
			"mlenv install clusters/CLUSTER.yaml --namespace=%s (or name the namespace in which it is installed by -n)", namespace)
	}
	if err != nil {
		return nil, kube.Problem(fmt.Errorf("getting pipeline %s/%s: %w", namespace, Pipeline, err))
	}
	return pipeline, nil
}

// EnvironmentOf returns the name of a run's environment.
func EnvironmentOf(of *v1.PipelineRun) string {
	return cmp.Or(ValueOf(of, "name"), objects.DefaultName)
}

// Unfinished returns the runs that have not ended and are not being deleted, however they were started. Tekton labels a run only when it
// has seen it. Errors: PermissionDenied.
func Unfinished(ctx context.Context, clients *kube.Clients) ([]v1.PipelineRun, error) {
	list, err := clients.Tekton.TektonV1().PipelineRuns(clients.Namespace).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) { // Tekton is not installed any more
		return nil, nil
	}
	if err != nil {
		return nil, kube.Problem(fmt.Errorf("listing pipelineruns in %s: %w", clients.Namespace, err))
	}
	return slices.DeleteFunc(list.Items, func(r v1.PipelineRun) bool {
		labelled, ref := r.Labels["tekton.dev/pipeline"] == Pipeline, r.Spec.PipelineRef
		return r.IsDone() || r.DeletionTimestamp != nil || !labelled && (ref == nil || ref.Name != Pipeline)
	}), nil
}

// Longest returns how long a run with the values may take before Tekton ends it.
func Longest(pipeline *v1.Pipeline, values map[string][]string) time.Duration {
	return run.TimeoutsFor(stepDeadlines(pipeline, values)).Pipeline
}

func (r Request) pipelineRun() (*v1.PipelineRun, error) {
	params, err := Params(r.Pipeline, r.Values)
	if err != nil {
		return nil, err
	}
	wanted := &v1.PipelineRun{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: r.Pipeline.Namespace, Name: r.Name, Annotations: maps.Clone(r.Annotations), Labels: map[string]string{
				"app.kubernetes.io/part-of": "ml-dev-env",
				// Tekton sets it when it first sees the run; others list the runs by it before.
				"tekton.dev/pipeline": Pipeline,
			},
		},
		Spec: v1.PipelineRunSpec{
			PipelineRef:     &v1.PipelineRef{Name: Pipeline},
			Params:          params,
			TaskRunTemplate: v1.PipelineTaskRunTemplate{ServiceAccountName: cmp.Or(r.ServiceAccount, AccountOf(r.Pipeline))},
			Timeouts:        run.TimeoutsFor(stepDeadlines(r.Pipeline, r.Values)).Fields(),
		},
	}
	maps.Copy(wanted.Labels, r.Labels)
	return wanted, nil
}

// adopt returns the existing run if it has the same request.
func adopt(ctx context.Context, clients *kube.Clients, wanted *v1.PipelineRun) (*v1.PipelineRun, error) {
	found, err := clients.Tekton.TektonV1().PipelineRuns(wanted.Namespace).Get(ctx, wanted.Name, metav1.GetOptions{})
	if err != nil {
		return nil, kube.Problem(fmt.Errorf("getting pipelinerun %s/%s: %w", wanted.Namespace, wanted.Name, err))
	}
	if different := differences(wanted, found); different != "" {
		return nil, fail.Advise(fail.Becausef(fail.InvalidInput, "starting pipelinerun %s/%s: it exists with another %s", wanted.Namespace,
			wanted.Name, different),
			"choose another name, or look at the existing run: mlenv status %s -n %s", wanted.Name, wanted.Namespace)
	}
	return found, nil
}

// Cancel cancels a run so that its finally tasks run and release everything; it does not wait for them. The ranks have the time of
// stop-grace to save, with now only some seconds, even if the run is being cancelled already. Cancel does nothing if the run has ended or
// was deleted. Errors: PermissionDenied.
func Cancel(ctx context.Context, clients *kube.Clients, of *v1.PipelineRun, now bool) error {
	runs := clients.Tekton.TektonV1().PipelineRuns(of.Namespace)
	found, err := runs.Get(ctx, of.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && (found.UID != of.UID || found.IsDone()):
		return nil
	case err != nil:
		return kube.Problem(fmt.Errorf("getting pipelinerun %s/%s: %w", of.Namespace, of.Name, err))
	}
	// The UID protects a later run of the same name.
	metadata, patch := map[string]any{"uid": of.UID}, map[string]any{}
	patch["metadata"] = metadata
	cancelling := found.IsCancelled() || found.IsGracefullyCancelled()
	switch {
	case cancelling && !now:
		return nil
	case !cancelling:
		patch["spec"] = map[string]any{"status": v1.PipelineRunSpecStatusCancelledRunFinally}
	}
	if now {
		metadata["annotations"] = map[string]any{run.CancelAnnotation: run.CancelNow}
	}
	text, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	_, err = runs.Patch(ctx, of.Name, types.MergePatchType, text, metav1.PatchOptions{FieldManager: kube.FieldManager})
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}
	// It may have ended since it was read: Tekton refuses changes of an ended run.
	if found, again := runs.Get(ctx, of.Name, metav1.GetOptions{}); apierrors.IsNotFound(again) || again == nil &&
		(found.UID != of.UID || found.IsDone()) {
		return nil
	}
	return kube.Problem(fmt.Errorf("cancelling pipelinerun %s/%s: %w", of.Namespace, of.Name, err))
}
