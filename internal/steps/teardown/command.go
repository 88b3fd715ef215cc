package teardown

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
)

// Command is the step teardown.
func Command() *cobra.Command {
	var o Options
	var where kube.Flags
	cmd := &cobra.Command{
		Use:   "teardown",
		Short: "Write a run's receipt and give the environment's GPUs back",
		Long: `Write a run's receipt, delete the environment and wait until its pods, and so
its GPUs, are really free. Claims and what is on them stay.

It can be run twice, and on nothing. An environment that somebody else holds is
left alone.`,
		Example: `  teardown --name ml-dev-env
  teardown --name ml-dev-env --force   # also where another person holds it`,
		Args: func(_ *cobra.Command, args []string) error { return errors.Join(step.FlagsOnly(args), o.Check()) },
	}
	flags := cmd.Flags()
	where.AddTo(flags)
	o.AddFlags(flags)
	// What follows mlenv down has in another way, or is what only Tasks give.
	o.Run.AddTo(flags)
	flags.StringVar(&o.Name, "name", objects.DefaultName, "name of the environment")
	flags.StringVar(&o.ClientCerts, "client-certs", "", "folder of the environment's mounted client Secret (default: read the Secret)")
	flags.StringVar(&o.Artifacts, "artifacts", "", "folder to copy the whole logs of all ranks into")
	flags.BoolVar(&o.Keep, "keep", false, "where everything succeeded so far, keep the environment until its lease ends")
	receipt := step.NewResult(cmd, "receipt", "name of the ConfigMap with the receipt")
	verdict := step.NewResult(cmd, "verdict", "Succeeded or Failed")
	commit := step.NewResult(cmd, "commit", "the commit that was trained, empty where none was synced")
	image := step.NewResult(cmd, "image", "the training image by digest, empty where no node ran it")
	metrics := step.NewResult(cmd, "metrics", "the last values of the training's own metrics")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		clients, err := where.Connect()
		if err != nil {
			return err
		}
		result, err := Run(cmd.Context(), Deps{Clients: clients, Log: step.Log(cmd)}, o)
		r := result.Receipt
		return errors.Join(err, receipt.Write(result.Name), verdict.Write(string(r.Verdict)),
			commit.Write(r.Commit), image.Write(r.Image), metrics.Write(string(r.Metrics)))
	}
	return cmd
}

// AddFlags adds the flags that the step and mlenv down share, and sets their defaults.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	flags.DurationVar(&o.Timeout, "timeout", 4*time.Minute, "time for pods and GPUs to become free")
	flags.BoolVar(&o.Force, "force", false, "also where somebody else holds the environment")
}

// Check finds every mistake of the options.
func (o *Options) Check() error {
	if o.Timeout <= 0 {
		return errors.Join(fmt.Errorf("--timeout %s: want more than nothing", o.Timeout), o.Run.Check())
	}
	return o.Run.Check()
}
