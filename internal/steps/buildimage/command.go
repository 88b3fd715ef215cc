package buildimage

import (
	"errors"
	"io/fs"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster/clusterfile"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
)

// Description is what the help of the step and of mlenv build says.
const Description = `Build the training image on the cluster through a BuildConfig, and push it to the
ImageStream ml-dev-env, whose tags are the flavours.

Nothing is built where the image was built from the same Dockerfile, folder, arguments
and base before, and where --image names a finished one. A build of the same that
somebody has started already is followed. Whoever is told to end cancels the build that
he has started. Arguments KEY=VALUE are build arguments, as --build-arg's are.

Exit codes: 0 done, 1 failed, 2 wrong usage.`

// Command is the step build-image. images holds the flavours, a folder each.
func Command(images fs.FS) *cobra.Command {
	var o Options
	var where kube.Flags
	var clusterFile, pullSecretDir, caFile string
	cmd := &cobra.Command{
		Use:   "build-image --cluster-file FILE [KEY=VALUE...]",
		Short: "Build the training image on the cluster, unless it is there",
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
	// What only Tasks give.
	o.Run.AddTo(flags)
	flags.StringVar(&pullSecretDir, "pull-secret-dir", "", "where the pull secret is mounted, to ask the base's registry (default: the machine's own docker configuration)")
	flags.StringVar(&caFile, "ca-file", "", "certificates to trust when a registry is asked, beside the system's")
	flags.DurationVar(&o.StartTimeout, "start-timeout", 10*time.Minute, "time that the nodes will have to start, to refuse a PipelineRun that would end before")
	flags.DurationVar(&o.TrainingTimeout, "training-timeout", 0, "time that the training may take, to refuse a PipelineRun that would end before")
	url := step.NewResult(cmd, "IMAGE_URL", "the image by its tag")
	digest := step.NewResult(cmd, "IMAGE_DIGEST", "its digest, as in sha256:...")
	reference := step.NewResult(cmd, "image", "the image by digest, as a pod takes it")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		image, err := Run(cmd.Context(), Deps{Connect: Connect(where, o.Cluster, pullSecretDir, caFile), Images: images, Log: step.Log(cmd), Out: step.Output(cmd)}, o)
		if err != nil {
			return err
		}
		return errors.Join(url.Write(image.URL), digest.Write(image.Digest), reference.Write(image.Reference))
	}
	return cmd
}

// AddFlags adds the flags that the step and mlenv build share, and sets their defaults.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.Image, "image", "", "a finished image: nothing is built (default: image.name of the cluster file, where no flavour is asked for)")
	flags.StringVar(&o.Flavour, "flavour", "", "what to build, and the image's tag (default: image.flavour of the cluster file)")
	flags.StringVar(&o.Folder, "folder", "", "folder with a Dockerfile of your own, all of which is sent to the build; --flavour names its tag")
	flags.StringVar(&o.Base, "base-image", "", "image to build on, as build argument "+baseArg+" (default: image.base of the cluster file)")
	flags.StringArrayVar(&o.BuildArgs, "build-arg", nil, "build argument KEY=VALUE, beside image.build_args of the cluster file; can be given again; no secrets: the image's history shows it")
	flags.StringArrayVar(&o.Env, "env", nil, "variable KEY=VALUE that stays in the image; can be given again")
	flags.StringVar(&o.PullSecret, "pull-secret", "", "Secret to pull the base image with (default: image.pull_secret of the cluster file; - is none)")
	flags.StringVar(&o.PushSecret, "push-secret", "", "Secret to push the image with (default: that of the service account builder)")
	flags.BoolVar(&o.Force, "force", false, "build although there is an image of the same inputs")
	flags.DurationVar(&o.Timeout, "build-timeout", 30*time.Minute, "time for the build, from the start of its pod")
	flags.DurationVar(&o.PodTimeout, "build-start-timeout", 10*time.Minute, "time for the build's pod to run, other builds of the flavour included")
}
