// SPDX-License-Identifier: Apache-2.0

// Package steps is the one program that holds all steps.
package steps

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	mldevenv "github.com/ml-dev-env/ml-dev-env"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/buildimage"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/checkfabric"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/preflight"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/provision"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/reaper"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/syncrepo"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/teardown"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/train"
	"github.com/ml-dev-env/ml-dev-env/internal/version"
)

// All returns the commands of the steps and of the reaper, sorted by name.
func All() []*cobra.Command {
	reading := []*cobra.Command{buildimage.Command(mldevenv.Images()), syncrepo.Command(), train.Command()}
	for _, command := range reading {
		command.Flags().String(taskRunFlag, "", "the step's TaskRun, whose params replace the arguments, which Tekton and the kubelet may have "+
			"changed")
		command.Flags().String(runParamsFlag, "", "params, separated by commas, whose values the PipelineRun has under the same name")
	}
	all := slices.Concat(reading,
		[]*cobra.Command{checkfabric.Command(), preflight.Command(), provision.Command(), reaper.Command(), teardown.Command()})
	slices.SortFunc(all, func(a, b *cobra.Command) int { return strings.Compare(a.Name(), b.Name()) })
	return all
}

// Exact returns the arguments of a step, the program's name first, with the values that its params were given. If they cannot be
// read, the command fails with that error.
func Exact(ctx context.Context, command *cobra.Command, args []string) []string {
	given, err := exact(ctx, command.Name(), args[1:], connect)
	if err != nil {
		command.Args = cobra.ArbitraryArgs
		command.RunE = func(*cobra.Command, []string) error { return err }
		return args
	}
	return append(args[:1:1], given...)
}

// Pick chooses the step that the first argument names. The arguments are returned as if the step had been called by its own name. If it
// names none, Pick returns a command that lists the steps.
func Pick(args []string) (*cobra.Command, []string) {
	all := All()
	if len(args) > 1 {
		if k := slices.IndexFunc(all, func(command *cobra.Command) bool { return command.Name() == args[1] }); k >= 0 {
			return all[k], args[1:]
		}
	}
	root := &cobra.Command{Use: "steps", Short: "The steps of training on the GPU nodes of an OpenShift cluster",
		Version: version.String()}
	root.AddCommand(all...)
	return root, args
}
