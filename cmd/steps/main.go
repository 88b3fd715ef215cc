// Command steps holds all steps in one program, which the steps image has under
// the name of each.
package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/step"
	"github.com/ml-dev-env/ml-dev-env/internal/steps"
)

func main() {
	var command *cobra.Command
	command, os.Args = steps.Pick(os.Args)
	step.Main(command)
}
