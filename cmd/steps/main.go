// SPDX-License-Identifier: Apache-2.0

// Command steps holds all steps in one program, which the steps image has under
// the name of each, and mlenv for the CronJobs of a schedule.
package main

import (
	"context"
	"os"
	"path"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/cli/schedule"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/source/git"
	"github.com/ml-dev-env/ml-dev-env/internal/steps"
)

func main() {
	git.Helper()
	if path.Base(os.Args[0]) == "mlenv" {
		os.Exit(schedule.Main(os.Args[1:], os.Stdout, os.Stderr))
	}
	var picked *cobra.Command
	picked, os.Args = steps.Pick(os.Args)
	os.Args = steps.Exact(context.Background(), picked, os.Args)
	command.Main(picked)
}
