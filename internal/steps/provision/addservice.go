// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// AddService adds a service to a running environment, as another Run with it would, and waits until node 0 runs it or cannot.
// No pod changes, and the other services keep running. Without an answer of the node the status has no Name.
// Errors: EnvironmentMissing, PermissionDenied, EnvironmentDiffers if the name of its Service is taken.
func AddService(ctx context.Context, d Deps, environment string, service agent.Service, zero *agent.Client) (agent.ServiceStatus, error) {
	p := &provisioner{clients: d.Clients, log: d.Log, request: objects.Request{Name: environment, Namespace: d.Clients.Namespace}}
	// A conflict means that somebody else changed the list since it was read.
	if err := retry.RetryOnConflict(retry.DefaultRetry, func() error { return p.list(ctx, service.Name) }); err != nil {
		return agent.ServiceStatus{}, err
	}
	only := func(services []agent.ServiceStatus) []agent.ServiceStatus {
		return slices.DeleteFunc(slices.Clone(services), func(s agent.ServiceStatus) bool { return s.Name != service.Name })
	}
	names := []string{service.Name}
	found := only(awaitServices(ctx, d.Log, zero, names, func(services []agent.ServiceStatus) bool { return settled(names, only(services)) }))
	if len(found) == 0 {
		return agent.ServiceStatus{}, ctx.Err()
	}
	return found[0], nil
}

// list adds the service to the Secret that lists them, and its port to the Service of node 0.
func (p *provisioner) list(ctx context.Context, service string) error {
	name := p.environment().ServicesSecret
	secret, err := p.clients.Kube.CoreV1().Secrets(p.request.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return kube.Problem(fmt.Errorf("getting secret %s/%s: %w", p.request.Namespace, name, err))
	}
	if len(secret.OwnerReferences) != 1 {
		return fail.Becausef(fail.EnvironmentMissing, "adding %s: secret %s/%s belongs to an environment that is being deleted", service,
			p.request.Namespace, name)
	}
	p.request.Services = objects.ParseServices(string(secret.Data[agent.ServicesKey]) + "," + service)
	want := objects.BuildServices(p.request, secret.OwnerReferences[0])
	want.Secret.ResourceVersion = secret.ResourceVersion
	if err := p.applyServicesSecret(ctx, want.Secret); err != nil {
		return err
	}
	return p.applyNodeZero(ctx, want.NodeZero, secret.OwnerReferences[0])
}
