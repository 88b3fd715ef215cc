package launch

import (
	"context"
	"encoding/json"
	"fmt"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// Cancel ends a run by the kind of cancellation that runs its finally tasks, which
// give everything back; it does not wait for them. A run that has ended, is gone, or
// is being cancelled already is left as it is. Errors: PermissionDenied.
func Cancel(ctx context.Context, clients *kube.Clients, of *v1.PipelineRun) error {
	// The UID keeps a later run of the same name from being meant.
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": of.UID},
		"spec":     map[string]any{"status": v1.PipelineRunSpecStatusCancelledRunFinally},
	})
	if err != nil {
		return fmt.Errorf("cancelling pipelinerun %s/%s: %w", of.Namespace, of.Name, err)
	}
	runs := clients.Tekton.TektonV1().PipelineRuns(of.Namespace)
	found, err := runs.Get(ctx, of.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && (found.UID != of.UID || found.IsDone() || found.IsCancelled() || found.IsGracefullyCancelled()):
		return nil
	case err != nil:
		return kube.Problem(fmt.Errorf("getting pipelinerun %s/%s: %w", of.Namespace, of.Name, err))
	}
	_, err = runs.Patch(ctx, of.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: kube.FieldManager})
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}
	// It may have ended since it was read: Tekton takes no changes then.
	if found, again := runs.Get(ctx, of.Name, metav1.GetOptions{}); apierrors.IsNotFound(again) || again == nil && (found.UID != of.UID || found.IsDone()) {
		return nil
	}
	return kube.Problem(fmt.Errorf("cancelling pipelinerun %s/%s: %w", of.Namespace, of.Name, err))
}
