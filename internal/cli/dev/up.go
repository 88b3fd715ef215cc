package dev

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	imageclient "github.com/openshift/client-go/image/clientset/versioned"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster/clusterfile"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/buildimage"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/provision"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/teardown"
)

// clusterFlag is, as of a run, the name of an installed cluster file.
const clusterFlag = "cluster"

// keepFor is how long an environment lives that nobody uses.
const keepFor = 4 * time.Hour

func upCommand() *cobra.Command {
	cmd := environmentFirst(ofStep(provision.Command()))
	cmd.Use = "up [ENVIRONMENT]"
	cmd.Short = "Make an environment to develop in, and keep it"
	cmd.Long = `Make an environment to develop in and wait until it can be used, with the code of the step provision. Its lease is
yours, and lasts for --keep-for; every command of mlenv that works in the environment begins that time anew. When it is
over, because you went home or your machine went away, the reaper that mlenv install brings gives the GPUs back; mlenv down
does so at once. Claims, and so what lies in /workspace and /datasets, always stay.

Without --cluster-file the cluster file is one that is installed in the namespace, and so is the steps' image.
Without --image the training image is the cluster file's image.name, or the one that was last built of its image.flavour.
Another up with another request changes a living environment only with --on-change=recreate.

Exit code 0: it can be used; 1: it cannot, and nothing is held; 2: wrong usage.`
	cmd.Example = `  mlenv up --nodes=2
  mlenv up h-kim --cluster-file=clusters/barcelona.yaml --mode=rdma --keep-for=8h
  mlenv up --nodes=1 --services=all   # with VS Code, Jupyter and TensorBoard, see mlenv open`
	flags := cmd.Flags()
	setDefault(flags, "keep-for", keepFor.String(), "how long the environment lives while no command of mlenv works in it")
	setDefault(flags, clusterFileFlag, "", "cluster file (default: the installed one)")
	flags.String(clusterFlag, "", "name of the installed cluster file (default: the only one)")
	cmd.MarkFlagsMutuallyExclusive(clusterFlag, clusterFileFlag)
	setDefault(flags, "image", "", "training image (default: image.name of the cluster file, or what was built of its image.flavour)")
	setDefault(flags, "steps-image", "", "image of the steps, which the nodes get their agent from (default: that of the installed Task)")
	provide := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		forget, err := fillIn(cmd.Context(), step.Log(cmd), flags)
		defer forget()
		if err != nil {
			return err
		}
		if err := provide(cmd, args); err != nil {
			return err
		}
		lives, err := flags.GetDuration("keep-for")
		if err != nil {
			return err
		}
		step.Log(cmd).Info(fmt.Sprintf("It is kept until %s; each command of mlenv that works in it begins its time anew. To give it back now: %s",
			time.Now().Add(lives).UTC().Format("2006-01-02 15:04 UTC"), strings.Join(append([]string{"mlenv down"}, whence(flags)...), " ")))
		return nil
	}
	return cmd
}

// whence are the flags that lead another command to the same environment.
func whence(flags *pflag.FlagSet) (words []string) {
	if flag := flags.Lookup(nameFlag); flag.Value.String() != flag.DefValue {
		words = append(words, flag.Value.String())
	}
	for _, name := range []string{"namespace", "context", "kubeconfig"} {
		if flag := flags.Lookup(name); flag.Changed {
			words = append(words, "--"+name+"="+flag.Value.String())
		}
	}
	return words
}

func setDefault(flags *pflag.FlagSet, name, value, usage string) {
	flag := flags.Lookup(name)
	if err := flag.Value.Set(value); err != nil {
		panic(err) // a constant of this package
	}
	flag.DefValue, flag.Usage = value, usage
}

// fillIn asks the cluster for what the flags leave out: the cluster file, the steps' image and
// the training image. forget removes what it wrote.
func fillIn(ctx context.Context, log *slog.Logger, flags *pflag.FlagSet) (forget func(), err error) {
	forget = func() {}
	file, image := flags.Lookup(clusterFileFlag), flags.Lookup("steps-image")
	p := place{
		kube:    kube.Flags{Namespace: value(flags, "namespace"), Kubeconfig: value(flags, "kubeconfig"), Context: value(flags, "context")},
		cluster: file.Value.String(),
	}
	clients, err := p.connect()
	if err != nil {
		return forget, err
	}
	if !image.Changed {
		found, err := installedImage(ctx, clients)
		if err != nil {
			return forget, err
		}
		if err := image.Value.Set(found); err != nil {
			return forget, err
		}
	}
	if file.Changed {
		build := fmt.Sprintf("mlenv build --cluster-file=%s -n %s", file.Value, clients.Namespace)
		return forget, fillInImage(ctx, log, clients, flags, build)
	}
	name, content, err := installedCluster(ctx, clients, value(flags, clusterFlag))
	if err != nil {
		return forget, err
	}
	dir, err := os.MkdirTemp("", "mlenv-")
	if err != nil {
		return forget, fmt.Errorf("making a folder for the cluster file: %w", err)
	}
	forget = func() { _ = os.RemoveAll(dir) }
	path := filepath.Join(dir, name+".yaml")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		return forget, fmt.Errorf("writing the cluster file: %w", err)
	}
	if p.kube.Namespace == "" {
		// It was found there; the file may have been written for another namespace.
		if err := flags.Set("namespace", clients.Namespace); err != nil {
			return forget, err
		}
	}
	if err := file.Value.Set(path); err != nil {
		return forget, err
	}
	build := fmt.Sprintf("tkn task start build-image -n %s --serviceaccount=%s --param=cluster=%s --use-param-defaults --showlog", clients.Namespace, launch.ServiceAccount, name)
	return forget, fillInImage(ctx, log, clients, flags, build)
}

// fillInImage takes the image that was built of the cluster file's flavour, where no other is
// named. build is the command that builds it.
func fillInImage(ctx context.Context, log *slog.Logger, clients *kube.Clients, flags *pflag.FlagSet, build string) error {
	if value(flags, "image") != "" {
		return nil
	}
	file, err := clusterfile.Load(ctx, value(flags, clusterFileFlag), kube.Flags{})
	if err != nil || file.Image.Name != "" || file.Image.Flavour == "" {
		return err
	}
	images, err := imageclient.NewForConfig(clients.Config)
	if err != nil {
		return fail.Becausef(fail.InvalidInput, "making a client for images: %w", err)
	}
	built, err := buildimage.Built(ctx, images.ImageV1(), clients.Namespace, file.Image.Flavour)
	if err != nil {
		return fail.Advise(err, "build it: %s; or name an image with --image", build)
	}
	log.Info(fmt.Sprintf("The image is %s, which was built of flavour %s of the cluster file.", built.Reference, file.Image.Flavour))
	return flags.Set("image", built.Reference)
}

func value(flags *pflag.FlagSet, name string) string { return flags.Lookup(name).Value.String() }

// installedCluster is the text of an installed cluster file: of that name, or the only one.
func installedCluster(ctx context.Context, clients *kube.Clients, name string) (found string, content []byte, err error) {
	configs, err := clients.Kube.CoreV1().ConfigMaps(clients.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", nil, kube.Problem(fmt.Errorf("listing configmaps in %s: %w", clients.Namespace, err))
	}
	installed := map[string]string{}
	for _, config := range configs.Items {
		if n, ok := strings.CutPrefix(config.Name, cluster.ConfigMapPrefix); ok {
			installed[n] = config.Data["cluster.yaml"]
		}
	}
	var names []string
	for n := range installed {
		names = append(names, n)
	}
	slices.Sort(names)
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
	return "", nil, fail.Advise(fail.Becausef(fail.InvalidInput, "looking for %s in namespace %s: installed are: %s", wanted, clients.Namespace, orNone(names)),
		"name one with --cluster=NAME or --cluster-file=FILE, or install it: mlenv install FILE -n %s --steps-image=IMAGE", clients.Namespace)
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
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

func downCommand() *cobra.Command {
	cmd := environmentFirst(ofStep(teardown.Command()))
	cmd.Use = "down [ENVIRONMENT]"
	cmd.Short = "Give an environment back, and wait until its GPUs are free"
	cmd.Long = `Give an environment back and wait until its pods, and so its GPUs, are really free, with the code of the step teardown.
Claims and what is on them stay. It can be run twice, and on nothing. What somebody else holds is left alone without --force.

Exit code 0: nothing of it is left; 1: something is, or it is somebody else's; 2: wrong usage.`
	cmd.Example = `  mlenv down
  mlenv down h-kim -n my-namespace --force   # also where another person holds it`
	cmd.Flags().Lookup("keep").Hidden = true // of a run
	return cmd
}
