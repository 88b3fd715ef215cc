package schedule

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/step"
	"github.com/ml-dev-env/ml-dev-env/internal/version"
)

// Main runs mlenv in the pod of a schedule's CronJob, where schedule is its only command, and returns
// the exit code. The steps image must not contain the other commands: they embed the Tasks, and a
// released Task names the steps image by its digest.
func Main(args []string, stdout, stderr io.Writer) int {
	root := &cobra.Command{Use: "mlenv", Short: "Start the runs of a schedule", Version: version.String()}
	root.AddCommand(Command())
	return step.MainCommands(root, args, stdout, stderr)
}
