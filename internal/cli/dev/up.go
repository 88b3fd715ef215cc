package dev

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	imageclient "github.com/openshift/client-go/image/clientset/versioned"
	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster/clusterfile"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/buildimage"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/provision"
)

// up is an environment to be made and kept.
type up struct {
	place
	// installed is the name of an installed cluster file, as of a run.
	installed string
	options   provision.Options
	// noFile is the error of reading --cluster-file.
	noFile error
}

func upCommand() *cobra.Command {
	var u up
	cmd := &cobra.Command{
		Use:   "up [ENVIRONMENT]",
		Short: "Make an environment to develop in, and keep it",
		Long: `Make an environment to develop in and wait until it can be used, with the code of the step provision. You hold its
Lease for --keep-for; every command of mlenv that works in the environment restarts that time. After it, the reaper that
mlenv install creates releases the GPUs; mlenv down releases them at once. Claims always stay, and with them the files in
/workspace and /datasets.

Without --cluster-file the cluster file is one that is installed in the namespace, and so is the steps' image.
Without --image the training image is the cluster file's image.name, or the one that was last built of its image.flavour.
Another up with another request changes a living environment only with --on-change=recreate.

Exit code 0: it can be used; 1: it cannot, and nothing is held; 2: wrong usage.`,
		Example: `  mlenv up --nodes=2
  mlenv up h-kim --cluster-file=clusters/barcelona.yaml --mode=rdma --keep-for=8h
  mlenv up --nodes=1 --services=all   # with VS Code, Jupyter and TensorBoard, see mlenv open`,
		Args: func(cmd *cobra.Command, args []string) error {
			u.options.Request.Cluster, u.noFile = u.load(cmd.Context())
			err := u.parse(cmd, args)
			u.options.Request.Name = u.environment
			if err := errors.Join(err, u.options.Check()); err != nil {
				return errors.Join(err, u.noFile)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return u.run(cmd.Context(), step.Log(cmd)) },
	}
	flags, o := cmd.Flags(), &u.options
	u.addFlags(flags, "cluster file (default: the installed one)")
	o.AddFlags(flags)
	flags.StringVar(&u.installed, "cluster", "", "name of the installed cluster file (default: the only one)")
	cmd.MarkFlagsMutuallyExclusive("cluster", "cluster-file")
	flags.DurationVar(&o.KeepFor, "keep-for", 4*time.Hour, "how long the environment lives while no command of mlenv works in it")
	flags.StringVar(&o.Request.Image, "image", "", "training image (default: image.name of the cluster file, or what was built of its image.flavour)")
	flags.StringVar(&o.Request.StepsImage, "steps-image", "", "image of the steps, which the nodes get their agent from (default: that of the installed Task)")
	step.AddLogFormat(cmd)
	return cmd
}

func (u *up) run(ctx context.Context, log *slog.Logger) error {
	if u.noFile != nil {
		return u.noFile
	}
	options := u.options
	clients, err := u.connectTo(options.Request.Cluster)
	if err != nil {
		return err
	}
	if err := u.complete(ctx, log, clients, &options.Request); err != nil {
		return err
	}
	if _, err := provision.Run(ctx, provision.Deps{Clients: clients, Log: log}, options); err != nil {
		return err
	}
	log.Info(fmt.Sprintf("It is kept until %s; each command of mlenv that works in it restarts that time. To release it now: %s",
		time.Now().Add(options.KeepFor).UTC().Format("2006-01-02 15:04 UTC"), u.downCommandLine(clients.Namespace)), "until", time.Now().Add(options.KeepFor).UTC())
	return nil
}

// downCommandLine is the command that releases the environment.
func (u *up) downCommandLine(namespace string) string {
	words := []string{"mlenv", "down"}
	if u.environment != objects.DefaultName {
		words = append(words, u.environment)
	}
	words = append(words, "-n", namespace)
	if u.kube.Context != "" {
		words = append(words, "--context="+u.kube.Context)
	}
	if u.kube.Kubeconfig != "" {
		words = append(words, "--kubeconfig="+u.kube.Kubeconfig)
	}
	return strings.Join(words, " ")
}

// complete asks the cluster for what the flags leave out: the steps' image, the cluster file
// and the training image.
func (u *up) complete(ctx context.Context, log *slog.Logger, clients *kube.Clients, request *objects.Request) (err error) {
	if request.StepsImage == "" {
		if request.StepsImage, err = installedImage(ctx, clients); err != nil {
			return err
		}
	}
	build := fmt.Sprintf("mlenv build --cluster-file=%s -n %s", u.cluster, clients.Namespace)
	if u.cluster == "" {
		name, content, err := installedCluster(ctx, clients, u.installed)
		if err != nil {
			return err
		}
		if request.Cluster, err = cluster.Load(cluster.ConfigMapPrefix+name, content); err != nil {
			return fail.Because(fail.InvalidInput, err)
		}
		build = fmt.Sprintf("tkn task start build-image -n %s --serviceaccount=%s --param=cluster=%s --use-param-defaults --showlog", clients.Namespace, launch.ServiceAccount, name)
	}
	flavour := request.Cluster.Image.Flavour
	if request.Image != "" || request.Cluster.Image.Name != "" || flavour == "" {
		return nil
	}
	images, err := imageclient.NewForConfig(clients.Config)
	if err != nil {
		return fail.Becausef(fail.InvalidInput, "making a client for images: %w", err)
	}
	built, err := buildimage.Built(ctx, images.ImageV1(), clients.Namespace, flavour)
	if err != nil {
		return fail.Advise(err, "build it: %s; or name an image with --image", build)
	}
	log.Info(fmt.Sprintf("The image is %s, which was built of flavour %s of the cluster file.", built.Reference, flavour), "image", built.Reference, "flavour", flavour)
	request.Image = built.Reference
	return nil
}

// installedCluster is the text of an installed cluster file: of that name, or the only one.
func installedCluster(ctx context.Context, clients *kube.Clients, name string) (found string, content []byte, err error) {
	installed, err := clusterfile.Installed(ctx, clients)
	if err != nil {
		return "", nil, err
	}
	names := slices.Sorted(maps.Keys(installed))
	if name == "" && len(names) == 1 {
		name = names[0]
	}
	if content, ok := installed[name]; ok {
		return name, []byte(content), nil
	}
	wanted := "the cluster file"
	if name != "" {
		wanted = "cluster file " + name
	}
	return "", nil, fail.Advise(fail.Becausef(fail.InvalidInput, "looking for %s in namespace %s: installed are: %s", wanted, clients.Namespace, cmp.Or(strings.Join(names, ", "), "none")),
		"name one with --cluster=NAME or --cluster-file=FILE, or install it: mlenv install FILE -n %s --steps-image=IMAGE", clients.Namespace)
}

// installedImage is the steps' image of the installed Task provision.
func installedImage(ctx context.Context, clients *kube.Clients) (string, error) {
	const param = "steps-image"
	task, err := clients.Tekton.TektonV1().Tasks(clients.Namespace).Get(ctx, "provision", metav1.GetOptions{})
	if err == nil {
		for _, p := range task.Spec.Params {
			if p.Name == param && p.Default != nil && p.Default.StringVal != "" {
				return p.Default.StringVal, nil
			}
		}
		err = fmt.Errorf("its param %s has no default", param)
	} else if !apierrors.IsNotFound(err) {
		return "", kube.Problem(fmt.Errorf("getting task %s/provision: %w", clients.Namespace, err))
	} else if err := kube.NoNamespace(ctx, clients.Kube, clients.Namespace); err != nil {
		return "", err
	}
	return "", fail.Advise(fail.Because(fail.InvalidInput, fmt.Errorf("looking for the steps' image in task %s/provision: %w", clients.Namespace, err)),
		"give it with --steps-image=IMAGE, or install the tasks: mlenv install FILE -n %s --steps-image=IMAGE", clients.Namespace)
}
