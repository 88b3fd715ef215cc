// SPDX-License-Identifier: Apache-2.0

package teardown

import (
	"errors"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/notify"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/param"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

// Command returns the step teardown.
func Command() *cobra.Command {
	var o Options
	var where kube.Flags
	var notified notify.Flags
	cmd := &cobra.Command{
		Use:   "teardown",
		Short: "Write a run's receipt and release the environment's GPUs",
		Long: `Write a run's receipt, delete the environment and wait until its pods are gone and their GPUs free. Claims and
the data on them stay.

teardown can run twice, and without an environment. It does not touch the environment of another run or user.`,
		Example: `  teardown --name ml-dev-env
  teardown --name ml-dev-env --force   # even if another user or run holds it`,
		Args: func(_ *cobra.Command, args []string) error {
			return errors.Join(command.FlagsOnly(args), o.Run.Check())
		},
	}
	flags := cmd.Flags()
	where.AddTo(flags)
	o.AddFlags(flags)
	// The flags below are the step's alone: mlenv has other ways for them.
	o.Run.AddTo(flags)
	param.Flag(flags, &o.Name, stepName, "name")
	flags.StringVar(&o.ClientCerts, "client-certs", "", "folder of the environment's mounted client Secret (default: read the Secret)")
	flags.StringVar(&o.Artifacts, "artifacts", "", "folder to copy the complete logs of all ranks to")
	param.Flag(flags, &o.Keep, stepName, "keep")
	notified.AddTo(flags)
	written := command.NewResult(cmd, "receipt", "name of the ConfigMap with the receipt")
	verdict := command.NewResult(cmd, "verdict", "Succeeded or Failed")
	commit := command.NewResult(cmd, "commit", "the commit that the run trained from, empty if none was synced")
	image := command.NewResult(cmd, "image", "the training image by digest, empty if no node ran it")
	metrics := command.NewResult(cmd, "metrics", "the last values of the training's own metrics")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		clients, err := where.Connect()
		if err != nil {
			return err
		}
		log := command.Log(cmd)
		about := notify.Event{Run: o.Run.Name, Namespace: clients.Namespace, Environment: o.Name}
		r, err := Run(cmd.Context(), Deps{Clients: clients, Log: log, Notify: notified.Open(log, about, o.Run.UID)}, o)
		name := ""
		if r.Run != "" {
			name = receipt.Name(r.Run)
		}
		return errors.Join(err, written.Write(name), verdict.Write(string(r.Verdict)),
			commit.Write(r.Commit), image.Write(r.Image), metrics.Write(string(r.Metrics)))
	}
	return cmd
}

const stepName = "teardown"

// AddFlags adds the flags that the step and mlenv down share, with their defaults.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	param.Flag(flags, &o.Timeout, stepName, "timeout")
	param.Flag(flags, &o.Force, stepName, "force")
}
