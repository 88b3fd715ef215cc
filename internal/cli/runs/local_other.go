//go:build !linux

package runs

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env/local"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/syncrepo"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/train"
)

// onThisMachine returns an error: the agent of a node needs Linux.
func onThisMachine(context.Context, *cobra.Command, local.Options, syncrepo.Folder, train.Options) error {
	return command.Usage(fail.Becausef(fail.InvalidInput, "--local needs Linux: run it in a Linux virtual machine or container, or on a "+
		"cluster without --local"))
}
