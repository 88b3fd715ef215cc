package bundle

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

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/version"
)

// Command is mlenv bundle. files has tasks/NAME/NAME.yaml and pipelines/NAME/NAME.yaml.
func Command(files fs.FS) *cobra.Command {
	cmd := &cobra.Command{Use: "bundle", Short: "Make what a cluster is given"}
	cmd.AddCommand(stepsImageCommand(), tektonCommand(files))
	return cmd
}

func stepsImageCommand() *cobra.Command {
	var push, output, source, roots, base string
	var platforms []string
	cmd := &cobra.Command{
		Use:   "steps-image --push=IMAGE",
		Short: "Compile the steps and push their image, printed by digest",
		Long: `Steps-image compiles the steps and the agent from a checkout for each platform, puts them, the licences of all they
are linked from and the certificate authorities of this machine on a base image, pushes the result and prints its reference by digest, as
mlenv install wants it. The base needs git and git-lfs, which sync-repo runs; its digest is recorded in the annotation
org.opencontainers.image.base.digest. The bill of materials (SPDX) hangs on it, for oras discover. The same sources and the same base give the same digest.

Exit codes: 0 done, 1 failed, 2 wrong usage.`,
		Example: `  mlenv bundle steps-image --push=quay.io/me/steps:v1
  mlenv bundle steps-image --push=registry.local:5000/steps:try --platforms=linux/amd64
  mlenv bundle steps-image --push=registry.local:5000/steps:try --base=registry.local:5000/base/git:latest
  mlenv bundle steps-image --output=steps-image   # an OCI layout, for skopeo, crane or oras`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			chosen, errPlatforms := parsePlatforms(platforms)
			to, errPush := parseTag("--push", push)
			if err := errors.Join(errPush, errPlatforms); err != nil {
				return fail.Because(fail.InvalidInput, err)
			}
			made, err := compileSteps(cmd.Context(), cmd.ErrOrStderr(), source, base, roots, chosen)
			if err != nil {
				return err
			}
			if output != "" {
				if err := made.Layout(output, "steps"); err != nil {
					return err
				}
			}
			if to == nil {
				return nil
			}
			pushed, err := made.Push(cmd.Context(), cmd.ErrOrStderr(), to)
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), pushed)
			return nil
		},
	}
	cmd.Flags().StringVar(&push, "push", "", "image to push to, as REGISTRY/REPOSITORY:TAG")
	cmd.Flags().StringVar(&output, "output", "", "folder to write the image into, as an OCI layout")
	cmd.Flags().StringVar(&source, "source", ".", "folder of the sources")
	cmd.Flags().StringVar(&base, "base", DefaultBase, "image to build on; it needs git and git-lfs")
	cmd.Flags().StringVar(&roots, "ca-roots", "", "PEM file of certificate authorities (default: "+hostRoots+" where there is one)")
	cmd.Flags().StringSliceVar(&platforms, "platforms", platformNames(), "platforms to compile for")
	cmd.MarkFlagsOneRequired("push", "output")
	return cmd
}

// compileSteps makes the image in memory; the programs are thrown away.
func compileSteps(ctx context.Context, progress io.Writer, source, baseImage, rootsFile string, platforms []v1.Platform) (StepsRelease, error) {
	roots, err := HostRoots()
	if rootsFile != "" {
		roots, err = os.ReadFile(rootsFile)
	}
	if err != nil {
		return StepsRelease{}, fmt.Errorf("reading certificate authorities: %w", err)
	}
	base, err := ResolveBase(ctx, baseImage)
	if err != nil {
		return StepsRelease{}, err
	}
	fmt.Fprintf(progress, "building on %s\n", base.Reference())
	dir, err := os.MkdirTemp("", "mlenv-steps-")
	if err != nil {
		return StepsRelease{}, err
	}
	defer os.RemoveAll(dir)
	return Describe(ctx, source, "").BuildSteps(ctx, progress, dir, platforms, base, roots)
}

func platformNames() []string {
	var names []string
	for _, platform := range Platforms() {
		names = append(names, platform.String())
	}
	return names
}

func parsePlatforms(names []string) ([]v1.Platform, error) {
	var platforms []v1.Platform
	for _, platform := range Platforms() {
		if slices.Contains(names, platform.String()) {
			platforms = append(platforms, platform)
		}
	}
	var mistakes []error
	for _, text := range names {
		if !slices.Contains(platformNames(), text) {
			mistakes = append(mistakes, fmt.Errorf("reading --platforms: %q: want %s", text, strings.Join(platformNames(), " or ")))
		}
	}
	if len(names) == 0 {
		mistakes = append(mistakes, errors.New("reading --platforms: it names none"))
	}
	return platforms, errors.Join(mistakes...)
}

// parseTag reads a reference that may be empty; that is nil.
func parseTag(flag, text string) (name.Reference, error) {
	if text == "" {
		return nil, nil //nolint:nilnil // no reference is no mistake
	}
	tag, err := name.NewTag(text)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", flag, err)
	}
	return tag, nil
}

func tektonCommand(files fs.FS) *cobra.Command {
	var push, as, output, stepsImage string
	cmd := &cobra.Command{
		Use:   "tekton --push=REGISTRY/tasks:TAG --steps-image=IMAGE@sha256:...",
		Short: "Push the Tasks and Pipelines as a bundle for Tekton's bundle resolver",
		Long: `Tekton makes two bundles: TAG has the Tasks and the Pipelines, TAG-tasks the Tasks alone, where the Pipelines of the
first find them, by digest. Every step's image is by digest too, so one digest fixes everything that a run does. It prints the
reference of the first. A run from a bundle wants what mlenv install gives a namespace beside Tasks and Pipelines: the rights and
the cluster file.

Exit codes: 0 done, 1 failed, 2 wrong usage.`,
		Example: `  mlenv bundle tekton --push=quay.io/me/tasks:v1 --steps-image=$(mlenv bundle steps-image --push=quay.io/me/steps:v1)
  mlenv bundle tekton --output=tekton --as=quay.io/me/tasks:v1 --steps-image=...   # an OCI layout
  tkn bundle list quay.io/me/tasks:v1`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			at, errAt := name.NewTag(push + as)
			if errAt != nil {
				errAt = fmt.Errorf("reading where the bundle goes: %w", errAt)
			}
			image, errImage := name.NewDigest(stepsImage)
			if errImage != nil {
				errImage = fail.Advise(fmt.Errorf("reading --steps-image: %q: want an image by digest, as NAME@sha256:...: %w", stepsImage, errImage),
					"mlenv bundle steps-image --push=IMAGE prints it so")
			}
			if err := errors.Join(errAt, errImage); err != nil {
				return fail.Because(fail.InvalidInput, err)
			}
			objects, err := Objects(files)
			if err != nil {
				return err
			}
			release, err := Source{Version: version.String()}.NewTektonRelease(objects, at, image)
			if err != nil {
				return err
			}
			if output != "" {
				if err := release.Layout(output); err != nil {
					return err
				}
			}
			if push == "" {
				return nil
			}
			pushed, err := release.Push(cmd.Context())
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), pushed)
			return nil
		},
	}
	cmd.Flags().StringVar(&push, "push", "", "where to push the bundle, as REGISTRY/REPOSITORY:TAG")
	cmd.Flags().StringVar(&output, "output", "", "folder to write the bundles into, as an OCI layout")
	cmd.Flags().StringVar(&as, "as", "", "where a bundle that is only written will be, for the Pipelines name their Tasks by it")
	cmd.Flags().StringVar(&stepsImage, "steps-image", "", "image of the steps, by digest")
	cmd.MarkFlagsOneRequired("push", "as")
	cmd.MarkFlagsMutuallyExclusive("push", "as")
	if err := cmd.MarkFlagRequired("steps-image"); err != nil {
		panic(err) // the flag is made above
	}
	return cmd
}
