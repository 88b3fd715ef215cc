// SPDX-License-Identifier: Apache-2.0

// Package buildimage is the step build-image: it builds a training image on the cluster through a BuildConfig, unless an
// image with the same inputs exists.
package buildimage

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"time"

	buildclient "github.com/openshift/client-go/build/clientset/versioned"
	imageclient "github.com/openshift/client-go/image/clientset/versioned"
	"k8s.io/apimachinery/pkg/types"

	mldevenv "github.com/ml-dev-env/ml-dev-env"
	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

// baseArg is the build argument of every flavour's FROM.
const baseArg = "BASE_IMAGE"

// Options select the image to build. Without Image, Flavour and Folder the cluster file selects it.
type Options struct {
	// Run is the PipelineRun that the step is part of, if any.
	Run     run.Flags
	Cluster cluster.File
	// Image is an existing image, which needs no build.
	Image string
	// Flavour names the Dockerfile and the image's tag.
	Flavour string
	// Folder contains a user's own Dockerfile.
	Folder string
	// Base is the base image, "" for the cluster file's.
	Base string
	// BuildArgs and Env are KEY=VALUE.
	BuildArgs, Env []string
	// PullSecret is the Secret for the base image, "" for the cluster file's, - for the one of the service account builder. PushSecret
	// is the Secret for the result, "" for the one of the service account builder.
	PullSecret, PushSecret string
	// Force builds even if an image with the same inputs exists.
	Force bool
	// Timeout is how long the build may run.
	Timeout time.Duration
	// StartTimeout and TrainingTimeout are the times after the build that the PipelineRun must allow for.
	StartTimeout, TrainingTimeout time.Duration
}

// Deps are Run's clients and outputs.
type Deps struct {
	// Connect is called unless an existing image is named. The image is built in the clients' namespace.
	Connect func() (*kube.Clients, *Registry, error)
	// Images holds the flavours, a folder each.
	Images fs.FS
	Log    *slog.Logger
	// Out receives the build's output; without it each line is a record of Log.
	Out io.Writer
}

// Run builds the image, or finds the image that was built from the same inputs.
func Run(ctx context.Context, d Deps, o Options) (Image, error) {
	asked, err := o.request(d.Images)
	if err != nil {
		return Image{}, err
	}
	if asked.definition == nil {
		d.Log.Info(fmt.Sprintf("Nothing is built: image %s is named.", asked.image))
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
	kept := receipt.NewWriter(ctx, clients, d.Log, o.Run, "")
	image, err := b.run(ctx)
	kept.End(ctx, err, func(p *receipt.Entry) { p.Image = image.Reference })
	return image, err
}

// Build is Run on the machine of a user, with the flavours that this program carries.
func Build(ctx context.Context, clients *kube.Clients, log *slog.Logger, o Options) (Image, error) {
	registry, err := RegistryFor(clients, "", "")
	if err != nil {
		return Image{}, err
	}
	return Run(ctx, Deps{Log: log, Images: mldevenv.Images(),
		Connect: func() (*kube.Clients, *Registry, error) { return clients, registry, nil }}, o)
}

type request struct {
	// image is an existing image, "" to build one.
	image string
	// definition is nil for an existing image.
	definition *Definition
	args, env  []Arg
	// variant is for a tag of its own, "" for the flavour's, and varies the reason.
	variant, varies string
}

// Check reports all mistakes that need no cluster to find.
func (o *Options) Check(images fs.FS) error {
	_, err := o.request(images)
	return errors.Join(
		command.Want(o.Image == "" || o.Folder == "", "--image %s and --folder %s: want one of them", o.Image, o.Folder),
		o.Run.Check(), err,
	)
}

func (o *Options) request(images fs.FS) (r request, err error) {
	flavour := o.Flavour
	r.image = o.Image
	if o.Image == "" && o.Flavour == "" && o.Folder == "" {
		r.image, flavour = o.Cluster.Image.Name, o.Cluster.Image.Flavour
	}
	var problems []error
	add := func(err error) { problems = append(problems, err) }
	r.env, err = parseEnv(o.Env)
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
		_, err = r.definition.BaseImages(r.args)
		add(err)
		r.variant, r.varies = o.variant(images, r)
	}
	return r, errors.Join(problems...)
}

// variant keeps a build that differs from the flavour of the cluster file from taking the tag that others use: mlenv up takes its
// image, and their runs find it built. Users name the tag of a folder of their own themselves.
func (o *Options) variant(images fs.FS, r request) (variant, varies string) {
	known, _ := Flavours(images) // without flavours there is none to protect
	usual, _ := (&Options{Cluster: o.Cluster}).args()
	switch {
	case o.Folder != "" && slices.Contains(known, r.definition.Flavour):
		varies = "the folder is not that of flavour " + r.definition.Flavour
	case o.Folder != "":
		return "", ""
	case !slices.Equal(usual, r.args):
		varies = "its build arguments are not those of the cluster file"
	case len(r.env) > 0:
		varies = "it has variables of its own"
	default:
		return "", ""
	}
	text, err := json.Marshal([]any{o.Folder != "", r.args, r.env})
	if err != nil {
		panic(err) // strings and a boolean
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:4]), varies
}

func (o *Options) definition(images fs.FS, flavour string) (*Definition, error) {
	if o.Folder == "" {
		if flavour == "" {
			known, err := Flavours(images)
			return nil,
				errors.Join(err, fmt.Errorf("no image is named: want --flavour (%s), --folder or --image, or image.flavour in the cluster file",
					strings.Join(known, ", ")))
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
	return ReadDefinition(name, claimfile.FolderFS(folder))
}

// args returns the build arguments: the cluster file's, then the options'.
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
	return parseArgs("--build-args", append(all, o.BuildArgs...))
}

// undeclared reports build arguments that the Dockerfile does not declare, which a build would ignore.
func undeclared(d *Definition, args []Arg) error {
	var problems []error
	declared := d.ArgNames()
	for _, arg := range args {
		if !slices.Contains(declared, arg.Name) {
			problems = append(problems, fmt.Errorf("build argument %s: the Dockerfile of %s has no such ARG; it has %s", arg.Name, d.Flavour,
				cmp.Or(strings.Join(declared, ", "), "none")))
		}
	}
	return errors.Join(problems...)
}

// internal reports whether all bases are in OpenShift's own registry. The account builder pulls them, but not if the build names a Secret.
func internal(bases []string) bool {
	return !slices.ContainsFunc(bases, func(base string) bool {
		_, _, ok := kube.InternalImage(base)
		return !ok
	})
}

func (o *Options) builder(d Deps, clients *kube.Clients, registry *Registry, asked request) (*builder, error) {
	builds, err := buildclient.NewForConfig(clients.Config)
	if err != nil {
		return nil, fail.Becausef(fail.InvalidInput, "creating a client for builds: %w", err)
	}
	images, err := imageclient.NewForConfig(clients.Config)
	if err != nil {
		return nil, fail.Becausef(fail.InvalidInput, "creating a client for images: %w", err)
	}
	file, out := o.Cluster, d.Out
	if out == nil {
		out = records(d.Log)
	}
	pullSecret := cmp.Or(o.PullSecret, file.Image.BasePullSecret)
	if bases, err := asked.definition.BaseImages(asked.args); pullSecret == "" && (err != nil || !internal(bases)) {
		pullSecret = file.Image.PullSecret
	}
	if pullSecret == "-" {
		pullSecret = ""
	}
	return &builder{
		plan: plan{
			namespace: clients.Namespace, flavour: asked.definition.Flavour, variant: asked.variant, varies: asked.varies,
			inputs: inputs{BuildArgs: asked.args, Env: asked.env}, passing: proxies(file.Network.Proxy),
			pullSecret: pullSecret, pushSecret: o.PushSecret, resources: file.Image.BuildResources, deadline: o.Timeout,
		},
		definition: asked.definition, trustedCA: cmp.Or(file.Network.TrustedCA, cluster.TrustedCA), force: o.Force, podTimeout: podTime,
		holder: o.holder(), caller: rand.Text(),
		enough: func(ctx context.Context) error { return o.enough(ctx, clients) }, needed: func(ctx context.Context) error {
			return o.needed(ctx, clients)
		},
		builds: builds.BuildV1(), images: images.ImageV1(), kube: clients.Kube, registry: registry, log: d.Log, out: out,
		now: time.Now, patience: kube.Patience,
	}, nil
}

// enough checks that the PipelineRun, if any, has time for a build and the tasks after it.
func (o *Options) enough(ctx context.Context, clients *kube.Clients) error {
	if o.Run.Name == "" {
		return nil
	}
	r, err := run.Get(ctx, clients.Tekton, clients.Namespace, o.Run.Name)
	if err != nil {
		return err
	}
	needs := run.Needs{Build: o.Timeout, Start: o.StartTimeout, Training: o.TrainingTimeout, Teardown: run.TeardownTime}
	return run.CheckTimeouts(r, needs, clients.Now())
}

// needed fails as preflight has: no task of this run will use the image, and Tekton ends a run only when its tasks have ended.
func (o *Options) needed(ctx context.Context, clients *kube.Clients) error {
	if o.Run.Name == "" {
		return nil
	}
	tasks, _ := run.TaskRuns(ctx, clients.Tekton, clients.Namespace, o.Run.Name, types.UID(o.Run.UID)) // a build does no harm
	i := slices.IndexFunc(tasks, func(task run.TaskRun) bool { return task.Task == "preflight" && task.Status == run.Failed })
	if i < 0 {
		return nil
	}
	return &command.Exit{Code: command.Failed, Err: fail.Becausef(tasks[i].Reason, "%s", tasks[i].Message), Told: true}
}

func (o *Options) holder() string {
	if o.Run.Name != "" {
		return "run " + o.Run.Name
	}
	name, host := "somebody", "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if h, err := os.Hostname(); err == nil {
		host = h
	}
	return name + "@" + host
}

// proxies returns build arguments that need no ARG and do not stay in the image.
func proxies(p cluster.Proxy) (args []Arg) {
	for name, value := range map[string]string{"HTTP_PROXY": p.HTTP, "HTTPS_PROXY": p.HTTPS, "NO_PROXY": strings.Join(p.NoProxy, ",")} {
		if value != "" {
			args = append(args, Arg{name, value}, Arg{strings.ToLower(name), value})
		}
	}
	slices.SortFunc(args, func(a, b Arg) int { return strings.Compare(a.Name, b.Name) })
	return args
}
