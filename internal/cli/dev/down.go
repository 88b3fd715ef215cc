// SPDX-License-Identifier: Apache-2.0

package dev

import (
	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/cli/envflags"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/teardown"
)

func downCommand() *cobra.Command {
	var e envflags.Flags
	var o teardown.Options
	cmd := &cobra.Command{
		Use:   "down [ENVIRONMENT]",
		Short: "Release an environment, and wait until its GPUs are free",
		Long: `Release an environment and wait until its pods have ended and its GPUs are free, with the code of the step teardown.
Claims and their files stay. If another user holds the environment, only --force releases it.

Exit code 0: nothing is left of it; 1: something is left, or another user holds it; 2: wrong usage.`,
		Example: `  mlenv down
  mlenv down h-kim -n my-namespace --force   # even if another user holds it`,
		Args: func(cmd *cobra.Command, args []string) error {
			return envflags.ParseName(cmd.Flags(), args)
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			clients, err := e.Connect(cmd.Context(), command.Log(cmd))
			if err != nil {
				return err
			}
			o.Name = e.Environment
			_, err = teardown.Run(cmd.Context(), teardown.Deps{Clients: clients, Log: command.Log(cmd)}, o)
			return err
		},
	}
	e.AddTo(cmd.Flags(), envflags.OnlyNamespace)
	o.AddFlags(cmd.Flags())
	command.AddLogFormat(cmd)
	return cmd
}
