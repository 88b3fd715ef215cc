// Package launch starts a PipelineRun of an installed pipeline, follows it to its
// end, and cancels it so that everything is given back.
package launch

import (
	"context"
	"fmt"
	"time"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/run"
)

// Defaults of a Request.
const (
	// Pipeline trains.
	Pipeline = "train-multi-node"
	// ServiceAccount is the one that mlenv install gives the rights to.
	ServiceAccount = "mlenv-pipeline"
)

// Request is a run to be started. Its zero fields have defaults, but for Values.
type Request struct {
	// Namespace in which the pipeline is installed; "" is the clients' own.
	Namespace string
	// Pipeline by name; "" is the constant Pipeline.
	Pipeline string
	// Installed is that pipeline if the caller has read it. If it is nil, Start reads it.
	Installed *v1.Pipeline
	// Name of the PipelineRun. A run of that name that is there already is adopted if it was asked for the
	// same. With "" the API server makes one, of GenerateName, or else of the pipeline's name.
	Name         string
	GenerateName string
	// Values of the pipeline's params by their names, as texts: one for a param that is a string, any
	// number for one that is an array.
	Values map[string][]string
	// ServiceAccount of the steps; "" is the constant ServiceAccount.
	ServiceAccount string
	Labels         map[string]string
	Annotations    map[string]string
	// Timeouts of the PipelineRun; nil computes them of Values.
	Timeouts *run.Timeouts
}

// createTime is how long the API server may take to make a run.
const createTime = 30 * time.Second

// NewName is one for a run that nobody has yet. Who names the run knows which one it is before there is one,
// and so also when the answer never came.
func NewName() string {
	const letters = 8
	return Pipeline + "-" + rand.String(letters)
}

// Start makes the PipelineRun. Values are checked against the params of the pipeline
// that is installed; all mistakes are told at once, as InvalidInput, and nothing is
// made then. A run that ctx's end comes upon is made all the same, and returned. Other
// errors: PermissionDenied.
func Start(ctx context.Context, clients *kube.Clients, request Request) (*v1.PipelineRun, error) {
	request = request.withDefaults(clients)
	pipeline := request.Installed
	if pipeline == nil {
		var err error
		if pipeline, err = Installed(ctx, clients, request.Namespace, request.Pipeline); err != nil {
			return nil, err
		}
	}
	wanted, err := request.pipelineRun(pipeline)
	if err != nil {
		return nil, err
	}
	runs := clients.Tekton.TektonV1().PipelineRuns(request.Namespace)
	// Whoever is told to end now must learn of the run, to cancel it: nobody else would.
	creating, done := context.WithTimeout(context.WithoutCancel(ctx), createTime)
	defer done()
	made, err := runs.Create(creating, wanted, metav1.CreateOptions{FieldManager: kube.FieldManager})
	if apierrors.IsAlreadyExists(err) && request.Name != "" {
		return adopt(creating, clients, wanted)
	}
	if err != nil {
		return nil, kube.Problem(fmt.Errorf("starting pipeline %s/%s: %w", request.Namespace, request.Pipeline, err))
	}
	return made, nil
}

func (r Request) withDefaults(clients *kube.Clients) Request {
	if r.Namespace == "" {
		r.Namespace = clients.Namespace
	}
	if r.Pipeline == "" {
		r.Pipeline = Pipeline
	}
	if r.ServiceAccount == "" {
		r.ServiceAccount = ServiceAccount
	}
	if r.Name == "" && r.GenerateName == "" {
		r.GenerateName = r.Pipeline + "-"
	}
	return r
}

// Installed is the pipeline as it is in the namespace.
func Installed(ctx context.Context, clients *kube.Clients, namespace, name string) (*v1.Pipeline, error) {
	pipeline, err := clients.Tekton.TektonV1().Pipelines(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		if err := kube.NoNamespace(ctx, clients.Kube, namespace); err != nil {
			return nil, err
		}
		return nil, fail.Advise(fail.Becausef(fail.InvalidInput, "looking for pipeline %s/%s: %w", namespace, name, err),
			"mlenv install clusters/CLUSTER.yaml --namespace=%s (or name the namespace in which it is installed by -n)", namespace)
	}
	if err != nil {
		return nil, kube.Problem(fmt.Errorf("getting pipeline %s/%s: %w", namespace, name, err))
	}
	return pipeline, nil
}

// pipelineRun is the object to make.
func (r Request) pipelineRun(pipeline *v1.Pipeline) (*v1.PipelineRun, error) {
	params, err := Params(pipeline, r.Values)
	if err != nil {
		return nil, err
	}
	timeouts := r.Timeouts
	if timeouts == nil {
		needs, err := needs(pipeline, r.Values)
		if err != nil {
			return nil, err
		}
		computed := run.TimeoutsFor(needs)
		timeouts = &computed
	}
	labels := map[string]string{"app.kubernetes.io/part-of": "ml-dev-env"}
	for key, value := range r.Labels {
		labels[key] = value
	}
	return &v1.PipelineRun{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: r.Namespace, Name: r.Name, GenerateName: r.GenerateName, Labels: labels, Annotations: r.Annotations,
		},
		Spec: v1.PipelineRunSpec{
			PipelineRef:     &v1.PipelineRef{Name: pipeline.Name},
			Params:          params,
			TaskRunTemplate: v1.PipelineTaskRunTemplate{ServiceAccountName: r.ServiceAccount},
			Timeouts:        timeouts.Fields(),
		},
	}, nil
}

// adopt takes the run of that name for the one that was wanted, if it was asked for the same.
func adopt(ctx context.Context, clients *kube.Clients, wanted *v1.PipelineRun) (*v1.PipelineRun, error) {
	found, err := clients.Tekton.TektonV1().PipelineRuns(wanted.Namespace).Get(ctx, wanted.Name, metav1.GetOptions{})
	if err != nil {
		return nil, kube.Problem(fmt.Errorf("getting pipelinerun %s/%s: %w", wanted.Namespace, wanted.Name, err))
	}
	if different := differences(wanted, found); different != "" {
		return nil, fail.Advise(fail.Becausef(fail.InvalidInput, "starting pipelinerun %s/%s: there is one of that name with another %s", wanted.Namespace, wanted.Name, different),
			"choose another name, or follow the one that is there: mlenv status %s -n %s", wanted.Name, wanted.Namespace)
	}
	return found, nil
}
