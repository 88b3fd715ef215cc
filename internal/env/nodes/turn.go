// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

// TurnTime bounds the wait until nothing else uses the network between the nodes. Nothing but an installation of requirements takes longer.
const TurnTime = 20 * time.Minute

// WaitForTurn waits until nothing else uses the network between the nodes, and makes the others wait until release is called:
// sync-repo and check-fabric run at the same time, and traffic would falsify the measurement. The first node's agent
// decides, and takes the turn back from a caller that is gone. After limit, or without its answer, WaitForTurn logs that and returns.
func (s Set) WaitForTurn(ctx context.Context, log *slog.Logger, limit time.Duration) (release func()) {
	const answering = 10 * time.Second // for node 0 to answer that it has the request
	asking, cancel := context.WithTimeout(ctx, answering)
	defer cancel()
	if _, err := s[0].Health(asking); err != nil {
		return func() {} // what follows reports it
	}
	waiting := time.AfterFunc(time.Second, func() {
		log.Info("Waiting until the network is free: the other one of sync-repo and check-fabric uses it.")
	})
	defer waiting.Stop()
	release, err := s[0].WaitForTurn(ctx, limit)
	if err == nil {
		return release
	}
	if ctx.Err() == nil {
		if errors.Is(err, context.Canceled) {
			err = fmt.Errorf("it is not free after %s", humanize.Duration(limit))
		}
		log.Warn(fmt.Sprintf("Continuing though something else may use the network, which a measurement would show as a low bandwidth: %v", err))
	}
	return func() {}
}
