// SPDX-License-Identifier: Apache-2.0

package ops

import (
	"errors"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/cli/envflags"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/doctor"
)

// DoctorCommand returns the command mlenv doctor.
func DoctorCommand() *cobra.Command {
	env := envflags.Flags{Reads: true, Runs: true}
	var output command.OutputFlag
	var quietAfter time.Duration
	cmd := &cobra.Command{
		Use:   "doctor [RUN|ENVIRONMENT]",
		Short: "Explain why an environment's pods do not start, or why its training hangs or is slow",
		Long: `Examine an environment, or the environment of a run: what the cluster reports about its pods, what its agents see of GPUs, volumes,
names and RDMA devices, and what NCCL has logged. Findings come with their evidence and the next command, the most likely cause first.
mlenv only reads, and takes 20 s at most. Without an argument it examines the newest local run in progress, or else the
environment that you hold, or else ml-dev-env, or else the only environment of the namespace, and names its holder.

Exit code 0: nothing is broken; 1: something is, or nothing could be examined; 2: wrong usage.`,
		Example: `  mlenv doctor
  mlenv doctor train-multi-node-x7k2p
  mlenv doctor h-kim -n my-namespace
  mlenv doctor --output=json`,
		Args: func(cmd *cobra.Command, args []string) error {
			return errors.Join(envflags.ParseName(cmd.Flags(), args), command.Want(quietAfter > 0, "--quiet-after %s: want more than 0s",
				quietAfter))
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			report, err := examine(cmd, &env, doctor.Options{QuietAfter: quietAfter})
			if err != nil {
				return err
			}
			err = output.PrintAs("Doctor", cmd.OutOrStdout(), report, func(out io.Writer) error {
				report.Print(out)
				return nil
			})
			if err == nil && report.Failed() {
				return &command.Exit{Code: command.Failed}
			}
			return err
		},
	}
	flags := cmd.Flags()
	env.AddTo(flags, envflags.OnlyNamespace)
	output.AddTo(flags, command.Text, command.JSON, command.YAML)
	flags.DurationVar(&quietAfter, "quiet-after", 3*time.Minute, "how long a training may print nothing before that is a finding")
	return cmd
}

// examine examines the environment, or the nodes of a local run.
func examine(cmd *cobra.Command, env *envflags.Flags, o doctor.Options) (doctor.Report, error) {
	if r, ok := env.LocalRun(); ok {
		set, err := r.Connect()
		if err != nil {
			return doctor.Report{}, err
		}
		defer set.Close()
		return doctor.ExamineLocal(cmd.Context(), r.Name, set, o), nil
	}
	clients, err := env.Connect(cmd.Context(), command.TextLog(cmd.ErrOrStderr()))
	if err != nil {
		return doctor.Report{}, err
	}
	return doctor.Examine(cmd.Context(), clients, env.Environment, o), nil
}
