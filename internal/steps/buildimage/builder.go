package buildimage

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	buildv1 "github.com/openshift/api/build/v1"
	imagev1 "github.com/openshift/api/image/v1"
	buildclient "github.com/openshift/client-go/build/clientset/versioned/typed/build/v1"
	imageclient "github.com/openshift/client-go/image/clientset/versioned/typed/image/v1"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// Image is what a build gives.
type Image struct {
	// URL is the image by its tag, Reference by its digest where that is known.
	URL, Digest, Reference string
}

// builder builds one image.
type builder struct {
	definition *Definition
	buildArgs  []Arg
	// env stays in the image; proxies change nothing of it.
	env, proxies []Arg
	// trustedCA is the ConfigMap with the certificates that a build shall trust,
	// where it exists.
	trustedCA              string
	pullSecret, pushSecret string
	resources              cluster.BuildResources
	// force builds although there is an image of the same inputs.
	force bool
	// podTimeout is what a build may take until it runs, timeout what it may run.
	podTimeout, timeout time.Duration
	// enough is an error where the PipelineRun would end before the work can.
	enough func(context.Context) error
	// holder says who builds, for people.
	holder string

	namespace string
	builds    buildclient.BuildV1Interface
	images    imageclient.ImageV1Interface
	kube      kubernetes.Interface
	registry  *Registry
	log       *slog.Logger
	out       io.Writer
	now       func() time.Time

	// plan is known once prepare is done.
	plan plan
}

// attempts is how often a build that somebody else has cancelled is started anew.
const attempts = 3

// run gives the image, built now or before.
func (b *builder) run(ctx context.Context) (Image, error) {
	began := b.now()
	found, err := b.prepare(ctx)
	if err != nil {
		return Image{}, err
	}
	if image, ok := b.built(ctx, found); ok {
		b.log.Info(fmt.Sprintf("Nothing is built: %s was built from the same Dockerfile, folder, arguments and base on %s. --force builds it again. (%.1f s)",
			image.Reference, found.CreationTimestamp.UTC().Format("2006-01-02 15:04 MST"), b.now().Sub(began).Seconds()), "image", image.Reference, "built", found.CreationTimestamp.UTC(), "seconds", b.now().Sub(began).Seconds())
		return image, nil
	}
	if err := b.enough(ctx); err != nil {
		return Image{}, err
	}
	for attempt := 1; ; attempt++ {
		build, started, err := b.joinOrStart(ctx)
		if err != nil {
			return Image{}, err
		}
		err = b.follow(ctx, build, started)
		var other *cancelledByOther
		if errors.As(err, &other) && attempt < attempts {
			b.log.Warn(fmt.Sprintf("Build %s, which somebody else had started, was cancelled. Building it anew.", build.Name), "build", build.Name)
			continue
		}
		if err != nil {
			return Image{}, err
		}
		image, err := b.result(ctx, build.Name)
		if err == nil {
			b.log.Info(fmt.Sprintf("Built %s in %.0f s.", image.Reference, b.now().Sub(began).Seconds()), "image", image.Reference, "seconds", b.now().Sub(began).Seconds())
		}
		return image, err
	}
}

// prepare finds out everything that decides whether there is something to build.
// found is the flavour's image as it is, nil for none.
func (b *builder) prepare(ctx context.Context) (found *imagev1.ImageStreamTag, err error) {
	files, err := b.definition.scan()
	if err != nil {
		return nil, err
	}
	bases, err := b.definition.Bases(b.buildArgs)
	if err != nil {
		return nil, err
	}
	digests := map[string]string{}
	var mu sync.Mutex
	trust := ""
	group, ctx := errgroup.WithContext(ctx)
	for _, base := range bases {
		group.Go(func() error {
			digest, err := b.registry.digest(ctx, base)
			if err != nil && ctx.Err() == nil {
				b.log.Warn(fmt.Sprintf("Which image %s is now could not be read; the build will see. (%v)", base, firstLine(err)), "image", base, "error", err)
			}
			mu.Lock()
			defer mu.Unlock()
			digests[base] = digest
			return nil
		})
	}
	group.Go(func() error {
		tag, err := b.images.ImageStreamTags(b.namespace).Get(ctx, StreamName+":"+b.definition.Flavour, metav1.GetOptions{})
		if noSuchAPI(err) {
			return b.noBuildAPI(err)
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return kube.Problem(fmt.Errorf("reading imagestreamtag %s/%s:%s: %w", b.namespace, StreamName, b.definition.Flavour, err))
		}
		if err == nil {
			found = tag
		}
		return nil
	})
	group.Go(func() error {
		if b.trustedCA == "" {
			return nil
		}
		config, err := b.kube.CoreV1().ConfigMaps(b.namespace).Get(ctx, b.trustedCA, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return kube.Problem(fmt.Errorf("reading configmap %s/%s: %w", b.namespace, b.trustedCA, err))
		case config.Data[cluster.TrustedCAKey] != "":
			trust = b.trustedCA
		}
		return nil
	})
	if err := group.Wait(); err != nil {
		return nil, err
	}
	b.plan = plan{
		namespace: b.namespace, flavour: b.definition.Flavour, pullSecret: b.pullSecret, pushSecret: b.pushSecret, trust: trust,
		resources: b.resources, deadline: b.timeout, passing: slices.Clone(b.proxies),
		inputs: inputs{
			Strategy: string(buildv1.DockerBuildStrategyType), Dockerfile: string(b.definition.dockerfile),
			BuildArgs: b.buildArgs, Env: b.env, Context: files, Bases: digests,
		},
	}
	if trust != "" {
		declared := b.definition.Args()
		for _, name := range trustedCAArgs {
			if slices.Contains(declared, name) {
				b.plan.passing = append(b.plan.passing, Arg{name, trustedCA})
			}
		}
	}
	return found, nil
}

// noSuchAPI is true of the answer that there is no such kind of object, which is
// another one than that there is no such object.
func noSuchAPI(err error) bool {
	var status apierrors.APIStatus
	return apierrors.IsNotFound(err) && errors.As(err, &status) && (status.Status().Details == nil || status.Status().Details.Name == "")
}

func (b *builder) noBuildAPI(err error) error {
	return fail.Advise(fail.Becausef(fail.BuildUnavailable, "building image %s: this cluster has no build.openshift.io and image.openshift.io: %w", b.definition.Flavour, err),
		"name a finished image: param image, or image.name in the cluster file")
}

// built tells whether the tag's image is of the same inputs and still there.
func (b *builder) built(ctx context.Context, tag *imagev1.ImageStreamTag) (Image, bool) {
	if b.force || tag == nil || tag.Image.DockerImageReference == "" {
		return Image{}, false
	}
	labels := imageLabels(&tag.Image)
	unresolved := b.plan.inputs.unresolved()
	switch {
	case labels[inputsLabel] == "":
		b.log.Info(fmt.Sprintf("There is an image %s that this was not built by; building.", tag.Name), "image", tag.Name)
		return Image{}, false
	case labels[inputsLabel] == b.plan.inputs.fingerprint():
	case len(unresolved) > 0 && labels[inputsWithoutBasesLabel] == b.plan.inputs.withoutBases():
		b.log.Warn(fmt.Sprintf("Whether %s is still the image that %s was built on is not known; the image of then is taken.", strings.Join(unresolved, " and "), tag.Name), "images", unresolved, "image", tag.Name)
	case labels[inputsWithoutBasesLabel] == b.plan.inputs.withoutBases():
		b.log.Info(fmt.Sprintf("The base has changed: it was %s, it is %s now; building.", labels[baseDigestsLabel], b.plan.inputs.basesText()), "earlierBase", labels[baseDigestsLabel], "base", b.plan.inputs.basesText())
		return Image{}, false
	default:
		b.log.Info(fmt.Sprintf("The Dockerfile, its folder or its arguments have changed since %s was built; building.", tag.Name), "image", tag.Name)
		return Image{}, false
	}
	image := imageOf(tag)
	if b.registry.gone(ctx, image.Reference) {
		b.log.Info(fmt.Sprintf("Image %s is not in the registry any more; building.", image.Reference), "image", image.Reference)
		return Image{}, false
	}
	return image, true
}

// result is the image of a build that is complete.
func (b *builder) result(ctx context.Context, name string) (Image, error) {
	build, err := b.builds.Builds(b.namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return Image{}, kube.Problem(fmt.Errorf("reading build %s/%s: %w", b.namespace, name, err))
	}
	digest := ""
	if to := build.Status.Output.To; to != nil {
		digest = to.ImageDigest
	}
	if repository, _, ok := cutTag(build.Status.OutputDockerImageReference); ok && digest != "" {
		return Image{URL: build.Status.OutputDockerImageReference, Digest: digest, Reference: repository + "@" + digest}, nil
	}
	// The builder may not have understood the registry's answer; the stream knows.
	tag, err := b.images.ImageStreamTags(b.namespace).Get(ctx, StreamName+":"+b.definition.Flavour, metav1.GetOptions{})
	if err != nil {
		return Image{}, kube.Problem(fmt.Errorf("reading imagestreamtag %s/%s:%s of build %s: %w", b.namespace, StreamName, b.definition.Flavour, name, err))
	}
	return imageOf(tag), nil
}

// Built is the image that was last built of a flavour. Errors: InvalidInput where there is none.
func Built(ctx context.Context, images imageclient.ImageV1Interface, namespace, flavour string) (Image, error) {
	name := StreamName + ":" + flavour
	tag, err := images.ImageStreamTags(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && tag.Image.DockerImageReference == "":
		return Image{}, fail.Becausef(fail.InvalidInput, "looking for the image of flavour %s: there is no imagestreamtag %s/%s", flavour, namespace, name)
	case err != nil:
		return Image{}, kube.Problem(fmt.Errorf("reading imagestreamtag %s/%s: %w", namespace, name, err))
	}
	return imageOf(tag), nil
}

// imageOf is the image of a tag. Its reference is by digest.
func imageOf(tag *imagev1.ImageStreamTag) Image {
	repository, digest, _ := strings.Cut(tag.Image.DockerImageReference, "@")
	_, name, _ := strings.Cut(tag.Name, ":")
	return Image{URL: repository + ":" + name, Digest: cmp.Or(digest, tag.Image.Name), Reference: tag.Image.DockerImageReference}
}

// cutTag cuts the tag from an image's name; a colon before the last slash is a port's.
func cutTag(image string) (repository, tag string, ok bool) {
	at := strings.LastIndex(image, ":")
	if at <= strings.LastIndex(image, "/") {
		return image, "", false
	}
	return image[:at], image[at+1:], true
}

// imageLabels are in the image's configuration, of which the API server says
// nothing but that it is JSON.
func imageLabels(image *imagev1.Image) map[string]string {
	var config struct {
		Config struct{ Labels map[string]string }
	}
	// What cannot be read has no labels: it is built anew.
	_ = json.Unmarshal(image.DockerImageMetadata.Raw, &config)
	return config.Config.Labels
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}
