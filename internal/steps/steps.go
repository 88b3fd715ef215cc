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
	steps := []*cobra.Command{buildimage.Command(mldevenv.Images()), checkfabric.Command(), preflight.Command(), provision.Command(),
		syncrepo.Command(), teardown.Command(), train.Command()}
	for _, command := range steps {
		command.Flags().String(taskRunFlag, "", "the step's TaskRun, whose params are added to the arguments")
	}
	steps = append(steps, reaper.Command())
	slices.SortFunc(steps, func(a, b *cobra.Command) int { return strings.Compare(a.Name(), b.Name()) })
	return steps
}

// WithParams returns the arguments of a step with the params of its TaskRun. If they cannot be read, the command fails with that error.
func WithParams(ctx context.Context, command *cobra.Command, args []string) []string {
	given, err := withParams(ctx, command.Name(), args, connect)
	if err != nil {
		command.Args = cobra.ArbitraryArgs
		command.RunE = func(*cobra.Command, []string) error { return err }
		return args
	}
	return given
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
