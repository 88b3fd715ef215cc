package bundle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/words"
)

// hostRoots is where Debian and its relatives keep the certificate authorities.
const hostRoots = "/etc/ssl/certs/ca-certificates.crt"

// Command is mlenv bundle.
func Command() *cobra.Command {
	cmd := &cobra.Command{Use: "bundle", Short: "Make what a cluster is given"}
	cmd.AddCommand(stepsImageCommand())
	return cmd
}

func stepsImageCommand() *cobra.Command {
	var push, source, roots string
	cmd := &cobra.Command{
		Use:   "steps-image --push=IMAGE",
		Short: "Compile the steps and push their image, printed by digest",
		Long: `Steps-image compiles the steps and the agent from a checkout, puts them and the certificate authorities of this machine
into an image, pushes it and prints its reference by digest, as mlenv install wants it.`,
		Example: "  mlenv bundle steps-image --push=quay.io/me/steps:v1",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			reference, err := name.ParseReference(push)
			if err != nil {
				return fail.Becausef(fail.InvalidInput, "reading --push: %w", err)
			}
			image, err := compileImage(cmd.Context(), cmd.ErrOrStderr(), source, roots)
			if err != nil {
				return err
			}
			pushed, err := Push(cmd.Context(), reference, image)
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), pushed)
			return nil
		},
	}
	cmd.Flags().StringVar(&push, "push", "", "image to push to, as REGISTRY/REPOSITORY:TAG")
	cmd.Flags().StringVar(&source, "source", ".", "folder of the sources")
	cmd.Flags().StringVar(&roots, "ca-roots", "", "PEM file of certificate authorities (default: "+hostRoots+" where there is one)")
	if err := cmd.MarkFlagRequired("push"); err != nil {
		panic(err) // the flag is made above
	}
	return cmd
}

// compileImage makes the image in memory; the programs are thrown away. What
// goes on is told on progress.
func compileImage(ctx context.Context, progress io.Writer, source, roots string) (v1.Image, error) {
	dir, err := os.MkdirTemp("", "mlenv-steps-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	version := describe(ctx, source)
	fmt.Fprintf(progress, "compiling the steps and the agent, version %s\n", version)
	contents, err := Compile(ctx, source, dir, version)
	if err != nil {
		return nil, err
	}
	if contents.Roots = roots; roots == "" {
		if _, err := os.Stat(hostRoots); err == nil {
			contents.Roots = hostRoots
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	image, err := StepsImage(contents)
	if err != nil {
		return nil, err
	}
	size, err := compressedSize(image)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(progress, "pushing %s\n", words.Bytes(size))
	return image, nil
}

// describe is the sources' version by git, "devel" where it does not know.
func describe(ctx context.Context, source string) string {
	cmd := exec.CommandContext(ctx, "git", "describe", "--tags", "--always", "--dirty")
	cmd.Dir = source
	out, err := cmd.Output()
	if text := strings.TrimSpace(string(out)); err == nil && text != "" {
		return text
	}
	return "devel"
}

// compressedSize is what a node has to pull, in bytes.
func compressedSize(image v1.Image) (int64, error) {
	layers, err := image.Layers()
	if err != nil {
		return 0, err
	}
	var sum int64
	for _, layer := range layers {
		size, err := layer.Size()
		if err != nil {
			return 0, err
		}
		sum += size
	}
	return sum, nil
}

// Push pushes the image and returns its reference by digest. Who may push is
// read where docker and podman keep it.
func Push(ctx context.Context, to name.Reference, image v1.Image) (string, error) {
	digest, err := image.Digest()
	if err != nil {
		return "", fmt.Errorf("pushing %s: %w", to, err)
	}
	if err := remote.Write(to, image, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
		return "", fail.Advise(fmt.Errorf("pushing %s: %w", to, err), "podman login %s", to.Context().RegistryStr())
	}
	return to.Context().Digest(digest.String()).Name(), nil
}
