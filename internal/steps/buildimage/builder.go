// SPDX-License-Identifier: Apache-2.0

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

// Image is the result of a build.
type Image struct {
	// URL names the image by its tag, Reference by its digest if that is known.
	URL, Digest, Reference string
	// Built is true if this call started the build, and false for an image that existed or that another caller builds.
	Built bool
}

type builder struct {
	// plan is complete after prepare.
	plan
	definition *Definition
	// trustedCA is the ConfigMap of certificates that a build trusts, if it exists.
	trustedCA string
	// force builds even if an image with the same inputs exists.
	force bool
	// podTimeout is how long a build may take to start: podTime, except in tests.
	podTimeout time.Duration
	// enough fails if the PipelineRun would end before the work is done.
	enough func(context.Context) error
	// needed fails if no other task of the PipelineRun will use the image.
	needed func(context.Context) error
	// holder is the caller's name in messages; caller identifies it among others of the same name. former is caller in an earlier
	// request whose build did not receive the folder, "" for none.
	holder, caller, former string
	// failing is when the first such request failed, and patience how long others follow it.
	failing  time.Time
	patience time.Duration

	builds   buildclient.BuildV1Interface
	images   imageclient.ImageV1Interface
	kube     kubernetes.Interface
	registry *Registry
	log      *slog.Logger
	out      io.Writer
	now      func() time.Time
}

// attempts is how often run builds after another caller has cancelled the build that it followed, or the connection broke by which it
// sent the folder.
const attempts = 3

func (b *builder) run(ctx context.Context) (Image, error) {
	began := time.Now()
	found, err := b.prepare(ctx)
	if err != nil {
		return Image{}, err
	}
	if image, ok := b.built(ctx, found); ok {
		b.log.Info(fmt.Sprintf("Nothing is built: %s was built from the same Dockerfile, folder, arguments and base on %s. (%.1f s)",
			image.Reference, found.CreationTimestamp.UTC().Format("2006-01-02 15:04 MST"), time.Since(began).Seconds()))
		return image, nil
	}
	if err := b.enough(ctx); err != nil {
		return Image{}, err
	}
	if err := b.needed(ctx); err != nil {
		b.log.Info("Nothing is built: another task of this run has failed.")
		return Image{}, err
	}
	for attempt := 1; ; attempt++ {
		build, sending, err := b.joinOrStart(ctx)
		if err != nil {
			return Image{}, err
		}
		err = b.follow(ctx, build, sending)
		if errors.Is(err, errCancelledByOther) && attempt < attempts {
			b.log.Warn(fmt.Sprintf("Following build %s: %v. Starting a build.", build.Name, err))
			continue
		}
		if attempt < attempts && b.mayRepeat(ctx, err) {
			continue
		}
		if err != nil {
			return Image{}, err
		}
		image, err := b.result(ctx, build.Name)
		image.Built = sending != nil
		if err == nil {
			took := time.Since(began).Seconds()
			b.log.Info(fmt.Sprintf("Built %s in %.0f s.", image.Reference, took), "event", "image-built", "image", image.Reference, "seconds", took)
			if b.variant != "" {
				b.log.Info(fmt.Sprintf("Its tag is %s, because %s: tag %s stays as it is.", b.imageTag(), b.varies, b.flavour))
			}
		}
		return image, err
	}
}

// prepare collects everything that decides whether to build, and completes the plan. found is the flavour's image, nil for none.
func (b *builder) prepare(ctx context.Context) (found *imagev1.ImageStreamTag, err error) {
	files, err := b.definition.scanContext()
	if err != nil {
		return nil, err
	}
	bases, err := b.definition.BaseImages(b.inputs.BuildArgs)
	if err != nil {
		return nil, err
	}
	digests, trust := map[string]string{}, ""
	var mu sync.Mutex
	group, ctx := errgroup.WithContext(ctx)
	for _, base := range bases {
		group.Go(func() error {
			digest, err := b.baseDigest(ctx, base)
			if err != nil && ctx.Err() == nil {
				why, _, _ := strings.Cut(err.Error(), "\n")
				b.log.Warn(fmt.Sprintf("The digest of %s could not be read; the build pulls it all the same. (%v)", base, why))
			}
			mu.Lock()
			defer mu.Unlock()
			digests[base] = digest
			return nil
		})
	}
	group.Go(func() error {
		tag, err := b.images.ImageStreamTags(b.namespace).Get(ctx, StreamName+":"+b.imageTag(), metav1.GetOptions{})
		if noSuchAPI(err) || err != nil && !apierrors.IsNotFound(err) {
			return b.problem(fmt.Errorf("reading imagestreamtag %s/%s:%s: %w", b.namespace, StreamName, b.imageTag(), err))
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
	b.trust = trust
	b.inputs.Strategy, b.inputs.Dockerfile = string(buildv1.DockerBuildStrategyType), string(b.definition.dockerfile)
	b.inputs.Context, b.inputs.Bases = files, digests
	if b.trust != "" {
		declared := b.definition.ArgNames()
		for _, name := range trustedCAArgs {
			if slices.Contains(declared, name) {
				b.passing = append(b.passing, Arg{name, trustedCA})
			}
		}
	}
	return found, nil
}

// noSuchAPI reports whether the server lacks the kind of object, and not only the object: then its answer is a plain page.
func noSuchAPI(err error) bool {
	return apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// problem is kube.Problem, except on a cluster without one of the build APIs. A cluster can lack each of them, and refuses a
// caller without rights to an API before it looks whether the API exists.
func (b *builder) problem(err error) error {
	if !noSuchAPI(err) && !apierrors.IsForbidden(err) {
		return kube.Problem(err)
	}
	for _, group := range []string{buildv1.GroupVersion.String(), imagev1.GroupVersion.String()} {
		if _, missing := b.kube.Discovery().ServerResourcesForGroupVersion(group); apierrors.IsNotFound(missing) {
			return fail.Advise(fail.Becausef(fail.BuildUnavailable, "building image %s: this cluster has no API %s: %w", b.definition.Flavour, group,
				err),
				"name a finished image: param image, or image.name in the cluster file")
		}
	}
	return kube.Problem(err)
}

func (b *builder) built(ctx context.Context, tag *imagev1.ImageStreamTag) (Image, bool) {
	if b.force || tag == nil || tag.Image.DockerImageReference == "" {
		return Image{}, false
	}
	earlier := madeOf(imageLabels(&tag.Image))
	unknown, same := b.inputs.unknownBases(earlier)
	switch {
	case earlier.Inputs == "":
		b.log.Info(fmt.Sprintf("Image %s was not built by ml-dev-env; building.", tag.Name))
		return Image{}, false
	case same && len(unknown) > 0:
		b.log.Warn(fmt.Sprintf("Whether %s has changed since %s was built is unknown; using the image that was built then.",
			strings.Join(unknown, " or "), tag.Name))
	case same:
	case earlier.WithoutBases == b.inputs.withoutBases():
		b.log.Info(fmt.Sprintf("The base has changed from %s to %s; building.", earlier.Bases, b.inputs.basesText()))
		return Image{}, false
	default:
		b.log.Info(fmt.Sprintf("The Dockerfile, its folder or its arguments have changed since %s was built; building.", tag.Name))
		return Image{}, false
	}
	image := imageOf(tag)
	if exists, err := b.registry.Has(ctx, image.Reference); err == nil && !exists {
		b.log.Info(fmt.Sprintf("Image %s is no longer in the registry; building.", image.Reference))
		return Image{}, false
	}
	return image, true
}

func (b *builder) result(ctx context.Context, name string) (Image, error) {
	build, err := b.builds.Builds(b.namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return Image{}, kube.Problem(fmt.Errorf("reading build %s/%s: %w", b.namespace, name, err))
	}
	digest := ""
	if to := build.Status.Output.To; to != nil {
		digest = to.ImageDigest
	}
	url := build.Status.OutputDockerImageReference
	if repository := untagged(url); repository != url && digest != "" {
		return Image{URL: url, Digest: digest, Reference: repository + "@" + digest}, nil
	}
	// The builder may have missed the digest in the registry's answer; the stream has it.
	tag, err := b.images.ImageStreamTags(b.namespace).Get(ctx, StreamName+":"+b.imageTag(), metav1.GetOptions{})
	if err != nil {
		return Image{}, kube.Problem(fmt.Errorf("reading imagestreamtag %s/%s:%s of build %s: %w", b.namespace, StreamName, b.imageTag(), name,
			err))
	}
	return imageOf(tag), nil
}

// Tagged returns the image of a flavour by its tag in OpenShift's own registry, whether or not it exists.
func Tagged(namespace, flavour string) string {
	return openshiftRegistry + "/" + namespace + "/" + StreamName + ":" + flavour
}

// LastBuilt returns the image that was last built for a flavour. Errors: InvalidInput if there is none.
func LastBuilt(ctx context.Context, images imageclient.ImageV1Interface, namespace, flavour string) (Image, error) {
	name := StreamName + ":" + flavour
	tag, err := images.ImageStreamTags(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && tag.Image.DockerImageReference == "":
		return Image{}, fail.Becausef(fail.InvalidInput, "looking for the image of flavour %s: there is no imagestreamtag %s/%s", flavour,
			namespace, name)
	case err != nil:
		return Image{}, kube.Problem(fmt.Errorf("reading imagestreamtag %s/%s: %w", namespace, name, err))
	}
	return imageOf(tag), nil
}

func imageOf(tag *imagev1.ImageStreamTag) Image {
	repository, digest, _ := strings.Cut(tag.Image.DockerImageReference, "@")
	_, name, _ := strings.Cut(tag.Name, ":")
	return Image{URL: repository + ":" + name, Digest: cmp.Or(digest, tag.Image.Name), Reference: tag.Image.DockerImageReference}
}

func imageLabels(image *imagev1.Image) map[string]string {
	var config struct {
		Config struct{ Labels map[string]string }
	}
	// An image with an unreadable configuration has no labels and is built again.
	_ = json.Unmarshal(image.DockerImageMetadata.Raw, &config)
	return config.Config.Labels
}
