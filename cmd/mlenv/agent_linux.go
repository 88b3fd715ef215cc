// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"

	"github.com/ml-dev-env/ml-dev-env/internal/agent/program"
)

// agentMain does not return if this process has the name of the agent's program: a local run's nodes start it so.
func agentMain() {
	if program.Is(os.Args[0]) {
		os.Exit(program.Main(os.Args, os.Environ(), os.Stdout, os.Stderr))
	}
}
