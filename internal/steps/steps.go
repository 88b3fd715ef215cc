// Package steps is the one program that holds all steps.
package steps

import (
	"path"
	"slices"

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

// All are the commands of the steps and of the reaper, sorted by name.
func All() []*cobra.Command {
	return []*cobra.Command{buildimage.Command(mldevenv.Images()), checkfabric.Command(), preflight.Command(), provision.Command(), reaper.Command(), syncrepo.Command(), teardown.Command(), train.Command()}
}

// Pick chooses the step that a command line means: by the name under which the program was called, else by the first argument.
// The arguments are returned as if the step had been called by its own name. If neither is a step, it returns a command that
// lists them.
func Pick(args []string) (*cobra.Command, []string) {
	all := All()
	names := append([]string{path.Base(args[0])}, args[1:]...)
	for i, name := range names[:min(len(names), 2)] {
		if k := slices.IndexFunc(all, func(command *cobra.Command) bool { return command.Name() == name }); k >= 0 {
			return all[k], args[i:]
		}
	}
	root := &cobra.Command{Use: "ml-dev-env", Short: "The steps of training on the GPU nodes of an OpenShift cluster", Version: version.String()}
	root.AddCommand(all...)
	return root, args
}
