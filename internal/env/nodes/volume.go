// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/parallel"
)

// Bounds of CheckVolume.
const (
	// volumeTime is for the whole check of a claim. An agent bounds each of its parts itself.
	volumeTime = time.Minute
	// releaseTime is how long the other nodes may take to see that a lock was released.
	releaseTime = 5 * time.Second
	// clearTime is for removing the files of the check.
	clearTime = 10 * time.Second
)

// CheckVolume tries locks and renames on the claim mounted at path, which all nodes share or each has for itself, from all nodes at
// once. problem is what does not work, "" for nothing. A volume that cannot be written is none: that is found elsewhere. After an
// error nothing is known.
func (s Set) CheckVolume(ctx context.Context, path string, shared bool) (problem string, err error) {
	ctx, cancel := context.WithTimeout(ctx, volumeTime)
	defer cancel()
	groups := []Set{s}
	if !shared {
		groups = nil
		for i := range s {
			groups = append(groups, s[i:i+1])
		}
	}
	type result struct {
		problem string
		err     error
	}
	var errs []error
	for _, found := range parallel.Map(groups, func(group Set) result {
		problem, err := group.checkVolume(ctx, agent.VolumeTry{Path: path, Check: rand.Text()})
		return result{problem, err}
	}) {
		if found.problem != "" {
			return humanize.OneLine(found.problem, 300), nil
		}
		errs = append(errs, found.err)
	}
	return "", errors.Join(errs...)
}

// checkVolume checks a volume that all nodes of the set mount. One node alone tries whether its second lock is refused.
func (s Set) checkVolume(ctx context.Context, try agent.VolumeTry) (problem string, err error) {
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), clearTime)
		defer cancel()
		_ = s[0].ClearTry(ctx, try) // a later check removes what stays
	}()
	held, release, err := s[0].HoldLock(ctx, try)
	if err != nil {
		return "", err
	}
	defer release()
	switch {
	case held.Unwritable != "":
		return "", nil
	case held.Problem != "":
		return described(s[0], held.Problem), nil
	case !held.Locked:
		return described(s[0], "a lock that nobody holds is refused"), nil
	}
	others := s[1:]
	if len(others) == 0 {
		others = s
	}
	answers, err := Ask(ctx, others, func(client *agent.Client, ctx context.Context) (agent.VolumeAnswer, error) {
		return client.TryLock(ctx, try)
	})
	if err != nil {
		return "", err
	}
	for i, answer := range answers {
		switch {
		case answer.Problem != "":
			return described(others[i], answer.Problem), nil
		case answer.Locked && len(s) == 1:
			return described(s[0], "two programs get the same lock"), nil
		case answer.Locked:
			return fmt.Sprintf("nodes %d and %d get the same lock at once: locks on %s do not reach other nodes", s[0].Node(), others[i].Node(),
				try.Path), nil
		}
	}
	release()
	if problem, err := untilReleased(ctx, others[len(others)-1], try); problem != "" || err != nil {
		return problem, err
	}
	answers, err = Ask(ctx, s, func(client *agent.Client, ctx context.Context) (agent.VolumeAnswer, error) {
		return client.TryRename(ctx, try)
	})
	for i, answer := range answers {
		if answer.Problem != "" {
			return described(s[i], answer.Problem), nil
		}
	}
	return "", err
}

// untilReleased waits until a node gets the lock that another one has released.
func untilReleased(ctx context.Context, client *agent.Client, try agent.VolumeTry) (problem string, err error) {
	const pause = 100 * time.Millisecond
	for until := time.Now().Add(releaseTime); ; {
		answer, err := client.TryLock(ctx, try)
		switch {
		case err != nil:
			return "", err
		case answer.Problem != "":
			return described(client, answer.Problem), nil
		case answer.Locked || answer.Unwritable != "":
			return "", nil
		case time.Now().After(until):
			return described(client, "a lock that another node has released is still refused"), nil
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
}

func described(client *agent.Client, problem string) string {
	return fmt.Sprintf("on node %d: %s", client.Node(), problem)
}
