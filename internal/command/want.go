// SPDX-License-Identifier: Apache-2.0

package command

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
)

// Want returns nil if a condition holds, else the mistake in the flag or argument that breaks it.
func Want(holds bool, format string, args ...any) error {
	if holds {
		return nil
	}
	return fmt.Errorf(format, args...)
}

// Arguments returns a command's check that it has as many arguments as it takes; most is -1 for any number. want describes them.
func Arguments(least, most int, want string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) == 0 && least > 0 {
			return errors.New("an argument is missing: want " + want)
		}
		return Want(len(args) >= least && (most < 0 || len(args) <= most), "arguments %q: want %s", args, want)
	}
}
