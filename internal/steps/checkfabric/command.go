package checkfabric

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
)

// Description is the help of the step and of mlenv check-fabric.
const Description = `Measure collectives between the nodes of an environment, read the transport of the ranks
from NCCL's own log, and compare the bandwidth with what the rails should reach. If ranks
hang, the check tries pairs of nodes, and names the faulty node or rail.

The check fails if ranks use TCP sockets in an environment with RDMA, or if a node
cannot be reached. With --bandwidth=fail a low bandwidth fails it, too.

Exit codes: 0 done, 1 failed, 2 wrong usage.`

// Command is the step check-fabric.
func Command() *cobra.Command {
	var o Options
	var where kube.Flags
	cmd := &cobra.Command{
		Use:   "check-fabric",
		Short: "Prove that the network between an environment's nodes works as it should",
		Long:  Description,
		Example: `  check-fabric --name ml-dev-env
  check-fabric --compare tcp --bandwidth fail`,
		Args: func(_ *cobra.Command, args []string) error { return errors.Join(step.FlagsOnly(args), o.Check()) },
	}
	flags := cmd.Flags()
	where.AddTo(flags)
	o.AddFlags(flags)
	// Flags that only Tasks set.
	o.Run.AddTo(flags)
	flags.StringVar(&o.ClientCerts, "client-certs", "", "folder of the environment's mounted client Secret (default: read the Secret)")
	bandwidth := step.NewResult(cmd, "bandwidth", "bus bandwidth of all_reduce over all ranks, in GB/s")
	transport := step.NewResult(cmd, "transport", "transport of the ranks")
	verdict := step.NewResult(cmd, "verdict", "pass, slow, wrong-transport, broken or not-measured")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		clients, err := where.Connect()
		if err != nil {
			return err
		}
		r, err := Run(cmd.Context(), Deps{Clients: clients, Log: step.Log(cmd), Out: step.ReportOutput(cmd, o.Output)}, o)
		if r.Verdict == "" {
			return err
		}
		return errors.Join(err, transport.Write(r.Transport), verdict.Write(string(r.Verdict)), bandwidth.Write(r.Bandwidth.Decimal()))
	}
	return cmd
}

// AddFlags adds the flags that the step and mlenv check-fabric share, and sets their defaults.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.Name, "name", objects.DefaultName, "name of the environment")
	flags.StringVar(&o.Mode, "mode", "", "tcp, or rdma, which fails the check if ranks use sockets (default: the environment's)")
	flags.StringVar(&o.Bandwidth, "bandwidth", warn, "effect of a bandwidth below the expected one: warn or fail")
	flags.StringVar(&o.Compare, "compare", "", "tcp measures over sockets on the pod network too, in as much time again")
	flags.DurationVar(&o.Timeout, "timeout", 90*time.Second, "time for the check; measurements that do not fit are left out")
	o.Output.AddTo(flags, step.Text, step.JSON, step.YAML)
}

// AddFlags adds the flags of mlenv check-fabric alone: while the step runs, a run has no tree yet.
func (s *Script) AddFlags(flags *pflag.FlagSet) {
	flags.StringVar(&s.Path, "script", "", "training to compare with --compare=tcp: a path in the tree synced last, or -m PACKAGE.MODULE; arguments go after --")
	flags.StringVar((*string)(&s.Launcher), "launcher", string(agent.DeepSpeed), "how the ranks of --script start, as in mlenv train")
	flags.DurationVar(&s.Time, "script-time", 2*time.Minute, "how long --script trains over each transport, unless it ends before")
}

// check finds every mistake, also in a Script without a path.
func (s *Script) check(compare string) error {
	if s.Path == "" {
		return step.Want(len(s.Args) == 0, "arguments %q: they need --script", s.Args)
	}
	launcher := s.Launcher.Check()
	if launcher != nil {
		launcher = fmt.Errorf("--launcher %w", launcher)
	}
	return errors.Join(launcher,
		step.Want(compare != "", "--script %q: want --compare=tcp with it", s.Path), step.Want(s.Time > 0, "--script-time %s: must be positive", s.Time))
}

// Check finds every mistake of the options.
func (o *Options) Check() error {
	const least = 20 * time.Second
	return errors.Join(
		step.Want(o.Mode == "" || o.Mode == agent.TCP || o.Mode == agent.RDMA, "--mode %q: want tcp or rdma, or nothing for the environment's", o.Mode),
		step.Want(o.Bandwidth == warn || o.Bandwidth == failing, "--bandwidth %q: want warn or fail", o.Bandwidth),
		step.Want(o.Compare == "" || o.Compare == agent.TCP, "--compare %q: want tcp, or nothing", o.Compare),
		step.Want(o.Timeout >= least, "--timeout %q: want at least %s: torch alone takes some to start", o.Timeout, least),
		o.Run.Check(), o.Script.check(o.Compare),
	)
}
