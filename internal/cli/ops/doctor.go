package ops

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/diagnose/doctor"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
)

// doctorOptions are the flags of mlenv doctor.
type doctorOptions struct {
	kube       kube.Flags
	name       string
	output     step.OutputFlag
	quietAfter time.Duration
}

// DoctorCommand is mlenv doctor.
func DoctorCommand() *cobra.Command {
	var o doctorOptions
	cmd := &cobra.Command{
		Use:   "doctor [ENVIRONMENT]",
		Short: "Say why an environment's pods do not start, or its training hangs or is slow",
		Long: `Look at an environment from all sides: what the cluster says of its pods, what its
agents see of GPUs, volumes, names and RDMA devices, what NCCL has printed. Findings
come in the order of their likelihood, each with what was seen and the next command.
Nothing is changed and nothing is disturbed; it takes 20 s at most, also where
half of the environment does not answer.

Exit code 0: nothing is broken; 1: something is; 2: wrong usage.`,
		Example: `  mlenv doctor
  mlenv doctor h-kim -n my-namespace
  mlenv doctor --output=json`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	flags := cmd.Flags()
	cmd.Args = func(_ *cobra.Command, args []string) error { return o.parse(args, flags.Changed("name")) }
	o.kube.AddTo(flags)
	flags.StringVar(&o.name, "name", objects.DefaultName, "name of the environment, as the argument")
	o.output.AddTo(flags, step.Text, step.JSON, step.YAML)
	flags.DurationVar(&o.quietAfter, "quiet-after", 10*time.Minute, "how long a training may print nothing before that is a finding")
	return cmd
}

func (o *doctorOptions) parse(args []string, named bool) error {
	var problems []error
	if len(args) > 1 {
		problems = append(problems, fmt.Errorf("arguments %q: want one environment or none", args))
	}
	if len(args) > 0 {
		if named && o.name != args[0] {
			problems = append(problems, fmt.Errorf("environment %q and --name %q: want one of them", args[0], o.name))
		}
		o.name = args[0]
	}
	if o.quietAfter <= 0 {
		problems = append(problems, fmt.Errorf("--quiet-after %s: want more than nothing", o.quietAfter))
	}
	return errors.Join(problems...)
}

func (o *doctorOptions) run(cmd *cobra.Command) error {
	clients, err := o.kube.Connect()
	if err != nil {
		return err
	}
	report := doctor.Examine(cmd.Context(), clients, o.name, doctor.Options{QuietAfter: o.quietAfter})
	err = o.output.Print(cmd.OutOrStdout(), report, func(out io.Writer) error {
		report.Print(out)
		return nil
	})
	if err != nil {
		return err
	}
	if report.Broken() {
		return &step.Exit{Code: step.Failed}
	}
	return nil
}
