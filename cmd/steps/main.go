// SPDX-License-Identifier: Apache-2.0

// Command steps is the program of the steps image: every step and the reaper by its first argument, mlenv for the CronJobs of a schedule,
// and the agent, which it becomes.
package main

import (
	"fmt"
	"os"

	"github.com/ml-dev-env/ml-dev-env/internal/cli/schedule"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/source/git"
	"github.com/ml-dev-env/ml-dev-env/internal/steps"
)

func main() {
	git.Helper()
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "agent":
			fmt.Fprintln(os.Stderr, steps.BecomeAgent(os.Args[2:], os.Environ()))
			os.Exit(command.Failed)
		case "mlenv":
			os.Exit(schedule.Main(os.Args[2:], os.Stdout, os.Stderr))
		}
	}
	picked, args := steps.Pick(os.Args)
	command.Main(picked, args[1:], steps.WithParams)
}
