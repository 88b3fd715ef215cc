// SPDX-License-Identifier: Apache-2.0

package ops

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

type validation struct {
	Name     string           `json:"file"`
	Valid    bool             `json:"valid"`
	Mistakes cluster.Problems `json:"mistakes,omitempty"`
	// Obsolete are values of a valid file that no longer give pods RDMA.
	Obsolete []string `json:"obsolete,omitempty"`
	file     cluster.File
}

// ValidateCommand returns the command mlenv validate.
func ValidateCommand() *cobra.Command {
	var output command.OutputFlag
	cmd := &cobra.Command{
		Use:   "validate FILE...",
		Short: "Check cluster files and report every mistake with its line",
		Long: `Check the content of cluster files without a cluster; mlenv preflight compares a file with its cluster. mlenv reports each
mistake with file, line, column and key, and what is allowed, and names obsolete values of a file of the earlier scripts.

Exit code 0: all files are valid; 1: one is not; 2: wrong usage.`,
		Example: "  mlenv validate clusters/barcelona.yaml",
		Args:    command.Arguments(1, -1, "cluster files"),
		RunE: func(cmd *cobra.Command, files []string) error {
			var all []validation
			valid := true
			for _, name := range files {
				content, err := os.ReadFile(name)
				if err != nil {
					return fail.Becausef(fail.InvalidInput, "reading the cluster file: %w", err)
				}
				v := validation{Name: name, Valid: true}
				if v.file, err = cluster.Load(name, content); err != nil {
					v.Valid, valid = false, false
					if !errors.As(err, &v.Mistakes) {
						return err
					}
				}
				for _, obsolete := range v.file.Obsolete() {
					v.Obsolete = append(v.Obsolete, fmt.Sprintf("%s: %q: %s", obsolete.Field, fmt.Sprint(obsolete.BadValue), obsolete.Detail))
				}
				all = append(all, v)
			}
			err := output.Print(cmd.OutOrStdout(), all, func(out io.Writer) error {
				for _, v := range all {
					v.print(out, cmd.ErrOrStderr())
				}
				return nil
			})
			if err == nil && !valid {
				return &command.Exit{Code: command.Failed}
			}
			return err
		},
	}
	output.AddTo(cmd.Flags(), command.Text, command.JSON, command.YAML)
	return cmd
}

func (v validation) print(out, problems io.Writer) {
	if !v.Valid {
		fmt.Fprintln(problems, v.Mistakes)
		return
	}
	f := v.file
	nodes := "any node with GPUs"
	if f.Nodes.GPUNodes != nil {
		nodes = humanize.Count(len(f.Nodes.GPUNodes), "node")
	}
	fmt.Fprintf(out, "%s: valid: %s at %s, %s, %d GPUs each, storage %s\n",
		v.Name, f.Cluster.Name, f.Cluster.API, nodes, f.GPUs.PerNode, f.Storage.Mode)
	for _, obsolete := range v.Obsolete {
		fmt.Fprintf(out, "  obsolete: %s\n", obsolete)
	}
	for line := range strings.Lines(strings.TrimSpace(f.Notes)) {
		fmt.Fprintf(out, "  %s\n", strings.TrimSpace(line))
	}
}
