// SPDX-License-Identifier: Apache-2.0

// Command mlenv-agent is PID 1 of every node of an environment.
package main

import (
	"os"

	"github.com/ml-dev-env/ml-dev-env/internal/agent/program"
)

func main() { os.Exit(program.Main(os.Args, os.Environ(), os.Stdout, os.Stderr)) }
