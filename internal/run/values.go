// SPDX-License-Identifier: Apache-2.0

package run

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"github.com/tektoncd/pipeline/pkg/client/clientset/versioned"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// Params by which a TaskRun knows its PipelineRun. The last has the names of the params that both have under the same name, with commas.
const (
	nameParam   = "run-name"
	uidParam    = "run-uid"
	paramsParam = "run-params"
)

// Values returns the values that the params of a TaskRun have, exactly: those that were given, or else the defaults of its Task. Tekton
// replaces variables such as $(context.pipelineRun.name) in values that a pipeline passes on; only a PipelineRun has them before that.
// Errors: PermissionDenied, Cancelled if the TaskRun was deleted.
func Values(ctx context.Context, client versioned.Interface, namespace, taskRun string) (map[string]v1.ParamValue, error) {
	own, err := startedTaskRun(ctx, client, namespace, taskRun)
	if err != nil {
		return nil, err
	}
	values := map[string]v1.ParamValue{}
	for _, spec := range own.Status.TaskSpec.Params {
		if spec.Default != nil {
			values[spec.Name] = *spec.Default
		}
	}
	for _, param := range own.Spec.Params {
		values[param.Name] = param.Value
	}
	name, shared := values[nameParam].StringVal, strings.Split(values[paramsParam].StringVal, ",")
	if name == "" || shared[0] == "" {
		return values, nil
	}
	found, err := client.TektonV1().PipelineRuns(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && found.UID != types.UID(values[uidParam].StringVal) {
		return nil, fail.Becausef(fail.Cancelled, "reading the params of pipelinerun %s/%s: it was deleted", namespace, name)
	}
	if err != nil {
		return nil, kube.Problem(fmt.Errorf("reading the params of pipelinerun %s/%s: %w", namespace, name, err))
	}
	for _, param := range found.Spec.Params {
		if passed, ok := values[param.Name]; ok && slices.Contains(shared, param.Name) && passed.Type == param.Value.Type {
			values[param.Name] = param.Value
		}
	}
	return values, nil
}

// startedTaskRun returns a TaskRun with its Task, which Tekton writes into its status a moment after it creates the pod.
func startedTaskRun(ctx context.Context, client versioned.Interface, namespace, name string) (*v1.TaskRun, error) {
	const tries, pause = 60, time.Second // Tekton writes the Task a moment after it creates the pod
	for range tries {
		// A list, because the steps may list TaskRuns anyway.
		list, err := client.TektonV1().TaskRuns(namespace).List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
		if err != nil {
			return nil, kube.Problem(fmt.Errorf("reading the params of taskrun %s/%s: %w", namespace, name, err))
		}
		own := slices.IndexFunc(list.Items, func(t v1.TaskRun) bool { return t.Name == name })
		if own < 0 {
			return nil, fail.Becausef(fail.Cancelled, "reading the params of taskrun %s/%s: it was deleted", namespace, name)
		}
		if list.Items[own].Status.TaskSpec != nil {
			return &list.Items[own], nil
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return nil, fail.Becausef(fail.Internal, "reading the params of taskrun %s/%s: Tekton has not written its Task into its status after %s",
		namespace, name, tries*pause)
}
