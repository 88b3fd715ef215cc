package ops

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
)

// ValidateCommand is mlenv validate.
func ValidateCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "validate FILE...",
		Short: "Check cluster files and say every mistake with its line",
		Long: `Check cluster files: what is written in them, not whether the cluster has it, which mlenv preflight tells.
Of a mistake it says file, line and column, the key, what is there and what was wanted, and what was probably meant.

Exit code 0: all are valid; 1: one is not; 2: wrong usage.`,
		Example: "  mlenv validate clusters/barcelona.yaml",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, files []string) error {
			valid := true
			for _, name := range files {
				content, err := os.ReadFile(name)
				if err != nil {
					return err
				}
				file, err := cluster.Load(name, content)
				if err != nil {
					fmt.Fprintln(cmd.ErrOrStderr(), err)
					valid = false
					continue
				}
				describe(cmd.OutOrStdout(), name, file)
			}
			if !valid {
				return &step.Exit{Code: step.Failed}
			}
			return nil
		},
	}
}

func describe(out io.Writer, name string, f cluster.File) {
	nodes := "any node with GPUs"
	if f.Nodes.GPUNodes != nil {
		nodes = fmt.Sprintf("%d nodes", len(f.Nodes.GPUNodes))
	}
	fmt.Fprintf(out, "%s: valid: %s at %s, %s, %d GPUs each, storage %s\n",
		name, f.Cluster.Name, f.Cluster.API, nodes, f.GPUs.PerNode, f.Storage.Mode)
	for line := range strings.Lines(strings.TrimSpace(f.Notes)) {
		fmt.Fprintf(out, "  %s\n", strings.TrimSpace(line))
	}
}
