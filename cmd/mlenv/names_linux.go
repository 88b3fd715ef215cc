// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"

	"github.com/ml-dev-env/ml-dev-env/internal/agent/program"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/stepsprogram"
)

// byName does not return if this process has the name of another program, which mlenv contains: a local run's nodes start the agent so,
// and a steps image that was built of mlenv has both programs.
func byName() {
	switch name := os.Args[0]; {
	case program.Is(name):
		os.Exit(program.Main(os.Args, os.Environ(), os.Stdout, os.Stderr))
	case stepsprogram.Is(name):
		stepsprogram.Main()
	}
}
