// SPDX-License-Identifier: Apache-2.0

package env

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/parallel"
)

const (
	// idleWarning is how long before the release the holder of an idle environment is warned, or half of its time if that is less.
	idleWarning = 10 * time.Minute
	// idleShown is how long an environment must have been without use to be listed as idle.
	idleShown = 10 * time.Minute
	// useTime bounds the question for the last use. A node without any other use runs nvidia-smi for the answer.
	useTime = 10 * time.Second
	// listTime bounds the question for the last use in a list, because a user waits for it.
	listTime = 5 * time.Second
)

// Idle is how long a person's environment was not used.
type Idle struct {
	// Environment is its namespace and name.
	Environment string
	Holder      lease.Holder
	// Use is the last use of any of its nodes.
	Use agent.Use
	// Timeout is how long it may be idle.
	Timeout time.Duration
}

// Over reports whether the environment is released now.
func (i Idle) Over() bool { return i.Use.Idle >= i.Timeout }

// Near reports whether the release is so near that the holder is warned.
func (i Idle) Near() bool { return i.left() <= min(idleWarning, i.Timeout/2) }

func (i Idle) left() time.Duration { return max(0, i.Timeout-i.Use.Idle) }

// Why returns the reason for the release, a clause of a message.
func (i Idle) Why() string {
	return fmt.Sprintf("%s has not used it for %s (last: %s), and its idle-timeout is %s", i.Holder, minutes(i.Use.Idle), i.Use.Kind,
		humanize.Duration(i.Timeout))
}

// String tells when the environment is released, and why, as a sentence.
func (i Idle) String() string {
	return fmt.Sprintf("Environment %s of %s has not been used for %s (last: %s). It is released in %s unless it is used; claims stay.",
		i.Environment, i.Holder, minutes(i.Use.Idle), i.Use.Kind, minutes(i.left()))
}

// minutes writes a duration without the seconds, which are not news after a minute.
func minutes(d time.Duration) string {
	if d > time.Minute {
		return humanize.Duration(d.Truncate(time.Minute))
	}
	return humanize.Duration(d.Truncate(time.Second))
}

// Idle asks the nodes of a Lease's environment when it was used last. It is nil for an environment that is not released for want of
// use. An error means that this is not known: AgentUnreachable if a node does not answer, EnvironmentMissing if there are no nodes or
// the environment has no certificate for the question.
func (e Environment) Idle(ctx context.Context, l *coordinationv1.Lease) (*Idle, error) {
	timeout := lease.IdleTimeout(l)
	if timeout == 0 || l.DeletionTimestamp != nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, useTime)
	defer cancel()
	use, err := e.LastUse(ctx)
	if err != nil {
		return nil, fmt.Errorf("asking when environment %s was used last: %w", e, err)
	}
	return &Idle{Environment: e.String(), Holder: lease.HolderOf(l), Use: use, Timeout: timeout}, nil
}

// LastUse asks all nodes, with the certificate that opens this answer alone: the reaper may read no Secret.
func (e Environment) LastUse(ctx context.Context) (last agent.Use, err error) {
	config, err := e.clients.Kube.CoreV1().ConfigMaps(e.Namespace).Get(ctx, e.UseConfig, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return last, fail.Becausef(fail.EnvironmentMissing, "it has no ConfigMap %s: it is being created", e.UseConfig)
	} else if err != nil {
		return last, kube.Problem(err)
	}
	credentials, err := agent.ParseCredentials([]byte(config.Data["ca.crt"]), []byte(config.Data["tls.crt"]), []byte(config.Data["tls.key"]))
	if err != nil {
		return last, fail.Becausef(fail.EnvironmentMissing, "reading its ConfigMap %s: %w", e.UseConfig, err)
	}
	// The reaper may list StatefulSets, and get none.
	sets, err := e.clients.Kube.AppsV1().StatefulSets(e.Namespace).List(ctx, e.selected())
	if err != nil {
		return last, kube.Problem(err)
	}
	count := 0
	for i := range sets.Items {
		count += objects.NodesOf(&sets.Items[i])
	}
	if count == 0 {
		return last, fail.Becausef(fail.EnvironmentMissing, "it has no nodes")
	}
	set := e.FirstNodes(count, credentials)
	defer set.Close()
	uses := make([]agent.Use, len(set))
	err = set.Each(ctx, func(ctx context.Context, client *agent.Client) (err error) {
		uses[client.Node()], err = client.LastUse(ctx)
		return err
	})
	if err != nil {
		return last, err
	}
	last = uses[0]
	for _, use := range uses {
		if use.Idle < last.Idle {
			last = use
		}
	}
	return last, nil
}

// IdleEnvironments asks all environments of the clients' namespace, or of all if that is "", for their last use, and returns those of
// persons that are idle. It leaves out those that do not answer.
func IdleEnvironments(ctx context.Context, clients *kube.Clients) ([]Idle, error) {
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	leases, err := lease.List(ctx, clients.Kube, clients.Namespace)
	if err != nil {
		return nil, err
	}
	var idle []Idle
	for _, found := range parallel.Map(leases, func(l coordinationv1.Lease) *Idle {
		there := *clients
		there.Namespace = l.Namespace
		found, _ := Of(&there, l.Name).Idle(ctx, &l) // what is not known is not listed
		return found
	}) {
		if found != nil && (found.Use.Idle >= idleShown || found.Near()) {
			idle = append(idle, *found)
		}
	}
	return idle, nil
}
