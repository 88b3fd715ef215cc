package teardown

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/run"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
)

// options are the flags of the command.
type options struct {
	kube      kube.Flags
	run       run.Flags
	name      string
	certs     string
	artifacts string
	timeout   time.Duration
	keep      bool
	force     bool
}

// Command is the step teardown.
func Command() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "teardown",
		Short: "Write a run's receipt and give the environment's GPUs back",
		Long: `Write a run's receipt, delete the environment and wait until its pods, and so
its GPUs, are really free. Claims and what is on them stay.

It can be run twice, and on nothing. An environment that somebody else holds is
left alone.`,
		Example: `  teardown --name ml-dev-env
  teardown --name ml-dev-env --force   # also where another person holds it`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("argument %q: want flags only", args[0])
			}
			if o.timeout <= 0 {
				return fmt.Errorf("--timeout %s: want more than nothing", o.timeout)
			}
			return o.run.Check()
		},
	}
	flags := cmd.Flags()
	o.kube.AddTo(flags)
	o.run.AddTo(flags)
	flags.StringVar(&o.name, "name", objects.DefaultName, "name of the environment")
	flags.StringVar(&o.certs, "client-certs", "", "folder of the environment's mounted client Secret (default: read the Secret)")
	flags.StringVar(&o.artifacts, "artifacts", "", "folder to copy the whole logs of all ranks into")
	flags.DurationVar(&o.timeout, "timeout", 4*time.Minute, "time for pods and GPUs to become free")
	flags.BoolVar(&o.keep, "keep", false, "where everything succeeded so far, keep the environment until its lease ends")
	flags.BoolVar(&o.force, "force", false, "also where somebody else holds the environment")
	receipt := step.NewResult(cmd, "receipt", "name of the ConfigMap with the receipt")
	verdict := step.NewResult(cmd, "verdict", "Succeeded or Failed")
	commit := step.NewResult(cmd, "commit", "the commit that was trained, empty where none was synced")
	image := step.NewResult(cmd, "image", "the training image by digest, empty where no node ran it")
	metrics := step.NewResult(cmd, "metrics", "the last values of the training's own metrics")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		clients, err := o.kube.Connect()
		if err != nil {
			return err
		}
		log := step.Log(cmd)
		t := &teardown{options: o, clients: clients, log: log, now: time.Now,
			leases: lease.Client{Kube: clients.Kube, Tekton: clients.Tekton, Namespace: clients.Namespace, Now: time.Now, Log: log}}
		name, written, err := t.run(cmd.Context())
		return errors.Join(err, receipt.Write(name), verdict.Write(string(written.Verdict)),
			commit.Write(written.Commit), image.Write(written.Image), metrics.Write(string(written.Metrics)))
	}
	return cmd
}
