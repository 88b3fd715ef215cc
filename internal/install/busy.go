package install

import (
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// usage is what uses the installed objects.
type usage struct {
	// runs are PipelineRuns that are in progress, and TaskRuns that belong to none.
	runs []*unstructured.Unstructured
	// environments are Leases, which own everything of their environment except claims.
	environments []*unstructured.Unstructured
}

// usageOf finds the namespace's environments, and its runs of the installed pipelines and tasks.
func usageOf(ctx context.Context, client dynamic.Interface, namespace string, installed []*unstructured.Unstructured) (usage, error) {
	var u usage
	for _, kind := range []struct{ resource, of, label string }{
		{"pipelineruns", "Pipeline", "tekton.dev/pipeline"}, {"taskruns", "Task", "tekton.dev/task"},
	} {
		runs, err := list(ctx, client, schema.GroupVersionResource{Group: "tekton.dev", Version: "v1", Resource: kind.resource}, namespace, kind.label)
		if err != nil {
			return u, err
		}
		for _, run := range runs {
			labels := run.GetLabels()
			if kind.of == "Task" && labels["tekton.dev/pipelineRun"] != "" {
				continue // its PipelineRun is listed
			}
			if !hasEnded(run) && contains(installed, kind.of, labels[kind.label]) {
				u.runs = append(u.runs, run)
			}
		}
	}
	var err error
	u.environments, err = list(ctx, client, schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}, namespace, objects.EnvironmentLabel)
	return u, err
}

func hasEnded(run *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(run.Object, "status", "conditions")
	return slices.ContainsFunc(conditions, func(condition any) bool {
		fields, _ := condition.(map[string]any)
		return fields["type"] == "Succeeded" && fields["status"] != "Unknown"
	})
}

// names are the runs, and the environments with their holders.
func (u usage) names() []string {
	var names []string
	for _, run := range u.runs {
		names = append(names, Title(run))
	}
	for _, environment := range u.environments {
		name := "environment " + environment.GetName()
		if holder := environment.GetAnnotations()[lease.HolderName]; holder != "" {
			name += ", held by " + holder
		}
		names = append(names, name)
	}
	return names
}

// end cancels the runs without their teardown, which would lose its rights midway, and deletes the environments'
// Leases; the garbage collector deletes the rest.
func (u usage) end(ctx context.Context, client dynamic.Interface) ([]Change, error) {
	for i, run := range u.runs {
		status := "Cancelled"
		if run.GetKind() == "TaskRun" {
			status = "TaskRunCancelled"
		}
		_, err := clientOf(client, run).Patch(ctx, run.GetName(), types.MergePatchType, fmt.Appendf(nil, `{"spec":{"status":%q}}`, status), metav1.PatchOptions{FieldManager: fieldManager})
		if err != nil {
			return outcomes(u.runs[:i], Cancelled), kube.Problem(fmt.Errorf("cancelling %s: %w", Title(run), err))
		}
	}
	deleted, err := deleteAll(ctx, client, u.environments)
	return append(outcomes(u.runs, Cancelled), deleted...), err
}
