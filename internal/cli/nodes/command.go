// SPDX-License-Identifier: Apache-2.0

// Package nodes has the command that shows the Kubernetes nodes with GPUs.
package nodes

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/cli/envflags"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// Command returns the command mlenv nodes.
func Command() *cobra.Command {
	var flags kube.Flags
	var output command.OutputFlag
	cmd := &cobra.Command{
		Use:   "nodes",
		Short: "List Kubernetes nodes with GPUs: free GPUs and conditions",
		Long: `List the Kubernetes nodes with GPUs: how many are free, the conditions, labels and taints that Kubernetes, node-problem-detector,
NVSentinel and the GPU operator set, and the state of each node:

  not-ready  Kubernetes does not consider it ready
  cordoned   Kubernetes schedules no new pods to it
  unhealthy  a condition or a label reports a problem
  ready      none of these

To list nodes, and the pods of all namespaces, you need rights that an administrator gives. Without the right to list those pods, how many
GPUs are free is unknown.

Exit code 0: listed; 1: the cluster cannot be read, or you may not list its nodes; 2: wrong usage.`,
		Example: `  mlenv nodes
  mlenv nodes --output=json | jq -r '.items[] | select(.state != "ready") | .name'`,
		Args: cobra.NoArgs,
		RunE: envflags.Connected(&flags, func(cmd *cobra.Command, clients *kube.Clients, _ []string) error {
			all, warning, err := readNodes(cmd.Context(), clients)
			if err != nil {
				return err
			}
			if warning != "" && output.ForPeople() {
				fmt.Fprintln(cmd.ErrOrStderr(), command.ForTerminal("warning: "+warning))
			}
			return output.PrintAs("NodeList", cmd.OutOrStdout(), all, func(out io.Writer) error {
				if len(all) == 0 {
					fmt.Fprintln(cmd.ErrOrStderr(), "No node with GPUs.")
					return nil
				}
				return all.print(out)
			})
		}),
	}
	flags.AddTo(cmd.Flags())
	output.AddTo(cmd.Flags(), command.Text, command.JSON, command.YAML, command.Names)
	return cmd
}
