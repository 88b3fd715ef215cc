// SPDX-License-Identifier: Apache-2.0

// Command mlenv-agent is PID 1 of every node of an environment.
package main

import (
	"os"

	"github.com/ml-dev-env/ml-dev-env/internal/agent/program"
	"github.com/ml-dev-env/ml-dev-env/internal/env/inside"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "train" {
		os.Exit(inside.Main(os.Args[2:], os.Environ(), os.Stdout, os.Stderr))
	}
	os.Exit(program.Main(os.Args, os.Environ(), os.Stdout, os.Stderr))
}
