package install

import (
	"context"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// Resources that are looked at, and ended where that is asked for.
var (
	pipelineRuns = schema.GroupVersionResource{Group: "tekton.dev", Version: "v1", Resource: "pipelineruns"}
	taskRuns     = schema.GroupVersionResource{Group: "tekton.dev", Version: "v1", Resource: "taskruns"}
	leases       = coordinationv1.SchemeGroupVersion.WithResource("leases")
)

// inUse is what still stands on what is installed.
type inUse struct {
	// runs are PipelineRuns that go on, and TaskRuns of no pipeline.
	runs []found
	// environments are their Leases, which everything else of them but claims is owned by.
	environments []found
}

// use finds the namespace's runs of our pipelines and tasks, and its environments.
func use(ctx context.Context, client dynamic.Interface, namespace string, installed []found) (inUse, error) {
	var u inUse
	for _, kind := range []struct {
		where schema.GroupVersionResource
		// by is Tekton's label of a run that names what it is a run of.
		of, by string
	}{{pipelineRuns, "Pipeline", "tekton.dev/pipeline"}, {taskRuns, "Task", "tekton.dev/task"}} {
		runs, err := listed(ctx, client, kind.where, namespace, kind.by)
		if err != nil {
			return u, err
		}
		for _, run := range runs {
			labels := run.object.GetLabels()
			if _, part := labels["tekton.dev/pipelineRun"]; part && kind.where == taskRuns {
				continue // its PipelineRun is what counts
			}
			if !over(run.object) && has(installed, kind.of, labels[kind.by]) {
				u.runs = append(u.runs, run)
			}
		}
	}
	var err error
	u.environments, err = listed(ctx, client, leases, namespace, objects.EnvironmentLabel)
	return u, err
}

// over is true for a run that has ended, by its condition Succeeded.
func over(run *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(run.Object, "status", "conditions")
	for _, condition := range conditions {
		fields, _ := condition.(map[string]any)
		if fields["type"] == "Succeeded" {
			return fields["status"] != "Unknown"
		}
	}
	return false
}

func has(installed []found, kind, name string) bool {
	for _, one := range installed {
		if one.object.GetKind() == kind && one.object.GetName() == name {
			return true
		}
	}
	return false
}

// texts say what is there, and whose it is.
func (u inUse) texts() []string {
	var texts []string
	for _, run := range u.runs {
		texts = append(texts, Title(run.object))
	}
	for _, one := range u.environments {
		text := "environment " + one.object.GetName()
		if holder := one.object.GetAnnotations()[lease.HolderName]; holder != "" {
			text += ", held by " + holder
		}
		texts = append(texts, text)
	}
	return texts
}

// accesses are what ending all of it needs.
func (u inUse) accesses() []kube.Access {
	needed := deletions(u.environments)
	for _, run := range u.runs {
		needed = append(needed, kube.Access{
			Resource: run.where.GroupResource(), Namespace: run.object.GetNamespace(), Name: run.object.GetName(), Verbs: []string{"patch"},
		})
	}
	return needed
}

// end cancels the runs and deletes the environments. The runs' teardown is left out, for
// it would lose its rights half way; whoever deletes a Lease has the rest collected.
func (u inUse) end(ctx context.Context, client dynamic.Interface) ([]Change, error) {
	var changes []Change
	for _, run := range u.runs {
		// A run's word for it (tektoncd/pipeline:pkg/apis/pipeline/v1).
		word := map[schema.GroupVersionResource]string{pipelineRuns: "Cancelled", taskRuns: "TaskRunCancelled"}[run.where]
		_, err := objectsOf(client, run.where, run.object.GetNamespace()).Patch(ctx, run.object.GetName(), types.MergePatchType,
			fmt.Appendf(nil, `{"spec":{"status":%q}}`, word), metav1.PatchOptions{FieldManager: fieldManager})
		if err != nil {
			return changes, kube.Problem(fmt.Errorf("cancelling %s: %w", Title(run.object), err))
		}
		changes = append(changes, Change{Object: Title(run.object), Outcome: Cancelled})
	}
	deleted, err := deleteAll(ctx, client, u.environments)
	return append(changes, deleted...), err
}
