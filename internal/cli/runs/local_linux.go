package runs

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env/local"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/syncrepo"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/train"
)

// onThisMachine starts the nodes, sends them the folder, and trains.
func onThisMachine(ctx context.Context, cmd *cobra.Command, n local.Options, source syncrepo.Folder, options train.Options) error {
	log := command.TextLog(cmd.OutOrStdout())
	e, err := local.Start(ctx, n)
	if err != nil {
		return command.Usage(err)
	}
	defer func() {
		if err := e.End(); err != nil {
			fmt.Fprintln(cmd.ErrOrStderr(), "Ending the nodes:", err)
		}
	}()
	has := "without GPUs"
	if e.GPUs > 0 {
		has = "with " + humanize.Count(e.GPUs, "GPU") + " each"
	}
	log.Info(fmt.Sprintf("Run %s on this machine: %s %s.", n.Name, humanize.Count(n.Nodes, "node"), has))
	source.Program, source.Workspace = e.Program, e.Workspace
	if options.Tree, err = syncrepo.SendFolder(ctx, log, e.Nodes, source); err != nil {
		return err
	}
	options.Job, options.MasterPort = n.Name, e.MasterPort
	_, err = train.Run(ctx, train.Deps{Place: e, Log: log, Out: cmd.OutOrStdout()}, options)
	if fail.ReasonOf(err) == fail.Cancelled && ctx.Err() != nil {
		return &command.Exit{Code: command.Interrupted, Err: err}
	}
	return err
}
