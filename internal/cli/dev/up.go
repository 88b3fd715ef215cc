// SPDX-License-Identifier: Apache-2.0

package dev

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	imageclient "github.com/openshift/client-go/image/clientset/versioned"
	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/cli/envflags"
	"github.com/ml-dev-env/ml-dev-env/internal/clusterfile"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/install"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/param"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/buildimage"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/provision"
)

type up struct {
	envflags.Flags
	installed string
	options   provision.Options
	noFile    error
}

func upCommand() *cobra.Command {
	var u up
	cmd := &cobra.Command{
		Use:   "up [ENVIRONMENT]",
		Short: "Create an environment to develop in, and keep it",
		Long: `Create an environment to develop in and wait until it is ready, with the code of the step provision. You hold its Lease
for --keep-for; every command of mlenv that works in the environment restarts that time. When it is over, the reaper
releases the GPUs; mlenv down releases them at once. Claims and their files stay.

The reaper also releases an environment that was not used for --idle-timeout: no job, open shell, browser session or
busy GPU. A waiting mlenv dev or mlenv sync --watch does not count as use; both warn ten minutes before.

Without --cluster-file mlenv uses a cluster file that is installed in the namespace. Without --image it uses the cluster
file's image.name, or the image that was last built of its image.flavour; if there is none, mlenv builds it. If the
environment exists and differs from the request, mlenv changes it only with --on-change=recreate.

Exit code 0: the environment is ready; 1: it is not, and nothing is held; 2: wrong usage.`,
		Example: `  mlenv up --nodes=2
  mlenv up h-kim --cluster-file=clusters/barcelona.yaml --mode=rdma --keep-for=8h
  mlenv up --idle-timeout=30m   # without use for half an hour its GPUs are released
  mlenv up --nodes=1 --services=all   # with VS Code, Jupyter and TensorBoard, see mlenv open`,
		Args: func(cmd *cobra.Command, args []string) error {
			u.options.Request.Cluster, u.noFile = u.Load(cmd.Context())
			err := errors.Join(envflags.ParseName(cmd.Flags(), args), command.FlagMistakes(cmd.Flags()))
			u.options.Request.Name = u.Environment
			if err := u.options.AlsoRequest(err); err != nil {
				return errors.Join(err, u.noFile)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return u.run(cmd.Context(), command.Log(cmd)) },
	}
	flags, o := cmd.Flags(), &u.options
	param.Name.AddTo(flags, &u.Environment, envflags.NameFlag, objects.DefaultName, "")
	u.AddTo(flags, "cluster file (default: the installed one)")
	flags.Lookup(envflags.NameFlag).Usage = "name of the environment"
	o.AddFlags(flags)
	flags.StringVar(&u.installed, "cluster", "", "name of the installed cluster file (default: the only one)")
	cmd.MarkFlagsMutuallyExclusive("cluster", "cluster-file")
	param.Duration.AddTo(flags, &o.KeepFor, "keep-for", 4*time.Hour, "how long the environment exists while no command of mlenv works in it")
	param.StopGrace.AddTo(flags, &o.Request.StopGrace, "stop-grace", 0, param.Help("provision", "stop-grace")+
		" (default: nodes.stop_grace of the cluster file)")
	param.Flag(flags, &o.IdleTimeout, "provision", "idle-timeout").Usage += " (default: development.idle_timeout of the cluster file)"
	param.Image.AddTo(flags, &o.Request.Image, "image", "", "training image (default: image.name of the cluster file, or the image that was "+
		"built of its image.flavour)")
	param.Image.AddTo(flags, &o.Request.StepsImage, "steps-image", "", "image of the steps, which contains the agent (default: the installed "+
		"pipeline's)")
	command.AddLogFormat(cmd)
	return cmd
}

func (u *up) run(ctx context.Context, log *slog.Logger) error {
	if u.noFile != nil {
		return u.noFile
	}
	options := u.options
	clients, err := u.ConnectTo(options.Request.Cluster)
	if err != nil {
		return err
	}
	if err := envflags.MayProvision(ctx, clients); err != nil {
		return err
	}
	if err := u.complete(ctx, log, clients, &options.Request); err != nil {
		return err
	}
	if _, err := provision.Run(ctx, provision.Deps{Clients: clients, Log: log}, options); err != nil {
		return err
	}
	log.Info(fmt.Sprintf("The environment is kept until %s; each command of mlenv that works in it restarts that time. To release it now: "+
		"mlenv down %s -n %s",
		time.Now().Add(options.KeepFor).UTC().Format("2006-01-02 15:04 UTC"), u.Environment, clients.Namespace))
	reportReaper(ctx, log, clients, options.MayIdle())
	return nil
}

// reportReaper prints when the environment is released without mlenv down, and whether anything in the namespace does that. timeout is
// how long it may be unused, 0 for ever.
func reportReaper(ctx context.Context, log *slog.Logger, clients *kube.Clients, timeout time.Duration) {
	over, idle := "its time is over", ""
	if timeout > 0 {
		idle = fmt.Sprintf("it was not used for %s: no job, open shell, browser session or busy GPU", humanize.Duration(timeout))
		over = idle + ", or when its time is over"
	}
	missing, next, err := install.ReaperProblem(ctx, clients)
	switch {
	case err != nil:
		log.Warn(fmt.Sprintf("If the reaper works, it releases the environment when %s. Whether it does was not found out: %v", over, err))
	case missing != "":
		log.Warn(fmt.Sprintf("Nothing will release the environment when %s: %s.\n  next: %s", over, missing, next))
	case timeout > 0:
		log.Info(fmt.Sprintf("The reaper also releases it when %s. Claims stay. --idle-timeout changes that.", idle))
	}
}

// complete adds what the flags leave out and the cluster has: the steps' image, the cluster file and the training image.
func (u *up) complete(ctx context.Context, log *slog.Logger, clients *kube.Clients, request *objects.Request) (err error) {
	if request.StepsImage == "" {
		pipeline, err := launch.Installed(ctx, clients)
		if err != nil {
			return err
		}
		request.StepsImage = launch.ParamValue(pipeline, nil, "steps-image")
	}
	if u.ClusterFile == "" {
		if request.Cluster, err = clusterfile.LoadInstalled(ctx, clients, u.installed); err != nil {
			return err
		}
	}
	flavour := request.Cluster.Image.Flavour
	if request.Image != "" || request.Cluster.Image.Name != "" || flavour == "" {
		return nil
	}
	images, err := imageclient.NewForConfig(clients.Config)
	if err != nil {
		return fail.Becausef(fail.InvalidInput, "creating a client for images: %w", err)
	}
	built, err := buildimage.LastBuilt(ctx, images.ImageV1(), clients.Namespace, flavour)
	switch {
	case err == nil:
		log.Info(fmt.Sprintf("Using image %s, built of the cluster file's flavour %s.", built.Reference, flavour))
	case fail.ReasonOf(err) == fail.InvalidInput: // there is none
		options := buildimage.Defaults()
		options.Cluster = request.Cluster
		if built, err = buildimage.Build(ctx, clients, log, options); err != nil {
			return err
		}
	default:
		return err
	}
	request.Image = built.Reference
	return nil
}
