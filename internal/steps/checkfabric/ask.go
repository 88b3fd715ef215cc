// SPDX-License-Identifier: Apache-2.0

package checkfabric

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/parallel"
)

// starting is how long an agent may take to answer, and to start its part of a job.
const starting = 10 * time.Second

// ask is nodes.AskAll, except that it waits for every node. silent are the errors of nodes whose agents did not answer in time;
// other errors are joined.
func ask[T any](ctx context.Context, set nodes.Set, limit time.Duration, f func(*agent.Client, context.Context) (T, error)) (
	answers []T, silent map[int]error, err error) {
	ctx, cancel := context.WithTimeout(ctx, min(starting, limit))
	defer cancel()
	answers = make([]T, len(set))
	places := set.Places()
	errs := parallel.Map(set, func(client *agent.Client) error {
		return nodes.RetryUnreachable(ctx, func() (err error) {
			answers[places[client]], err = f(client, ctx)
			return err
		})
	})
	silent, err = silentOf(set, errs)
	return answers, silent, err
}

// silentOf returns the errors of nodes whose agents did not answer, and joins the others.
func silentOf(set nodes.Set, errs []error) (silent map[int]error, err error) {
	silent = map[int]error{}
	for place, err := range errs {
		if fail.ReasonOf(err) == fail.AgentUnreachable {
			silent[set[place].Node()], errs[place] = err, nil
		}
	}
	return silent, errors.Join(errs...)
}

// askAll is ask for all nodes of a check. Agents that do not answer while others do are NetworkBroken:
// those nodes are cut off.
func askAll[T any](ctx context.Context, c *Check, f func(*agent.Client, context.Context) (T, error)) ([]T, error) {
	answers, silent, err := ask(ctx, c.Nodes, c.Bound/4, f)
	if err == nil {
		err = c.cutOff(silent)
	}
	return answers, err
}

// cutOff returns the error of nodes whose agents do not answer. If no agent answers, it is the
// agents' own: the network between the nodes may work.
func (c *Check) cutOff(silent map[int]error) error {
	if len(silent) == 0 {
		return nil
	}
	names := slices.Sorted(maps.Keys(silent))
	if len(silent) == len(c.Nodes) {
		return silent[names[0]]
	}
	var texts []string
	for _, node := range names {
		texts = append(texts, silent[node].Error())
	}
	return c.broken(names, nil, "%s cannot be reached while the others can: %s", c.nodeNames(names), strings.Join(texts, "; "))
}
