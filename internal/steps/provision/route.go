package provision

import (
	"context"

	routev1 "github.com/openshift/api/route/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// applyRoute applies one Route and remembers the host that the cluster gives it.
func (p *provisioner) applyRoute(ctx context.Context, want *routev1.Route) error {
	made, err := kube.ApplyTo(ctx, p.routes.Routes(want.Namespace), want, kube.ApplyOptions{})
	if apierrors.IsNotFound(err) {
		return fail.Advise(inputError("routes: this cluster has no Routes, which are OpenShift's: %w", err), "leave --routes out, and use oc port-forward")
	} else if err != nil {
		return err
	}
	host := made.Spec.Host
	if host == "" && len(made.Status.Ingress) > 0 {
		host = made.Status.Ingress[0].Host
	}
	p.hosts[want.Name] = host
	return nil
}
