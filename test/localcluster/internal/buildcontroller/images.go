// SPDX-License-Identifier: Apache-2.0

package buildcontroller

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/openshift/api/image/docker10"
	imagev1 "github.com/openshift/api/image/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/retry"
)

// fetchImage reads an image's manifest and configuration from its registry, with the credentials in DOCKER_CONFIG.
func fetchImage(ctx context.Context, reference string) (*imagev1.Image, error) {
	ref, err := name.ParseReference(reference)
	if err != nil {
		return nil, err
	}
	img, err := remote.Image(ref, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain),
		remote.WithPlatform(v1.Platform{OS: "linux", Architecture: "amd64"}))
	if err != nil {
		return nil, err
	}
	return describe(ref, img)
}

func describe(ref name.Reference, img v1.Image) (*imagev1.Image, error) {
	digest, err := img.Digest()
	if err != nil {
		return nil, err
	}
	manifest, err := img.Manifest()
	if err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	image := &imagev1.Image{
		ObjectMeta: metav1.ObjectMeta{
			Name:        digest.String(),
			Annotations: map[string]string{"image.openshift.io/dockerLayersOrder": "ascending"},
		},
		DockerImageReference:         ref.Context().Digest(digest.String()).String(),
		DockerImageMetadataVersion:   "1.0",
		DockerImageManifestMediaType: string(manifest.MediaType),
	}
	size := manifest.Config.Size
	for _, l := range manifest.Layers {
		size += l.Size
		image.DockerImageLayers = append(image.DockerImageLayers, imagev1.ImageLayer{Name: l.Digest.String(), LayerSize: l.Size,
			MediaType: string(l.MediaType)})
	}
	metadata, err := json.Marshal(docker10.DockerImage{
		TypeMeta:     metav1.TypeMeta{Kind: "DockerImage", APIVersion: docker10.GroupVersion.String()},
		ID:           manifest.Config.Digest.String(),
		Created:      metav1.NewTime(config.Created.Time),
		Author:       config.Author,
		Architecture: config.Architecture,
		Size:         size,
		Config: &docker10.DockerConfig{
			User: config.Config.User, Env: config.Config.Env, Cmd: config.Config.Cmd, Entrypoint: config.Config.Entrypoint,
			WorkingDir: config.Config.WorkingDir, Labels: config.Config.Labels, ExposedPorts: config.Config.ExposedPorts,
			Volumes: config.Config.Volumes,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("describing image %s: %w", ref, err)
	}
	image.DockerImageMetadata = runtime.RawExtension{Raw: metadata}
	return image, nil
}

// tagImage stores the image and inserts it before the tag's earlier images.
func (c *controller) tagImage(ctx context.Context, namespace, stream, tag string, image *imagev1.Image, generation int64) error {
	if _, err := c.Images.Images().Create(ctx, image, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return c.changeTag(ctx, namespace, stream, tag, func(history *imagev1.NamedTagEventList) {
		history.Conditions = nil
		if len(history.Items) > 0 && history.Items[0].Image == image.Name {
			history.Items[0].Generation = max(history.Items[0].Generation, generation)
			return
		}
		history.Items = append([]imagev1.TagEvent{{
			Created: metav1.Now(), DockerImageReference: image.DockerImageReference, Image: image.Name, Generation: generation,
		}}, history.Items...)
	})
}

func (c *controller) noteImportFailure(ctx context.Context, stream *imagev1.ImageStream, tag string, why error) error {
	return c.changeTag(ctx, stream.Namespace, stream.Name, tag, func(history *imagev1.NamedTagEventList) {
		history.Conditions = []imagev1.TagEventCondition{{
			Type: imagev1.ImportSuccess, Status: corev1.ConditionFalse, LastTransitionTime: metav1.Now(),
			Reason: "InternalError", Message: why.Error(), Generation: stream.Generation,
		}}
	})
}

func (c *controller) changeTag(ctx context.Context, namespace, name, tag string, change func(*imagev1.NamedTagEventList)) error {
	streams := c.Images.ImageStreams(namespace)
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		stream, err := streams.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		tags := stream.Status.Tags
		i := 0
		for i < len(tags) && tags[i].Tag != tag {
			i++
		}
		if i == len(tags) {
			tags = append(tags, imagev1.NamedTagEventList{Tag: tag})
		}
		change(&tags[i])
		stream.Status.Tags = tags
		_, err = streams.UpdateStatus(ctx, stream, metav1.UpdateOptions{})
		return err
	})
}
