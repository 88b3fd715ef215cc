// SPDX-License-Identifier: Apache-2.0

package run

import (
	"context"
	"fmt"
	"slices"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"github.com/tektoncd/pipeline/pkg/client/clientset/versioned"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// Source is where a step finds the values that its params were given.
type Source struct {
	Namespace string
	// TaskRun is the step's own.
	TaskRun string
	// Run and UID name its PipelineRun, "" for none. Params are those that the pipeline passes on under the same name.
	Run    string
	UID    types.UID
	Params []string
}

// Values returns the values that the params of a TaskRun were given, exactly. The arguments of its container have others: Tekton
// replaces variables such as $(context.pipelineRun.name) in values too, and then the kubelet replaces $(NAME), and $$ by $. Only a
// PipelineRun has the values before all of that. Errors: PermissionDenied, Cancelled if the TaskRun was deleted.
func Values(ctx context.Context, client versioned.Interface, from Source) (map[string]v1.ParamValue, error) {
	// A list, because the steps may list TaskRuns anyway.
	list, err := client.TektonV1().TaskRuns(from.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + from.TaskRun})
	if err != nil {
		return nil, kube.Problem(fmt.Errorf("reading the params of taskrun %s/%s: %w", from.Namespace, from.TaskRun, err))
	}
	own := slices.IndexFunc(list.Items, func(t v1.TaskRun) bool { return t.Name == from.TaskRun })
	if own < 0 {
		return nil, fail.Becausef(fail.Cancelled, "reading the params of taskrun %s/%s: it was deleted", from.Namespace, from.TaskRun)
	}
	values := map[string]v1.ParamValue{}
	for _, param := range list.Items[own].Spec.Params {
		values[param.Name] = param.Value
	}
	if from.Run == "" || len(from.Params) == 0 {
		return values, nil
	}
	found, err := client.TektonV1().PipelineRuns(from.Namespace).Get(ctx, from.Run, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && found.UID != from.UID {
		return nil, fail.Becausef(fail.Cancelled, "reading the params of pipelinerun %s/%s: it was deleted", from.Namespace, from.Run)
	}
	if err != nil {
		return nil, kube.Problem(fmt.Errorf("reading the params of pipelinerun %s/%s: %w", from.Namespace, from.Run, err))
	}
	for _, param := range found.Spec.Params {
		if passed, ok := values[param.Name]; ok && slices.Contains(from.Params, param.Name) && passed.Type == param.Value.Type {
			values[param.Name] = param.Value
		}
	}
	return values, nil
}
