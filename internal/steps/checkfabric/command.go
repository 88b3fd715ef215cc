// SPDX-License-Identifier: Apache-2.0

package checkfabric

import (
	"errors"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/param"
)

// Description is the help of the step and of mlenv check-fabric.
const Description = `Measure collectives between the nodes of an environment, read the transport of the ranks
from NCCL's own log, and compare the bandwidth with what the rails should reach. If ranks
hang, the check tries pairs of nodes, and names the faulty node or rail. It also times a matrix product
and a copy on each rank's device, and names a device that is slower than others of its kind.

The check fails if ranks use TCP sockets in an environment with RDMA, or if a node
cannot be reached. With --fabric-bandwidth=fail a low bandwidth or a slow device fails it, too.

Exit codes: 0 done, 1 failed, 2 wrong usage.`

// Command returns the step check-fabric.
func Command() *cobra.Command {
	var o Options
	var where kube.Flags
	cmd := &cobra.Command{
		Use:   "check-fabric",
		Short: "Prove that the network between an environment's nodes works as it should",
		Long:  Description,
		Example: `  check-fabric --name ml-dev-env
  check-fabric --mode rdma --fabric-bandwidth fail`,
		Args: func(_ *cobra.Command, args []string) error {
			return errors.Join(command.FlagsOnly(args), o.Run.Check())
		},
	}
	flags := cmd.Flags()
	where.AddTo(flags)
	o.AddFlags(flags)
	// Flags that only Tasks set.
	o.Run.AddTo(flags)
	flags.StringVar(&o.ClientCerts, "client-certs", "", "folder of the environment's mounted client Secret (default: read the Secret)")
	bandwidth := command.NewResult(cmd, "bandwidth", "bus bandwidth of all_reduce over all ranks, in GB/s")
	transport := command.NewResult(cmd, "transport", "transport of the ranks")
	verdict := command.NewResult(cmd, "verdict", "pass, slow, wrong-transport, broken or not-measured")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		clients, err := where.Connect()
		if err != nil {
			return err
		}
		r, err := Run(cmd.Context(), Deps{Clients: clients, Log: command.Log(cmd), Out: command.ReportOutput(cmd, o.Output)}, o)
		if r.Verdict == "" {
			return err
		}
		return errors.Join(err, transport.Write(r.Transport), verdict.Write(string(r.Verdict)), bandwidth.Write(r.Bandwidth.String()))
	}
	return cmd
}

// AddFlags adds the flags that the step and mlenv check-fabric share, and sets their defaults.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	const task = "check-fabric"
	param.Flag(flags, &o.Name, task, "name")
	param.Flag(flags, &o.Mode, task, "mode")
	param.Flag(flags, &o.Bandwidth, task, "fabric-bandwidth")
	param.Flag(flags, &o.Timeout, task, "timeout")
	o.Output.AddTo(flags, command.Text, command.JSON, command.YAML)
}
