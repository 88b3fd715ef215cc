package provision

import (
	"context"
	"encoding/json"
	"fmt"

	routev1 "github.com/openshift/api/route/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// applyRoute applies one Route and remembers the host that the cluster gives it.
func (p *provisioner) applyRoute(ctx context.Context, want *routev1.Route) error {
	// Its status is the router's: an empty one must not be sent.
	patch, err := json.Marshal(map[string]any{
		"apiVersion": want.APIVersion, "kind": want.Kind, "spec": want.Spec,
		"metadata": map[string]any{"name": want.Name, "namespace": want.Namespace, "labels": want.Labels, "ownerReferences": want.OwnerReferences},
	})
	if err != nil {
		return err
	}
	made, err := p.routes.Routes(want.Namespace).Patch(ctx, want.Name, types.ApplyPatchType, patch, metav1.PatchOptions{FieldManager: kube.FieldManager, Force: new(true)})
	if apierrors.IsNotFound(err) {
		return fail.Advise(inputError("routes: this cluster has no Routes, which are OpenShift's: %w", err), "leave --routes out, and use oc port-forward")
	} else if err != nil {
		return fmt.Errorf("applying it: %w", err)
	}
	host := made.Spec.Host
	if host == "" && len(made.Status.Ingress) > 0 {
		host = made.Status.Ingress[0].Host
	}
	p.hosts[want.Name] = host
	return nil
}
