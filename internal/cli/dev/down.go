package dev

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/step"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/teardown"
)

func downCommand() *cobra.Command {
	var p place
	var o teardown.Options
	cmd := &cobra.Command{
		Use:   "down [ENVIRONMENT]",
		Short: "Give an environment back, and wait until its GPUs are free",
		Long: `Give an environment back and wait until its pods, and so its GPUs, are really free, with the code of the step teardown.
Claims and what is on them stay. It can be run twice, and on nothing. What somebody else holds is left alone without --force.

Exit code 0: nothing of it is left; 1: something is, or it is somebody else's; 2: wrong usage.`,
		Example: `  mlenv down
  mlenv down h-kim -n my-namespace --force   # also where another person holds it`,
		Args: func(cmd *cobra.Command, args []string) error { return errors.Join(p.parse(cmd, args), o.Check()) },
		RunE: func(cmd *cobra.Command, _ []string) error {
			clients, err := p.connect(cmd.Context())
			if err != nil {
				return err
			}
			o.Name = p.environment
			_, err = teardown.Run(cmd.Context(), teardown.Deps{Clients: clients, Log: step.Log(cmd)}, o)
			return err
		},
	}
	p.addTo(cmd.Flags())
	o.AddFlags(cmd.Flags())
	step.AddLogFormat(cmd)
	return cmd
}
