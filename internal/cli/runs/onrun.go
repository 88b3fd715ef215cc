// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/cli/envflags"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// onRun returns the RunE of a command about the run that its first argument names, or else the first one. do gets the other
// arguments. A name means a local run if there is one, unless a flag chooses a cluster or a namespace. Without a cluster, or
// if it does not answer, the first run is a local one. A local run needs no clients.
func onRun(flags *kube.Flags, do func(cmd *cobra.Command, clients *kube.Clients, r runInfo, others []string) error) func(
	*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		others := args[min(1, len(args)):]
		if of, ok := envflags.LocalRunOf(*flags, args); ok {
			r, err := localOf(of)
			if err != nil {
				return err
			}
			return do(cmd, &kube.Clients{}, r, others)
		}
		var local []runInfo
		if len(args) == 0 && *flags == (kube.Flags{}) {
			local, _ = localRuns()
		}
		clients, err := flags.Connect()
		var r runInfo
		if err == nil {
			r, err = chosenRun(cmd.Context(), clients, args, local)
		}
		if len(local) > 0 && noCluster(clients, err) {
			if clients != nil {
				onlyHere(cmd, err)
			}
			r, err = runToShow(local), nil
		}
		if err != nil {
			return err
		}
		return do(cmd, clients, r, others)
	}
}

// noCluster reports whether err is that there is no cluster, in which case clients is nil, or that it does not answer.
func noCluster(clients *kube.Clients, err error) bool {
	return err != nil && (clients == nil || fail.ReasonOf(err) == fail.APIServerUnreachable)
}

// onlyHere tells a user that the runs of a cluster are not considered.
func onlyHere(cmd *cobra.Command, err error) {
	tellUser(cmd.ErrOrStderr(), "Only the runs of this machine are considered: %v\n", err)
}
