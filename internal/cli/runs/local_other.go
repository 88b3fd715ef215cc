// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package runs

import (
	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// run returns an error: the agent of a node needs Linux.
func (localJob) run(*cobra.Command) error {
	return command.Usage(fail.Becausef(fail.InvalidInput, "--local needs Linux: run it in a Linux virtual machine or container, or on a "+
		"cluster without --local"))
}
