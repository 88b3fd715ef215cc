// Package dev has the commands for development in a kept environment: create it, sync a folder, train, open a shell,
// release it.
package dev

import (
	"context"
	"log/slog"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ml-dev-env/ml-dev-env/internal/cli/envflags"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/run"
)

// Commands are the commands of this package.
func Commands() []*cobra.Command {
	return []*cobra.Command{
		upCommand(), downCommand(), trainCommand(), syncCommand(), shellCommand(), devCommand(), openCommand(),
	}
}

// environment is the environment that a command works in.
type environment struct {
	envflags.Flags
}

func (e *environment) addTo(flags *pflag.FlagSet) {
	e.AddTo(flags, "cluster file; its namespace is used without --namespace")
}

// attach connects to the nodes and keeps the environment until detach.
func (e *environment) attach(ctx context.Context, log *slog.Logger) (clients *kube.Clients, set nodes.Set, detach func(), err error) {
	if clients, err = e.Connect(ctx, log); err != nil {
		return nil, nil, nil, err
	}
	set, detach, err = nodes.Attach(ctx, clients, log, e.Environment, "", run.Flags{})
	return clients, set, detach, err
}
