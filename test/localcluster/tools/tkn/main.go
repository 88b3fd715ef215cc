// SPDX-License-Identifier: Apache-2.0

// Command tkn is Tekton's own command line, built from its module with the
// subcommands that need nothing but a cluster.
package main

import (
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/tektoncd/cli/pkg/cli"
	"github.com/tektoncd/cli/pkg/cmd/bundle"
	"github.com/tektoncd/cli/pkg/cmd/completion"
	"github.com/tektoncd/cli/pkg/cmd/customrun"
	"github.com/tektoncd/cli/pkg/cmd/pipeline"
	"github.com/tektoncd/cli/pkg/cmd/pipelinerun"
	"github.com/tektoncd/cli/pkg/cmd/task"
	"github.com/tektoncd/cli/pkg/cmd/taskrun"
	"github.com/tektoncd/cli/pkg/cmd/version"
)

func main() {
	// Libraries register flags of their own; the real tkn drops them too.
	pflag.CommandLine = pflag.NewFlagSet(os.Args[0], pflag.ExitOnError)

	params := &cli.TektonParams{}
	tkn := &cobra.Command{
		Use:          "tkn",
		Short:        "CLI for tekton pipelines",
		SilenceUsage: true,
	}
	tkn.AddCommand(
		bundle.Command(params),
		completion.Command(),
		customrun.Command(params),
		pipeline.Command(params),
		pipelinerun.Command(params),
		task.Command(params),
		taskrun.Command(params),
		version.Command(params),
	)
	if err := tkn.Execute(); err != nil {
		os.Exit(1)
	}
}
