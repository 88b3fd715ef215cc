// SPDX-License-Identifier: Apache-2.0

// Package nodes asks and commands the agents of an environment, all at once. It knows nothing of Kubernetes.
package nodes

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/parallel"
)

// Set is the nodes of one environment in the order of their ordinals.
type Set []*agent.Client

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

// AskAll asks all nodes the same, by Each and RetryUnreachable. The answers are in the nodes' order.
func AskAll[T any](ctx context.Context, s Set, ask func(*agent.Client, context.Context) (T, error)) ([]T, error) {
	answers := make([]T, len(s))
	places := s.Places()
	err := s.Each(ctx, func(ctx context.Context, client *agent.Client) error {
		return RetryUnreachable(ctx, func() (err error) {
			answers[places[client]], err = ask(client, ctx)
			return err
		})
	})
	return answers, err
}

// Places returns the positions of the clients in the set.
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

// RetryUnreachable calls f until it succeeds, its error is not AgentUnreachable, or ctx is done; then it returns the last error.
func RetryUnreachable(ctx context.Context, f func() error) error {
	const first, most = 100 * time.Millisecond, 2 * time.Second // the first and the longest pause between tries to reach a node
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
