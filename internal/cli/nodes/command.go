// SPDX-License-Identifier: Apache-2.0

// Package nodes has the commands that show the Kubernetes nodes with GPUs, and keep runs of a namespace away from some of them.
package nodes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/cli/envflags"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/hosts"
)

// Command returns the command mlenv nodes.
func Command() *cobra.Command {
	var flags kube.Flags
	var output command.OutputFlag
	var everywhere bool
	cmd := &cobra.Command{
		Use:   "nodes [-A]",
		Short: "List Kubernetes nodes with GPUs: free GPUs, conditions, and faults that runs met on them",
		Long: `List the Kubernetes nodes with GPUs: how many are free, the conditions, labels and taints that Kubernetes, node-problem-detector,
NVSentinel and the GPU operator set, the faults that runs of the namespace met on the node in the last 30 days, and its state:

  quarantined  no new run of the namespace uses it, by mlenv nodes quarantine
  missing      the cluster has no such node any more
  not-ready    Kubernetes does not consider it ready
  cordoned     Kubernetes schedules no new pods to it
  unhealthy    a condition or a label reports a problem
  avoided      runs met 2 faults or more on it in 7 days: new runs use it only if no other node is free
  ready        none of these
  unknown      you may not list nodes

What you may not read is unknown: nodes and pods of all namespaces need a right that an administrator gives. Then nodes on which no run met
a fault are not listed.

Exit code 0: listed; 1: the cluster cannot be read; 2: wrong usage.`,
		Example: `  mlenv nodes
  mlenv nodes -A --output=json | jq -r '.items[] | select(.state != "ready") | .name'
  mlenv nodes quarantine wrk-97 --why="GPU 3 falls off the bus"
  mlenv nodes release wrk-97 --why="GPU 3 replaced"`,
		Args: cobra.NoArgs,
		RunE: envflags.Connected(&flags, func(cmd *cobra.Command, clients *kube.Clients, _ []string) error {
			all, notes, err := read(cmd.Context(), clients, everywhere, clients.Now())
			if err != nil {
				return err
			}
			if output.ForPeople() {
				for _, note := range notes {
					fmt.Fprintln(cmd.ErrOrStderr(), command.ForTerminal("warning: "+note))
				}
			}
			return output.PrintAs("NodeList", cmd.OutOrStdout(), all, func(out io.Writer) error {
				if len(all) == 0 {
					fmt.Fprintln(cmd.ErrOrStderr(), "No node with GPUs, and none on which a run met a fault.")
					return nil
				}
				return all.print(out)
			})
		}),
	}
	flags.AddTo(cmd.Flags())
	output.AddTo(cmd.Flags(), command.Text, command.JSON, command.YAML, command.Names)
	cmd.Flags().BoolVarP(&everywhere, "all-namespaces", "A", false, "count faults that runs of all namespaces met that you may read")
	cmd.AddCommand(quarantineCommand(), releaseCommand())
	return cmd
}

func quarantineCommand() *cobra.Command {
	var flags kube.Flags
	var why string
	cmd := &cobra.Command{
		Use:   "quarantine NODE --why=TEXT",
		Short: "Keep new runs and environments of the namespace away from a Kubernetes node",
		Long: `Keep new runs and environments of the namespace away from a Kubernetes node, until mlenv nodes release. Who, when and why is
kept in the ConfigMap ` + hosts.RecordName + ` of the namespace. Runs and environments that exist keep the node. For all namespaces an
administrator cordons it, with the command that is printed.

Exit code 0: quarantined; 1: the record cannot be written; 2: wrong usage, or no such node.`,
		Example: `  mlenv nodes quarantine wrk-97 --why="GPU 3 falls off the bus"`,
		Args: func(cmd *cobra.Command, args []string) error {
			return errors.Join(command.Arguments(1, 1, "the name of a Kubernetes node")(cmd, args),
				command.Want(strings.TrimSpace(why) != "", "--why: is missing: want the reason for the quarantine"), hosts.CheckWhy(why))
		},
		RunE: envflags.Connected(&flags, func(cmd *cobra.Command, clients *kube.Clients, args []string) error {
			return quarantine(cmd, clients, args[0], why)
		}),
	}
	flags.AddTo(cmd.Flags())
	cmd.Flags().StringVar(&why, "why", "", fmt.Sprintf("reason for the quarantine, at most %d letters", hosts.MostWhy))
	return cmd
}

func quarantine(cmd *cobra.Command, clients *kube.Clients, node, why string) error {
	if err := exists(cmd.Context(), clients, node); err != nil {
		return command.Usage(err)
	}
	mark, err := markOf(cmd.Context(), clients, why)
	if err != nil {
		return err
	}
	before, err := hosts.Quarantine(cmd.Context(), clients.Kube, clients.Namespace, node, mark)
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	if before.Active() {
		fmt.Fprintf(out, "%s\n", command.ForTerminal("It was quarantined before, "+before.Quarantined.String()+"."))
	}
	fmt.Fprintf(out, "New runs and environments of namespace %s do not use Kubernetes node %s. Those that exist keep it.\n",
		clients.Namespace, node)
	fmt.Fprintf(out, "To end that: %s\n", hosts.Release(node, clients.Namespace))
	fmt.Fprintf(out, "To keep the pods of all namespaces away, an administrator runs: oc adm cordon %s\n", node)
	return nil
}

func releaseCommand() *cobra.Command {
	var flags kube.Flags
	var why string
	cmd := &cobra.Command{
		Use:   "release NODE [--why=TEXT]",
		Short: "Let runs of the namespace use a Kubernetes node again",
		Long: `End the quarantine of a Kubernetes node in the namespace. Faults that runs met on it before no longer make new runs avoid it, also
if it was not quarantined: release a node after its repair.

Exit code 0: released; 1: the record cannot be written; 2: wrong usage.`,
		Example: `  mlenv nodes release wrk-97 --why="GPU 3 replaced"`,
		Args: func(cmd *cobra.Command, args []string) error {
			return errors.Join(command.Arguments(1, 1, "the name of a Kubernetes node")(cmd, args), hosts.CheckWhy(why))
		},
		RunE: envflags.Connected(&flags, func(cmd *cobra.Command, clients *kube.Clients, args []string) error {
			return release(cmd, clients, args[0], why)
		}),
	}
	flags.AddTo(cmd.Flags())
	cmd.Flags().StringVar(&why, "why", "", fmt.Sprintf("what was repaired, at most %d letters", hosts.MostWhy))
	return cmd
}

func release(cmd *cobra.Command, clients *kube.Clients, node, why string) error {
	mark, err := markOf(cmd.Context(), clients, why)
	if err != nil {
		return err
	}
	before, err := hosts.EndQuarantine(cmd.Context(), clients.Kube, clients.Namespace, node, mark)
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	if before.Active() {
		fmt.Fprintf(out, "New runs and environments of namespace %s may use Kubernetes node %s again.\n", clients.Namespace, node)
	} else {
		fmt.Fprintf(out, "Kubernetes node %s was not quarantined in namespace %s.\n", node, clients.Namespace)
	}
	fmt.Fprintln(out, "Faults that runs met on it before now no longer count.")
	found, err := clients.Kube.CoreV1().Nodes().Get(cmd.Context(), node, metav1.GetOptions{})
	if err == nil && found.Spec.Unschedulable {
		fmt.Fprintf(out, "It is cordoned. To end that, an administrator runs: oc adm uncordon %s\n", node)
	}
	return nil
}

// exists returns the error for a node that the cluster does not have, nil if the user may not read that.
func exists(ctx context.Context, clients *kube.Clients, node string) error {
	if err := hosts.CheckNode(node); err != nil {
		return err
	}
	_, err := clients.Kube.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return fail.Advise(fail.Becausef(fail.InvalidInput, "quarantining node %s: the cluster has no such node", node),
			"mlenv nodes, or oc get nodes")
	}
	return nil
}

func markOf(ctx context.Context, clients *kube.Clients, why string) (hosts.Mark, error) {
	user, err := lease.Person(ctx, clients.Kube)
	return hosts.Who(user.Display, why, clients.Now()), err
}
