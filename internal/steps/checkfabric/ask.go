package checkfabric

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// starting is how long an agent may take to answer, and to start its part of a job.
const starting = 10 * time.Second

// ask calls f for all nodes at once, with their places in set, and retries while an agent does not answer. silent
// are the errors of nodes whose agents did not answer in time; other errors are joined. Unlike Set.Each it
// waits for every node.
func ask(ctx context.Context, set nodes.Set, limit time.Duration, f func(ctx context.Context, place int) error) (silent map[int]error, err error) {
	ctx, cancel := context.WithTimeout(ctx, min(starting, limit))
	defer cancel()
	errs := make([]error, len(set))
	var group sync.WaitGroup
	for place := range set {
		group.Go(func() { errs[place] = nodes.Retry(ctx, func() error { return f(ctx, place) }) })
	}
	group.Wait()
	silent = map[int]error{}
	for place, err := range errs {
		if fail.ReasonOf(err) == fail.AgentUnreachable {
			silent[set[place].Node()], errs[place] = err, nil
		}
	}
	return silent, errors.Join(errs...)
}

// ask calls f for all nodes of the check. Agents that do not answer while others do are NetworkBroken:
// those nodes are cut off.
func (c *Check) ask(ctx context.Context, f func(ctx context.Context, place int) error) error {
	silent, err := ask(ctx, c.Nodes, c.Bound/4, f)
	if err != nil {
		return err
	}
	return c.cutOff(silent)
}

// cutOff is the error of nodes whose agents do not answer. If no agent answers, it is the
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
	return c.broken(names, nil, "%s cannot be reached while the others can: %s", c.named(names), strings.Join(texts, "; "))
}
