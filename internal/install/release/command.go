package release

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/install/bundle"
)

// defaultRepository is where this project's images are.
const defaultRepository = "ghcr.io/ml-dev-env/ml-dev-env"

// Command is mlenv release, for who maintains ml-dev-env.
func Command() *cobra.Command {
	var request Request
	var source, version string
	var push bool
	cmd := &cobra.Command{
		Use:   "release --version=VERSION",
		Short: "Make what a version of ml-dev-env is published as",
		// It is of no use to those who train.
		Hidden: true,
		Long: `Release compiles mlenv and the steps image from a checkout, and writes what a version is published as into a folder:
programs, the steps image and the Tekton bundles as OCI layouts, install.yaml, bills of materials (SPDX), licences, checksums. The
same sources give the same files. With --push the images are pushed too. docs/releasing.md has the whole way.

Exit codes: 0 done, 1 failed, 2 wrong usage.`,
		Example: `  mlenv release pin --version=v0.2.0   # before the tag: write the image's digest into tasks/ and pipelines/
  mlenv release --version=v0.2.0 --push
  mlenv release --version=v0.0.0-try --snapshot`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := CheckVersion(version); err != nil {
				return err
			}
			request.Source = bundle.Describe(cmd.Context(), source, version)
			made, err := Make(cmd.Context(), cmd.ErrOrStderr(), request)
			if err != nil {
				return err
			}
			if push {
				if err := made.Push(cmd.Context(), cmd.ErrOrStderr()); err != nil {
					return err
				}
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s\n%s\n", made.StepsImage, made.tekton.AllName)
			return nil
		},
	}
	pin := &cobra.Command{
		Use:   "pin --version=VERSION",
		Short: "Write the steps image's digest and the version into tasks/ and pipelines/",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := CheckVersion(version); err != nil {
				return err
			}
			request.Source = bundle.Describe(cmd.Context(), source, version)
			image, err := Pin(cmd.Context(), cmd.ErrOrStderr(), request)
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), image)
			return nil
		},
	}
	for _, each := range []*cobra.Command{cmd, pin} {
		each.Flags().StringVar(&version, "version", "", "version, as v1.2.3")
		each.Flags().StringVar(&source, "source", ".", "folder of the sources")
		each.Flags().StringVar(&request.Base, "base", "", "image to build the steps image on (default: for pin "+bundle.DefaultBase+", for a release the one that pin recorded)")
		each.Flags().StringVar(&request.Repository, "repository", defaultRepository, "below what the images are: REPOSITORY/steps and REPOSITORY/tasks")
		if err := each.MarkFlagRequired("version"); err != nil {
			panic(err) // the flag is made above
		}
	}
	cmd.Flags().StringVar(&request.Output, "output", "dist", "folder to fill; what is in it already is an error")
	cmd.Flags().BoolVar(&push, "push", false, "push the images and the bundles too")
	cmd.Flags().BoolVar(&request.Snapshot, "snapshot", false, "take sources whose Tasks do not name the image, to try it")
	cmd.AddCommand(pin)
	return cmd
}
