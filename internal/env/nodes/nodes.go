// Package nodes connects a step to the agents of an environment, all at once.
package nodes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/parallel"
)

// Set is the nodes of one environment in the order of their ordinals.
type Set []*agent.Client

// Connect creates the clients of an environment, without waiting for the agents. certs is the folder of the mounted
// client Secret; if it is empty, as on a laptop, the Secret is read from the API server.
func Connect(ctx context.Context, clients *kube.Clients, name, certs string) (Set, error) {
	set, err := clients.Kube.AppsV1().StatefulSets(clients.Namespace).Get(ctx, objects.NamesOf(name).StatefulSet, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, missing(ctx, clients, name)
	} else if err != nil {
		return nil, kube.Problem(fmt.Errorf("getting statefulset %s/%s: %w", clients.Namespace, name, err))
	}
	credentials, err := Credentials(ctx, clients, name, certs)
	if err != nil {
		return nil, err
	}
	return New(clients, name, objects.NodesOf(set), credentials), nil
}

// New creates the clients of an environment of count nodes.
func New(clients *kube.Clients, name string, count int, credentials agent.Credentials) Set {
	dial := Dialer(clients, clients.Namespace, name)
	var set Set
	for node := range count {
		set = append(set, agent.NewClient(node, objects.NamesOf(name).TLSName(clients.Namespace, node), credentials, dial))
	}
	return set
}

// Credentials reads the mounted client Secret, or the Secret itself.
func Credentials(ctx context.Context, clients *kube.Clients, name, certs string) (agent.Credentials, error) {
	if certs != "" {
		credentials, err := agent.ReadCredentials(certs)
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			return credentials, err
		}
		if clients.InCluster {
			return agent.Credentials{}, fail.Advise(fail.Becausef(fail.EnvironmentMissing, "reading the environment's client certificate in %s: %w", certs, err),
				"provision the environment %s before this task starts, in the same PipelineRun by runAfter", name)
		}
	}
	secret, err := clients.Kube.CoreV1().Secrets(clients.Namespace).Get(ctx, objects.NamesOf(name).ClientSecret, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return agent.Credentials{}, missing(ctx, clients, name)
	} else if err != nil {
		return agent.Credentials{}, kube.Problem(fmt.Errorf("getting the client certificate of environment %s/%s: %w", clients.Namespace, name, err))
	}
	return agent.ParseCredentials(secret.Data["ca.crt"], secret.Data["tls.crt"], secret.Data["tls.key"])
}

func missing(ctx context.Context, clients *kube.Clients, name string) error {
	if err := kube.NoNamespace(ctx, clients.Kube, clients.Namespace); err != nil {
		return fail.Because(fail.EnvironmentMissing, err)
	}
	return fail.Advise(fail.Becausef(fail.EnvironmentMissing, "looking for environment %s/%s: there is none", clients.Namespace, name),
		"mlenv up %s -n %s", name, clients.Namespace)
}

// Each calls f for all nodes at once and joins the errors in the nodes' order. The first error cancels the others.
func (s Set) Each(ctx context.Context, f func(context.Context, *agent.Client) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := parallel.Map(s, func(client *agent.Client) error {
		err := f(ctx, client)
		if err != nil {
			cancel()
		}
		return err
	})
	// Those that were cancelled because of another's error have none of their own.
	own := slices.DeleteFunc(slices.Clone(errs), func(err error) bool { return errors.Is(err, context.Canceled) })
	return cmp.Or(errors.Join(own...), errors.Join(errs...))
}

// Ask asks all nodes the same, by Each and Retry. The answers are in the nodes' order.
func Ask[T any](ctx context.Context, s Set, ask func(*agent.Client, context.Context) (T, error)) ([]T, error) {
	answers := make([]T, len(s))
	places := s.Places()
	err := s.Each(ctx, func(ctx context.Context, client *agent.Client) error {
		return Retry(ctx, func() (err error) {
			answers[places[client]], err = ask(client, ctx)
			return err
		})
	})
	return answers, err
}

// Places are the positions of the clients in the set.
func (s Set) Places() map[*agent.Client]int {
	places := map[*agent.Client]int{}
	for place, client := range s {
		places[client] = place
	}
	return places
}

// Close drops the connections.
func (s Set) Close() {
	for _, client := range s {
		client.Close()
	}
}

// Retry calls f until it succeeds, its error is not AgentUnreachable, or ctx is done; then it returns the last error.
func Retry(ctx context.Context, f func() error) error {
	const first, most = 100 * time.Millisecond, 2 * time.Second
	var last error
	for pause := first; ; pause = min(2*pause, most) {
		err := f()
		if err == nil || fail.ReasonOf(err) != fail.AgentUnreachable {
			return err
		}
		if last != nil && errors.Is(err, context.DeadlineExceeded) {
			// The deadline cut this call off; the error before is the cause.
			return last
		}
		last = err
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return err
		}
	}
}
