// SPDX-License-Identifier: Apache-2.0

// Package publish has the commands that build and push what clusters run: bundle and release.
package publish

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/install/bundle"
	"github.com/ml-dev-env/ml-dev-env/internal/source/git"
)

// BundleCommand returns the command mlenv bundle. files has tasks/NAME/NAME.yaml and pipelines/NAME/NAME.yaml.
func BundleCommand(files fs.FS) *cobra.Command {
	cmd := &cobra.Command{Use: "bundle", Short: "Build the steps image, and print the Tekton bundles"}
	cmd.AddCommand(stepsImageCommand(), tektonCommand(files))
	return cmd
}

func stepsImageCommand() *cobra.Command {
	var push, to, source, roots, base, licences string
	var platforms []string
	cmd := &cobra.Command{
		Use:   "steps-image --push=IMAGE",
		Short: "Compile the steps and push their image, printed by digest",
		Long: `Steps-image compiles the steps and the agent from a checkout for each platform, adds them, py-spy and this machine's
certificate authorities to a base image, pushes the result, and prints its reference by digest for mlenv install. py-spy
comes from Python's package index, or from the one in PIP_INDEX_URL. The base needs git and git-lfs, which sync-repo
runs. The annotation org.opencontainers.image.base.digest has the base's digest. The same sources and base give the same
digest. An image that you pass on to others needs the licences of what is linked into it: make licenses collects them.

Exit codes: 0 done, 1 failed, 2 wrong usage.`,
		Example: `  mlenv bundle steps-image --push=quay.io/me/steps:v1
  mlenv bundle steps-image --push=registry.local:5000/steps:try --platforms=linux/amd64
  mlenv bundle steps-image --push=registry.local:5000/steps:try --base=registry.local:5000/base/git:latest
  mlenv bundle steps-image --to=steps-image   # an OCI layout, for skopeo, crane or oras`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			chosen, errPlatforms := parsePlatforms(platforms)
			tag, errPush := name.NewTag(push)
			if err := errors.Join(command.Want(push == "" || errPush == nil, "reading --push: %w", errPush), errPlatforms); err != nil {
				return fail.Because(fail.InvalidInput, err)
			}
			made, err := compileSteps(cmd.Context(), cmd.ErrOrStderr(), source, base, roots, licences, chosen)
			if err != nil {
				return err
			}
			return deliver(cmd.OutOrStdout(), to, push, func() error { return made.Layout(to, "steps") }, func() (any, error) {
				return made.Push(cmd.Context(), cmd.ErrOrStderr(), tag)
			})
		},
	}
	cmd.Flags().StringVar(&push, "push", "", "image to push to, as REGISTRY/REPOSITORY:TAG")
	cmd.Flags().StringVar(&to, "to", "", "folder to write the image into, as an OCI layout")
	cmd.Flags().StringVar(&source, "source", ".", "folder of the sources")
	cmd.Flags().StringVar(&base, "base", bundle.DefaultBase, "image to build on; it needs git, git-lfs and sh")
	cmd.Flags().StringVar(&roots, "ca-roots", "", "PEM file of certificate authorities (default: those of this machine)")
	cmd.Flags().StringVar(&licences, "licenses", "",
		"folder of licences to add, as make licenses writes bin/licenses/steps (default: only py-spy's)")
	cmd.Flags().StringSliceVar(&platforms, "platforms", platformNames(), "platforms to compile for")
	cmd.MarkFlagsOneRequired("push", "to")
	return cmd
}

// compileSteps builds the image in memory and deletes the programs.
func compileSteps(ctx context.Context, progress io.Writer, source, baseImage, rootsFile, licences string, platforms []v1.Platform) (
	bundle.StepsRelease, error) {
	roots := git.SystemRoots()
	if rootsFile != "" {
		var err error
		if roots, err = os.ReadFile(rootsFile); err != nil {
			return bundle.StepsRelease{}, fmt.Errorf("reading certificate authorities: %w", err)
		}
	}
	if roots == nil {
		fmt.Fprintln(progress, "warning: no certificate authorities were found on this machine; name a file of them: --ca-roots=FILE")
	}
	base, err := bundle.ResolveBase(ctx, baseImage)
	if err != nil {
		return bundle.StepsRelease{}, err
	}
	fmt.Fprintf(progress, "building on %s\n", base.Reference())
	dir, err := os.MkdirTemp("", "mlenv-steps-")
	if err != nil {
		return bundle.StepsRelease{}, err
	}
	defer os.RemoveAll(dir)
	return bundle.Describe(ctx, source, "").BuildSteps(ctx, progress, dir, platforms, bundle.Ingredients{
		Base: base, Roots: roots, Licences: licences, Spy: bundle.FetchSpy,
	})
}

func platformNames() []string { return humanize.Each(bundle.Platforms(), v1.Platform.String) }

func parsePlatforms(names []string) ([]v1.Platform, error) {
	platforms := slices.DeleteFunc(bundle.Platforms(), func(p v1.Platform) bool { return !slices.Contains(names, p.String()) })
	mistakes := []error{command.Want(len(names) > 0, "reading --platforms: it names none")}
	allowed := platformNames()
	for _, text := range names {
		mistakes = append(mistakes, command.Want(slices.Contains(allowed, text), "reading --platforms: %q: want %s", text,
			strings.Join(allowed, " or ")))
	}
	return platforms, errors.Join(mistakes...)
}

// deliver writes what was built into the folder to, and pushes it and prints its reference, as far as the flags name a place.
func deliver(out io.Writer, to, at string, write func() error, push func() (any, error)) error {
	if to != "" {
		if err := write(); err != nil {
			return err
		}
	}
	if at == "" {
		return nil
	}
	pushed, err := push()
	if err == nil {
		fmt.Fprintln(out, pushed)
	}
	return err
}

func tektonCommand(files fs.FS) *cobra.Command {
	var stepsImage, tasks string
	cmd := &cobra.Command{
		Use:   "tekton --steps-image=IMAGE@sha256:... [--tasks=BUNDLE@sha256:...]",
		Short: "Print the Tasks and Pipelines for tkn bundle push",
		Long: `Tekton prints what tkn bundle push makes a bundle of: with --tasks, the bundle of the Tasks by digest, the Tasks and the
Pipelines, which find their Tasks in that bundle; without, the Tasks alone. The steps' image is by digest too, so the digest
of the bundle with the Pipelines fixes everything that a run does. A run from a bundle also needs the rights and the cluster
file that mlenv install creates in a namespace.

Exit codes: 0 done, 1 failed, 2 wrong usage.`,
		Example: `  mlenv bundle tekton --steps-image=IMAGE@sha256:... | tkn bundle push quay.io/me/tasks:v1-tasks -f -   # prints a digest
  mlenv bundle tekton --steps-image=IMAGE@sha256:... --tasks=quay.io/me/tasks@sha256:... | tkn bundle push quay.io/me/tasks:v1 -f -`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			image, err := name.NewDigest(stepsImage)
			if err != nil {
				err = fail.Advise(fmt.Errorf("reading --steps-image: %q: want an image by digest, as NAME@sha256:...: %w", stepsImage, err),
					"mlenv bundle steps-image --push=IMAGE prints it so")
			}
			var from *name.Digest
			if tasks != "" {
				found, invalid := name.NewDigest(tasks)
				err = errors.Join(err, command.Want(invalid == nil, "reading --tasks: %w", invalid))
				from = &found
			}
			if err != nil {
				return fail.Because(fail.InvalidInput, err)
			}
			objects, err := bundle.Objects(files)
			if err != nil {
				return err
			}
			if objects, err = bundle.Tekton(objects, image, from); err != nil {
				return err
			}
			return command.WriteObjects(cmd.OutOrStdout(), objects)
		},
	}
	cmd.Flags().StringVar(&stepsImage, "steps-image", "", "image of the steps, by digest")
	cmd.Flags().StringVar(&tasks, "tasks", "", "bundle of the Tasks, by digest, as tkn bundle push prints it; adds the Pipelines")
	_ = cmd.MarkFlagRequired("steps-image") // the flag is defined above
	return cmd
}
