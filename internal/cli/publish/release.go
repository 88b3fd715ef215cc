// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/install/bundle"
	"github.com/ml-dev-env/ml-dev-env/internal/install/release"
)

// defaultRepository is the prefix of this project's images.
const defaultRepository = "ghcr.io/ml-dev-env/ml-dev-env"

// ReleaseCommand returns the command mlenv release, for maintainers of ml-dev-env.
func ReleaseCommand() *cobra.Command {
	var request release.Request
	var source, version string
	var push bool
	cmd := &cobra.Command{
		Use:   "release --version=VERSION",
		Short: "Build the files of a release",
		// Only maintainers use it.
		Hidden: true,
		Long: `Release compiles mlenv, the agent and the steps image from a checkout, and writes them, install.yaml and the notes of the
version into a folder, and prints the image by digest. The same sources give the same files. --push also pushes the image.
make release calls it and adds licences, bills of materials, checksums and the Tekton bundles; docs/project/releasing.md has all
steps.

Exit codes: 0 done, 1 failed, 2 wrong usage.`,
		Example: `  mlenv release pin --version=v1.2.3   # before the tag: write the image's digest into tasks/ and pipelines/
  mlenv release --version=v1.2.3 --push
  mlenv release examples --version=v1.2.3 --commit=COMMIT   # after the tag: write both into examples/ and docs/
  mlenv release --version=v0.0.0-try --snapshot`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := release.CheckVersion(version); err != nil {
				return err
			}
			request.Source = bundle.Describe(cmd.Context(), source, version)
			made, err := release.Make(cmd.Context(), cmd.ErrOrStderr(), request)
			if err != nil {
				return err
			}
			if push {
				if err := made.Push(cmd.Context(), cmd.ErrOrStderr()); err != nil {
					return err
				}
			}
			fmt.Fprintln(cmd.OutOrStdout(), made.StepsImage)
			return nil
		},
	}
	pin := &cobra.Command{
		Use:   "pin --version=VERSION",
		Short: "Write the steps image's digest and the version into tasks/ and pipelines/",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := release.CheckVersion(version); err != nil {
				return err
			}
			request.Source = bundle.Describe(cmd.Context(), source, version)
			image, err := release.Pin(cmd.Context(), cmd.ErrOrStderr(), request)
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), image)
			return nil
		},
	}
	var commit string
	examples := &cobra.Command{
		Use:   "examples --version=VERSION --commit=COMMIT",
		Short: "Write the version and the commit of its tag into the examples and pages",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := release.CheckVersion(version); err != nil {
				return err
			}
			return release.PinExamples(source, version, commit)
		},
	}
	examples.Flags().StringVar(&version, "version", "", "version, as v1.2.3")
	examples.Flags().StringVar(&commit, "commit", "", "commit of the version's tag")
	examples.Flags().StringVar(&source, "source", ".", "folder of the sources")
	_ = examples.MarkFlagRequired("version") // the flags are defined above
	_ = examples.MarkFlagRequired("commit")
	for _, each := range []*cobra.Command{cmd, pin} {
		each.Flags().StringVar(&version, "version", "", "version, as v1.2.3")
		each.Flags().StringVar(&source, "source", ".", "folder of the sources")
		each.Flags().StringVar(&request.Base, "base", "", "base of the steps image (default: for pin "+bundle.DefaultBase+
			", for a release the one that pin recorded)")
		each.Flags().StringVar(&request.Repository, "repository", defaultRepository, "prefix of the images REPOSITORY/steps and REPOSITORY/tasks")
		each.Flags().StringVar(&request.Licences, "licenses", "",
			"folder of licences for the steps image, as make licenses writes bin/licenses/steps")
		_ = each.MarkFlagRequired("version") // the flag is defined above
	}
	cmd.Flags().StringVar(&request.To, "to", "dist", "missing or empty folder to fill")
	cmd.Flags().BoolVar(&push, "push", false, "also push the image")
	cmd.Flags().BoolVar(&request.Snapshot, "snapshot", false, "accept sources whose Tasks do not name the image, to try a release")
	cmd.AddCommand(pin, examples)
	return cmd
}
