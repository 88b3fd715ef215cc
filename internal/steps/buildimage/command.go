// Package buildimage is the step build-image: it builds a training image on the
// cluster through a BuildConfig, unless there is one of the same inputs already.
package buildimage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	buildclient "github.com/openshift/client-go/build/clientset/versioned"
	imageclient "github.com/openshift/client-go/image/clientset/versioned"
	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster/clusterfile"
	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/run"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
	"github.com/ml-dev-env/ml-dev-env/internal/step/secretdir"
)

// baseArg is the build argument that every flavour's FROM has.
const baseArg = "BASE_IMAGE"

// options are the flags of the command.
type options struct {
	kube          kube.Flags
	run           run.Flags
	clusterFile   string
	image         string
	flavour       string
	folder        string
	base          string
	buildArgs     []string
	env           []string
	pullSecretDir string
	pullSecret    string
	pushSecret    string
	caFile        string
	force         bool
	timeout       time.Duration
	podTimeout    time.Duration
	// startTimeout and trainingTimeout are what comes after the build.
	startTimeout, trainingTimeout time.Duration
}

// Command is the step build-image. images holds the flavours, a folder each.
func Command(images fs.FS) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "build-image --cluster-file FILE [KEY=VALUE...]",
		Short: "Build the training image on the cluster, unless it is there",
		Long: `Build the training image on the cluster through a BuildConfig, and push it to the
ImageStream ml-dev-env, whose tags are the flavours.

Nothing is built where the image was built from the same Dockerfile, folder, arguments
and base before, and where --image names a finished one. A build of the same that
somebody has started already is followed. Whoever is told to end cancels the build that
he has started. Arguments KEY=VALUE are build arguments, as --build-arg's are.

Exit codes: 0 done, 1 failed, 2 wrong usage.`,
		Example: `  build-image --cluster-file clusters/barcelona.yaml --flavour pytorch-2.9-numpy2
  build-image --cluster-file clusters/cairo.yaml --folder ./my-image --flavour mine`,
	}
	flags := cmd.Flags()
	o.kube.AddTo(flags)
	o.run.AddTo(flags)
	flags.StringVar(&o.clusterFile, "cluster-file", "", "the cluster file")
	flags.StringVar(&o.image, "image", "", "a finished image: nothing is built (default: image.name of the cluster file, where no flavour is asked for)")
	flags.StringVar(&o.flavour, "flavour", "", "what to build, and the image's tag (default: image.flavour of the cluster file)")
	flags.StringVar(&o.folder, "folder", "", "folder with a Dockerfile of your own, all of which is sent to the build; --flavour names its tag")
	flags.StringVar(&o.base, "base-image", "", "image to build on, as build argument "+baseArg+" (default: image.base of the cluster file)")
	flags.StringArrayVar(&o.buildArgs, "build-arg", nil, "build argument KEY=VALUE, beside image.build_args of the cluster file; can be given again; no secrets: the image's history shows it")
	flags.StringArrayVar(&o.env, "env", nil, "variable KEY=VALUE that stays in the image; can be given again")
	flags.StringVar(&o.pullSecretDir, "pull-secret-dir", "", "where the pull secret is mounted, to ask the base's registry (default: the machine's own docker configuration)")
	flags.StringVar(&o.pullSecret, "pull-secret", "", "Secret to pull the base image with (default: image.pull_secret of the cluster file; - is none)")
	flags.StringVar(&o.pushSecret, "push-secret", "", "Secret to push the image with (default: that of the service account builder)")
	flags.StringVar(&o.caFile, "ca-file", "", "certificates to trust when a registry is asked, beside the system's")
	flags.BoolVar(&o.force, "force", false, "build although there is an image of the same inputs")
	flags.DurationVar(&o.timeout, "build-timeout", 30*time.Minute, "time for the build, from the start of its pod")
	flags.DurationVar(&o.podTimeout, "build-start-timeout", 10*time.Minute, "time for the build's pod to run, other builds of the flavour included")
	flags.DurationVar(&o.startTimeout, "start-timeout", 10*time.Minute, "time that the nodes will have to start, to refuse a PipelineRun that would end before")
	flags.DurationVar(&o.trainingTimeout, "training-timeout", 0, "time that the training may take, to refuse a PipelineRun that would end before")
	url := step.NewResult(cmd, "IMAGE_URL", "the image by its tag")
	digest := step.NewResult(cmd, "IMAGE_DIGEST", "its digest, as in sha256:...")
	reference := step.NewResult(cmd, "image", "the image by digest, as a pod takes it")
	var asked request
	cmd.Args = func(cmd *cobra.Command, args []string) (err error) {
		o.buildArgs = append(o.buildArgs, args...)
		asked, err = o.check(cmd.Context(), images)
		return err
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		image := Image{URL: o.image, Reference: o.image}
		log := step.Log(cmd)
		if asked.definition == nil {
			log.Info(fmt.Sprintf("Nothing is built: image %s is named.", o.image))
			_, image.Digest, _ = strings.Cut(o.image, "@")
		} else {
			clients, err := o.kube.Connect()
			if err != nil {
				return err
			}
			if err := clients.CheckCluster(cmd.Context(), asked.file.Cluster.API, log); err != nil {
				return err
			}
			b, err := o.builder(asked, clients, log, output(cmd, log))
			if err != nil {
				return err
			}
			if image, err = b.run(cmd.Context()); err != nil {
				return err
			}
		}
		return errors.Join(url.Write(image.URL), digest.Write(image.Digest), reference.Write(image.Reference))
	}
	return cmd
}

// output is where the build's log goes: as it is, or a record a line for machines.
func output(cmd *cobra.Command, log *slog.Logger) io.Writer {
	if step.IsJSON(cmd) {
		return &recordWriter{log: log}
	}
	return cmd.OutOrStdout()
}

// request is what the flags and the cluster file ask for.
type request struct {
	file *cluster.File
	// definition is nil where nothing is to be built.
	definition *Definition
	args, env  []Arg
}

// check finds every mistake that can be found without the cluster. Where nothing
// is to be built o.image is what is used.
func (o *options) check(ctx context.Context, images fs.FS) (r request, err error) {
	var problems []error
	add := func(err error) { problems = append(problems, err) }
	for name, value := range map[string]time.Duration{"build-timeout": o.timeout, "build-start-timeout": o.podTimeout, "start-timeout": o.startTimeout} {
		if value <= 0 {
			problems = append(problems, fmt.Errorf("--%s %s: want more than nothing", name, value))
		}
	}
	if o.trainingTimeout < 0 {
		problems = append(problems, fmt.Errorf("--training-timeout %s: want a duration, or 0s where nothing is trained", o.trainingTimeout))
	}
	if o.image != "" && o.folder != "" {
		problems = append(problems, fmt.Errorf("--image %s and --folder %s: want one of them", o.image, o.folder))
	}
	r.env, err = parseArgs("--env", o.env)
	add(err)
	add(o.run.Check())
	if file, err := clusterfile.Load(ctx, o.clusterFile, o.kube); err != nil {
		add(err)
	} else {
		r.file = &file
	}
	if o.image == "" && o.flavour == "" && o.folder == "" && r.file != nil {
		o.image, o.flavour = r.file.Image.Name, r.file.Image.Flavour
	}
	if o.image != "" {
		return r, errors.Join(problems...)
	}
	r.definition, err = o.definition(images)
	add(err)
	r.args, err = o.args(r.file)
	add(err)
	if r.definition != nil {
		add(undeclared(r.definition, r.args))
		_, err = r.definition.Bases(r.args)
		add(err)
	}
	return r, errors.Join(problems...)
}

func (o *options) definition(images fs.FS) (*Definition, error) {
	if o.folder == "" {
		if o.flavour == "" {
			known, err := Flavours(images)
			return nil, errors.Join(err, fmt.Errorf("nothing to build is named: want --flavour (there are %s), --folder, or --image; or image.flavour in the cluster file", strings.Join(known, ", ")))
		}
		return FindFlavour(images, o.flavour)
	}
	folder, err := filepath.Abs(o.folder)
	if err != nil {
		return nil, err
	}
	name := cmp.Or(o.flavour, strings.ToLower(filepath.Base(folder)))
	if err := cluster.CheckFlavour(name); err != nil {
		return nil, fmt.Errorf("--flavour %q: %w", name, err)
	}
	return ReadDefinition(name, os.DirFS(folder))
}

// args are the build arguments: the cluster file's, then those of the flags.
func (o *options) args(file *cluster.File) ([]Arg, error) {
	var all []string
	base := o.base
	if file != nil && o.folder == "" {
		base = cmp.Or(base, file.Image.Base)
		all = slices.Clone(file.Image.BuildArgs)
	}
	if base != "" {
		all = append(all, baseArg+"="+base)
	}
	return parseArgs("--build-arg", append(all, o.buildArgs...))
}

// undeclared finds build arguments that the Dockerfile knows nothing of, which
// a build would pass over.
func undeclared(d *Definition, args []Arg) error {
	var problems []error
	declared := d.Args()
	for _, arg := range args {
		if !slices.Contains(declared, arg.Name) {
			problems = append(problems, fmt.Errorf("build argument %s: the Dockerfile of %s has no such ARG; it has %s", arg.Name, d.Flavour, cmp.Or(strings.Join(declared, ", "), "none")))
		}
	}
	return errors.Join(problems...)
}

// builder asks nothing of the cluster yet.
func (o *options) builder(asked request, clients *kube.Clients, log *slog.Logger, out io.Writer) (*builder, error) {
	namespace := o.kube.NamespaceOf(clients, asked.file.Cluster.Namespace)
	builds, err := buildclient.NewForConfig(clients.Config)
	if err != nil {
		return nil, fail.Becausef(fail.InvalidInput, "making a client for builds: %w", err)
	}
	images, err := imageclient.NewForConfig(clients.Config)
	if err != nil {
		return nil, fail.Becausef(fail.InvalidInput, "making a client for images: %w", err)
	}
	secret, err := secretdir.Read(o.pullSecretDir)
	if err != nil {
		return nil, err
	}
	token := ""
	if clients.InCluster {
		token = clients.Config.BearerToken
	}
	registry, err := NewRegistry(secret, token, o.caFile)
	if err != nil {
		return nil, fail.Because(fail.InvalidInput, err)
	}
	file := asked.file
	pullSecret := cmp.Or(o.pullSecret, file.Image.PullSecret)
	if pullSecret == "-" {
		pullSecret = ""
	}
	return &builder{
		definition: asked.definition, buildArgs: asked.args, env: asked.env, proxies: proxies(file.Network.Proxy), trustedCA: cmp.Or(file.Network.TrustedCA, cluster.TrustedCA),
		pullSecret: pullSecret, pushSecret: o.pushSecret, resources: file.Image.BuildResources,
		force: o.force, podTimeout: o.podTimeout, timeout: o.timeout, holder: o.holder(), enough: o.enough(clients),
		namespace: namespace, builds: builds.BuildV1(), images: images.ImageV1(), kube: clients.Kube, registry: registry, log: log, out: out, now: time.Now,
	}, nil
}

// enough checks that the PipelineRun, if there is one, has time for a build and
// what comes after it.
func (o *options) enough(clients *kube.Clients) func(context.Context) error {
	return func(ctx context.Context) error {
		if o.run.Name == "" {
			return nil
		}
		r, err := run.Get(ctx, clients.Tekton, clients.Namespace, o.run.Name)
		if err != nil {
			return err
		}
		return run.CheckTimeouts(r, run.Needs{Build: o.timeout, Start: o.startTimeout, Training: o.trainingTimeout, Teardown: run.TeardownTime}, time.Now())
	}
}

// holder is the PipelineRun, or the person at the keyboard.
func (o *options) holder() string {
	if o.run.Name != "" {
		return "run " + o.run.Name
	}
	return lease.Person().Display
}

// proxies are build arguments that need no ARG and do not stay in the image.
func proxies(p cluster.Proxy) (args []Arg) {
	for name, value := range map[string]string{"HTTP_PROXY": p.HTTP, "HTTPS_PROXY": p.HTTPS, "NO_PROXY": strings.Join(p.NoProxy, ",")} {
		if value != "" {
			args = append(args, Arg{name, value}, Arg{strings.ToLower(name), value})
		}
	}
	slices.SortFunc(args, func(a, b Arg) int { return strings.Compare(a.Name, b.Name) })
	return args
}
