// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	routev1 "github.com/openshift/api/route/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// credentialManager owns the passwords and tokens, so that applying the rest of their Secret does not change them.
const credentialManager = kube.FieldManager + "-credentials"

func (p *provisioner) applyServices(ctx context.Context, want objects.ServiceObjects) error {
	if err := p.applyServicesSecret(ctx, want.Secret); err != nil {
		return err
	}
	owner := want.Secret.OwnerReferences[0]
	if err := p.applyNodeZero(ctx, want.NodeZero, owner); err != nil {
		return err
	}
	return p.applyRoutes(ctx, want.Routes, owner)
}

// applyServicesSecret applies the list of services, and creates missing passwords and tokens. The API server's answer
// shows which are missing, so no right to read Secrets is needed. Those of an earlier environment, whose Secret is not
// collected yet, are replaced: other users may know them.
func (p *provisioner) applyServicesSecret(ctx context.Context, want *corev1.Secret) error {
	secrets := p.clients.Kube.CoreV1().Secrets(want.Namespace)
	found, err := kube.ApplyTo(ctx, secrets, want, kube.ApplyOptions{})
	if err != nil {
		return kube.Problem(err)
	}
	stale, made := len(found.OwnerReferences) > len(want.OwnerReferences), false
	credentials := map[string][]byte{}
	for _, s := range agent.Services() {
		credentials[s.Key] = found.Data[s.Key]
		if stale || len(found.Data[s.Key]) == 0 {
			credentials[s.Key], made = []byte(rand.Text()), true
		}
	}
	if !made {
		return nil
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: want.Name, Namespace: want.Namespace}, Data: credentials}
	_, err = kube.ApplyTo(ctx, secrets, secret, kube.ApplyOptions{Manager: credentialManager})
	return kube.Problem(err)
}

// ours reports whether an object belongs to this environment; owner is the Lease.
func (p *provisioner) ours(found metav1.Object, owner metav1.OwnerReference) bool {
	return found.GetLabels()[objects.EnvironmentLabel] == p.request.Name ||
		slices.ContainsFunc(found.GetOwnerReferences(), func(o metav1.OwnerReference) bool { return o.UID == owner.UID })
}

// applyNodeZero applies the Service of node 0, or deletes it if no service is requested any more.
func (p *provisioner) applyNodeZero(ctx context.Context, want *corev1.Service, owner metav1.OwnerReference) error {
	name := p.request.Names().NodeZero
	services := p.clients.Kube.CoreV1().Services(p.request.Namespace)
	found, err := services.Get(ctx, name, metav1.GetOptions{})
	switch isOurs := err == nil && p.ours(found, owner); {
	case err != nil && !apierrors.IsNotFound(err):
		return kube.Problem(fmt.Errorf("getting service %s/%s: %w", p.request.Namespace, name, err))
	case err == nil && !isOurs && want != nil:
		return p.foreign("service", name)
	case want != nil:
		return kube.Apply(ctx, p.clients.Kube, want)
	case !isOurs:
		return nil
	}
	err = services.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &found.UID}})
	return kube.Deleted("service "+p.request.Namespace+"/"+name, err)
}

// applyRoutes applies the requested Routes and deletes the others. On a cluster without Routes it needs no right.
func (p *provisioner) applyRoutes(ctx context.Context, want []*routev1.Route, owner metav1.OwnerReference) error {
	routes := p.routes.Routes(p.request.Namespace)
	for _, s := range agent.Services() {
		name := p.request.Names().RouteName(s.Name)
		i := slices.IndexFunc(want, func(r *routev1.Route) bool { return r.Name == name })
		found, err := routes.Get(ctx, name, metav1.GetOptions{})
		switch isOurs := err == nil && p.ours(found, owner); {
		case i < 0 && !isOurs:
			continue
		case i < 0:
			err = routes.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &found.UID}})
			if apierrors.IsNotFound(err) {
				err = nil
			}
		case err == nil && !isOurs:
			return p.foreign("route", name)
		case err == nil || apierrors.IsNotFound(err):
			err = p.applyRoute(ctx, want[i])
		}
		if err != nil {
			return kube.Problem(fmt.Errorf("applying route %s/%s: %w", p.request.Namespace, name, err))
		}
	}
	return nil
}

func (p *provisioner) applyRoute(ctx context.Context, want *routev1.Route) error {
	made, err := kube.ApplyTo(ctx, p.routes.Routes(want.Namespace), want, kube.ApplyOptions{})
	if apierrors.IsNotFound(err) {
		return fail.Advise(fail.Becausef(fail.InvalidInput, "routes: this cluster has no Routes, an API of OpenShift: %w", err),
			"leave --routes out, and use oc port-forward")
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

// servicesTime is how long services may take to answer. The kubelet updates a Secret in a running pod within some 90 s.
const servicesTime = 2 * time.Minute

// waitServices waits until the requested services answer, or cannot. That is not a failure: the nodes can be used.
func (p *provisioner) waitServices(ctx context.Context, credentials agent.Credentials) []agent.ServiceStatus {
	if len(p.request.Services) == 0 {
		return nil
	}
	set := p.environment().FirstNodes(1, credentials)
	defer set.Close()
	return awaitServices(ctx, p.log, set[0], p.request.Services, func(services []agent.ServiceStatus) bool {
		return settled(p.request.Services, services)
	})
}

// awaitServices asks node 0 until its services are as they should be, and returns them.
func awaitServices(
	ctx context.Context, log *slog.Logger, zero *agent.Client, names []string, done func([]agent.ServiceStatus) bool,
) []agent.ServiceStatus {
	ctx, cancel := context.WithTimeout(ctx, servicesTime)
	defer cancel()
	var facts agent.Facts
	began, logged := time.Now(), false
	_ = wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		found, err := zero.Facts(ctx)
		if err == nil {
			facts = found
			if done(facts.Services) {
				return true, nil
			}
		}
		const quiet = 5 * time.Second // before the log says what it waits for
		if !logged && time.Since(began) > quiet {
			logged = true
			log.Info("  Waiting for the services " + strings.Join(names, ", ") + "; running nodes apply a change within two minutes.")
		}
		return false, nil
	})
	return facts.Services
}

// settled reports whether waiting longer is pointless.
func settled(want []string, services []agent.ServiceStatus) bool {
	var names []string
	for _, s := range services {
		// A service that ends again and again may still come up, but later.
		const often = 3
		if !s.Answers && s.State != agent.ServiceAbsent && s.State != agent.ServiceRefused && s.Restarts < often {
			return false
		}
		names = append(names, s.Name)
	}
	return slices.Equal(slices.Sorted(slices.Values(want)), names)
}

// logServices prints how to reach the services, with the commands that show the passwords, never the passwords.
func (p *provisioner) logServices(services []agent.ServiceStatus) {
	if len(p.request.Services) == 0 {
		return
	}
	names := p.request.Names()
	wanted := slices.DeleteFunc(agent.Services(), func(s agent.Service) bool { return !slices.Contains(p.request.Services, s.Name) })
	var ports []string
	for _, s := range wanted {
		ports = append(ports, fmt.Sprint(s.Port))
	}
	p.log.Info(fmt.Sprintf("Services on node 0 are reached by: oc port-forward service/%s %s -n %s", names.NodeZero, strings.Join(ports, " "),
		names.Namespace))
	for _, s := range wanted {
		i := slices.IndexFunc(services, func(status agent.ServiceStatus) bool { return status.Name == s.Name })
		switch {
		case i < 0:
			p.log.Warn(fmt.Sprintf("The node has not started service %s within %s.", s.Name, servicesTime))
			continue
		case !services[i].Answers:
			p.log.Warn(fmt.Sprintf("Service %s %s.", s.Name, describeService(services[i])))
			continue
		}
		where := fmt.Sprintf("http://%s:%d%s", names.LocalHost(p.request.Cluster.Cluster.API), s.Port, s.Path)
		if host := p.hosts[names.RouteName(s.Name)]; host != "" {
			where += " or https://" + host + s.Path
		}
		p.log.Info(fmt.Sprintf("  %s: %s with the %s that this shows: %s", s.Name, where, s.Credential, names.ShowCredential(s)))
	}
}

func describeService(s agent.ServiceStatus) string {
	switch {
	case s.State == agent.ServiceAbsent:
		return "is missing: " + s.Problem
	case s.Problem == "":
		return fmt.Sprintf("does not answer yet; its log is %s on node 0", s.Log)
	case s.Log == "" || s.State == agent.ServiceRefused:
		return "is not started: " + s.Problem
	}
	return fmt.Sprintf("does not answer: %s; its log is %s on node 0", s.Problem, s.Log)
}
