// SPDX-License-Identifier: Apache-2.0

package buildimage

import (
	"errors"
	"io/fs"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ml-dev-env/ml-dev-env/internal/clusterfile"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/param"
)

// Description is the help text of the step and of mlenv build.
const Description = `Build the training image on the cluster through a BuildConfig, and push it to the
ImageStream ml-dev-env, whose tags are the flavours. With other build arguments, another
base or variables than the cluster file's the tag is FLAVOUR-HASH.

The command builds nothing if --image names an existing image, or if an image was built
from the same Dockerfile, folder, arguments and base. If a build with the same inputs is
running, the command follows that build. Ctrl-C cancels the build unless another run or
user follows it. Arguments KEY=VALUE are build arguments, as with --build-args.

Exit codes: 0 done, 1 failed, 2 wrong usage.`

// Command returns the step build-image. images holds the flavours, a folder each.
func Command(images fs.FS) *cobra.Command {
	var o Options
	var where kube.Flags
	var clusterFile, pullSecretDir, caFile string
	cmd := &cobra.Command{
		Use:   "build-image --cluster-file FILE [KEY=VALUE...]",
		Short: "Build the training image on the cluster, unless it exists",
		Long:  Description,
		Example: `  build-image --cluster-file clusters/barcelona.yaml --flavour pytorch-2.9-numpy2
  build-image --cluster-file clusters/cairo.yaml --folder ./my-image --flavour mine`,
		Args: func(cmd *cobra.Command, args []string) error {
			o.BuildArgs = append(o.BuildArgs, args...)
			var err error
			o.Cluster, err = clusterfile.Load(cmd.Context(), clusterFile, where)
			return errors.Join(err, o.Check(images))
		},
	}
	flags := cmd.Flags()
	where.AddTo(flags)
	o.AddFlags(flags)
	flags.StringVar(&clusterFile, "cluster-file", "", "the cluster file")
	// Flags for Tasks only.
	o.Run.AddTo(flags)
	flags.StringVar(&pullSecretDir, "pull-secret-dir", "", "folder of the mounted pull secret for the base's registry (default: the "+
		"machine's own docker configuration)")
	flags.StringVar(&caFile, "ca-file", "", "certificates to trust for registries, in addition to the system's")
	param.Flag(flags, &o.StartTimeout, task, "start-timeout")
	param.Flag(flags, &o.TrainingTimeout, task, "training-timeout")
	url := command.NewResult(cmd, "IMAGE_URL", "the image by its tag, if the step built it")
	digest := command.NewResult(cmd, "IMAGE_DIGEST", "its digest, as in sha256:..., if the step built it")
	reference := command.NewResult(cmd, "image", "the image by digest, for pods")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		image, err := Run(cmd.Context(), Deps{Connect: Connect(where, o.Cluster, pullSecretDir, caFile), Images: images, Log: command.Log(cmd),
			Out: command.Output(cmd)}, o)
		if err != nil {
			return err
		}
		return errors.Join(writeHints(image, url, digest), reference.Write(image.Reference))
	}
	return cmd
}

// writeHints writes the two results by which Tekton Chains finds an image to sign. Chains attests that this TaskRun built the image, so
// there are none for an image that existed.
func writeHints(image Image, url, digest *command.Result) error {
	if !image.Built || image.Digest == "" {
		return nil
	}
	tagged, _, _ := strings.Cut(image.URL, "@")
	return errors.Join(url.Write(tagged), digest.Write(image.Digest))
}

const task = "build-image"

// Defaults are the options without any flag.
func Defaults() Options {
	var o Options
	o.AddFlags(pflag.NewFlagSet(task, pflag.ContinueOnError))
	return o
}

// AddFlags adds the flags that the step and mlenv build share and sets their defaults.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	param.Flag(flags, &o.Image, task, "image")
	param.Flag(flags, &o.Flavour, task, "flavour")
	flags.StringVar(&o.Folder, "folder", "", "folder with your own Dockerfile, sent to the build as a whole; --flavour names the image's tag")
	param.Flag(flags, &o.Base, task, "base-image")
	flags.StringArrayVar(&o.BuildArgs, "build-args", nil, "build argument KEY=VALUE, in addition to image.build_args of the cluster file; "+
		"may be repeated; no secrets: the image's history shows it")
	flags.StringArrayVar(&o.Env, "env", nil, "variable KEY=VALUE that stays in the image; may be repeated")
	flags.StringVar(&o.PullSecret, "pull-secret", "", "Secret to pull the base image with (default: image.base_pull_secret of the cluster "+
		"file, or else its image.pull_secret; - is the Secret of the service account builder)")
	flags.StringVar(&o.PushSecret, "push-secret", "", "Secret to push the image with (default: the Secret of the service account builder)")
	param.Flag(flags, &o.Force, task, "force")
	param.Flag(flags, &o.Timeout, task, "build-timeout")
}
