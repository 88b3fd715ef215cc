package step

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// ForPeople makes a step's command one of a command line's: without the flags
// that only Tasks give.
func ForPeople(cmd *cobra.Command) *cobra.Command {
	AddLogFormat(cmd)
	cmd.Flags().VisitAll(func(flag *pflag.Flag) {
		if strings.HasSuffix(flag.Name, "-result") || forTasks[flag.Name] {
			flag.Hidden = true
		}
	})
	return cmd
}

// forTasks are flags that say what a step is part of, or where a Task mounts things.
var forTasks = map[string]bool{"run-name": true, "run-uid": true, "task-name": true, "ca-file": true, "pull-secret-dir": true, "start-timeout": true, "training-timeout": true}
