// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package runs

import (
	"errors"

	"github.com/spf13/cobra"
)

// run is not reached: runLocal refuses other systems.
func (localJob) run(*cobra.Command) error { return errors.ErrUnsupported }
