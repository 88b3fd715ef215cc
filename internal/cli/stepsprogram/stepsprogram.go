// SPDX-License-Identifier: Apache-2.0

// Package stepsprogram is the program of the steps image: every step and the reaper by its first argument, mlenv for the CronJobs of a
// schedule, and the agent, which it becomes. It is a program of its own in images that ko builds. Elsewhere it is mlenv by another name.
package stepsprogram

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/schedule"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/steps"
)

// Is reports whether a process of this name runs the program.
func Is(name string) bool { return filepath.Base(name) == filepath.Base(agent.StepsProgram) }

// Main runs the program, and ends the process.
func Main() {
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
