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

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/run"
)

// baseArg is the build argument that every flavour's FROM has.
const baseArg = "BASE_IMAGE"

// Options say what to build. Without Image, Flavour and Folder the cluster file does.
type Options struct {
	// Run is the PipelineRun that the step is part of; without it a person builds.
	Run     run.Flags
	Cluster cluster.File
	// Image is a finished image: nothing is built.
	Image string
	// Flavour is what to build, and the image's tag.
	Flavour string
	// Folder has a Dockerfile of the user's own.
	Folder string
	// Base is the image to build on, "" for the cluster file's.
	Base string
	// BuildArgs and Env are KEY=VALUE.
	BuildArgs, Env []string
	// PullSecret is the Secret for the base image, "" for the cluster file's, - for none. PushSecret
	// is "" for that of the service account builder.
	PullSecret, PushSecret string
	// Force builds although there is an image of the same inputs.
	Force bool
	// PodTimeout is the time for the build's pod to run, Timeout that for the build from there.
	PodTimeout, Timeout time.Duration
	// StartTimeout and TrainingTimeout are what comes after the build, for which the PipelineRun must last.
	StartTimeout, TrainingTimeout time.Duration
}

// Deps are what Run works with.
type Deps struct {
	// Connect is called only if an image is to be built or found. The image is built in the clients' namespace.
	Connect func() (*kube.Clients, *Registry, error)
	// Images holds the flavours, a folder each.
	Images fs.FS
	Log    *slog.Logger
	// Out gets the build's output; without it each line is a record of Log.
	Out io.Writer
}

// Run builds the image, or finds the one that was built from the same inputs.
func Run(ctx context.Context, d Deps, o Options) (Image, error) {
	asked, err := o.request(d.Images)
	if err != nil {
		return Image{}, err
	}
	if asked.definition == nil {
		d.Log.Info(fmt.Sprintf("Nothing is built: image %s is named.", asked.image), "image", asked.image)
		_, digest, _ := strings.Cut(asked.image, "@")
		return Image{URL: asked.image, Reference: asked.image, Digest: digest}, nil
	}
	clients, registry, err := d.Connect()
	if err != nil {
		return Image{}, err
	}
	if err := clients.CheckCluster(ctx, o.Cluster.Cluster.API, d.Log); err != nil {
		return Image{}, err
	}
	b, err := o.builder(d, clients, registry, asked)
	if err != nil {
		return Image{}, err
	}
	return b.run(ctx)
}

// request is what the options and the cluster file ask for.
type request struct {
	// image is the finished one, if nothing is to be built.
	image string
	// definition is nil where nothing is to be built.
	definition *Definition
	args, env  []Arg
}

// Check finds every mistake that can be found without the cluster.
func (o *Options) Check(images fs.FS) error {
	var problems []error
	wrong := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if o.Timeout <= 0 {
		wrong("--build-timeout %s: want more than nothing", o.Timeout)
	}
	if o.PodTimeout <= 0 {
		wrong("--build-start-timeout %s: want more than nothing", o.PodTimeout)
	}
	if o.StartTimeout <= 0 && o.Run.Name != "" {
		wrong("--start-timeout %s: want more than nothing", o.StartTimeout)
	}
	if o.TrainingTimeout < 0 {
		wrong("--training-timeout %s: want a duration, or 0s where nothing is trained", o.TrainingTimeout)
	}
	if o.Image != "" && o.Folder != "" {
		wrong("--image %s and --folder %s: want one of them", o.Image, o.Folder)
	}
	_, err := o.request(images)
	return errors.Join(append(problems, o.Run.Check(), err)...)
}

// request reads what is to be built, if there is something.
func (o *Options) request(images fs.FS) (r request, err error) {
	flavour := o.Flavour
	r.image = o.Image
	if o.Image == "" && o.Flavour == "" && o.Folder == "" {
		r.image, flavour = o.Cluster.Image.Name, o.Cluster.Image.Flavour
	}
	var problems []error
	add := func(err error) { problems = append(problems, err) }
	r.env, err = parseArgs("--env", o.Env)
	add(err)
	if r.image != "" {
		return r, errors.Join(problems...)
	}
	r.definition, err = o.definition(images, flavour)
	add(err)
	r.args, err = o.args()
	add(err)
	if r.definition != nil {
		add(undeclared(r.definition, r.args))
		_, err = r.definition.Bases(r.args)
		add(err)
	}
	return r, errors.Join(problems...)
}

func (o *Options) definition(images fs.FS, flavour string) (*Definition, error) {
	if o.Folder == "" {
		if flavour == "" {
			known, err := Flavours(images)
			return nil, errors.Join(err, fmt.Errorf("nothing to build is named: want --flavour (there are %s), --folder, or --image; or image.flavour in the cluster file", strings.Join(known, ", ")))
		}
		return FindFlavour(images, flavour)
	}
	folder, err := filepath.Abs(o.Folder)
	if err != nil {
		return nil, err
	}
	name := cmp.Or(flavour, strings.ToLower(filepath.Base(folder)))
	if err := cluster.CheckFlavour(name); err != nil {
		return nil, fmt.Errorf("--flavour %q: %w", name, err)
	}
	return ReadDefinition(name, os.DirFS(folder))
}

// args are the build arguments: the cluster file's, then those of the options.
func (o *Options) args() ([]Arg, error) {
	var all []string
	base := o.Base
	if o.Folder == "" {
		base = cmp.Or(base, o.Cluster.Image.Base)
		all = slices.Clone(o.Cluster.Image.BuildArgs)
	}
	if base != "" {
		all = append(all, baseArg+"="+base)
	}
	return parseArgs("--build-arg", append(all, o.BuildArgs...))
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
func (o *Options) builder(d Deps, clients *kube.Clients, registry *Registry, asked request) (*builder, error) {
	builds, err := buildclient.NewForConfig(clients.Config)
	if err != nil {
		return nil, fail.Becausef(fail.InvalidInput, "making a client for builds: %w", err)
	}
	images, err := imageclient.NewForConfig(clients.Config)
	if err != nil {
		return nil, fail.Becausef(fail.InvalidInput, "making a client for images: %w", err)
	}
	file, out := o.Cluster, d.Out
	if out == nil {
		out = &recordWriter{log: d.Log}
	}
	pullSecret := cmp.Or(o.PullSecret, file.Image.PullSecret)
	if pullSecret == "-" {
		pullSecret = ""
	}
	return &builder{
		definition: asked.definition, buildArgs: asked.args, env: asked.env, proxies: proxies(file.Network.Proxy), trustedCA: cmp.Or(file.Network.TrustedCA, cluster.TrustedCA),
		pullSecret: pullSecret, pushSecret: o.PushSecret, resources: file.Image.BuildResources,
		force: o.Force, podTimeout: o.PodTimeout, timeout: o.Timeout, holder: o.holder(), enough: o.enough(clients),
		namespace: clients.Namespace, builds: builds.BuildV1(), images: images.ImageV1(), kube: clients.Kube, registry: registry, log: d.Log, out: out, now: time.Now,
	}, nil
}

// enough checks that the PipelineRun, if there is one, has time for a build and
// what comes after it.
func (o *Options) enough(clients *kube.Clients) func(context.Context) error {
	return func(ctx context.Context) error {
		if o.Run.Name == "" {
			return nil
		}
		r, err := run.Get(ctx, clients.Tekton, clients.Namespace, o.Run.Name)
		if err != nil {
			return err
		}
		return run.CheckTimeouts(r, run.Needs{Build: o.Timeout, Start: o.StartTimeout, Training: o.TrainingTimeout, Teardown: run.TeardownTime}, time.Now())
	}
}

// holder is the PipelineRun, or the person at the keyboard.
func (o *Options) holder() string {
	if o.Run.Name != "" {
		return "run " + o.Run.Name
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
