// SPDX-License-Identifier: Apache-2.0

// Package dev has the commands for development in a kept environment: create it, sync a folder, train, open a shell,
// release it.
package dev

import (
	"context"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/cli/envflags"
	"github.com/ml-dev-env/ml-dev-env/internal/env"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

// Commands returns the commands of this package.
func Commands() []*cobra.Command {
	return []*cobra.Command{
		upCommand(), downCommand(), trainCommand(), syncCommand(), shellCommand(), devCommand(), openCommand(), portForwardCommand(),
		sshConfigCommand(), sshProxyCommand(),
	}
}

// attach connects to the nodes of an environment and keeps it until detach.
func attach(ctx context.Context, e *envflags.Flags, log *slog.Logger) (clients *kube.Clients, set nodes.Set, detach func(), err error) {
	if clients, err = e.Connect(ctx, log); err != nil {
		return nil, nil, nil, err
	}
	set, leave, err := env.Of(clients, e.Environment).Attach(ctx, log, "", run.Flags{})
	if err != nil {
		return clients, nil, nil, err
	}
	stop := warnIdle(ctx, log, clients, e.Environment)
	return clients, set, func() {
		stop()
		leave()
	}, nil
}
