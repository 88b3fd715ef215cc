package bundle

import (
	"context"
	"fmt"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// Pushed is an image or an index of images.
type Pushed interface {
	remote.Taggable
	Digest() (v1.Hash, error)
}

// Push pushes an image or an index with its images, with the credentials of docker or podman, and returns its reference
// by digest.
func Push(ctx context.Context, to name.Reference, what Pushed) (string, error) {
	digest, err := what.Digest()
	if err != nil {
		return "", fmt.Errorf("pushing %s: %w", to, err)
	}
	if err := remote.Push(to, what, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
		return "", fail.Advise(fmt.Errorf("pushing %s: %w", to, err), "podman login %s", to.Context().RegistryStr())
	}
	return to.Context().Digest(digest.String()).Name(), nil
}

// Artefact is one entry of an OCI layout.
type Artefact struct {
	What Pushed
	// Name is its tag or its whole reference; empty for a referrer.
	Name string
}

// WriteLayout writes the artefacts as an OCI layout into the folder dir, for skopeo, crane and oras.
func WriteLayout(dir string, artefacts ...Artefact) error {
	store, err := layout.Write(dir, empty.Index)
	if err != nil {
		return fmt.Errorf("writing the layout %s: %w", dir, err)
	}
	for _, artefact := range artefacts {
		var options []layout.Option
		if artefact.Name != "" {
			options = append(options, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": artefact.Name}))
		}
		switch what := artefact.What.(type) {
		case v1.ImageIndex:
			err = store.AppendIndex(what, options...)
		case v1.Image:
			err = store.AppendImage(what, options...)
		default:
			err = fmt.Errorf("%T: want an image or an index", what)
		}
		if err != nil {
			return fmt.Errorf("writing %s into the layout %s: %w", artefact.Name, dir, err)
		}
	}
	return nil
}

// spdxType is the media type of a bill of materials; oras discover shows it.
const spdxType = "application/spdx+json"

// Referrer is a manifest that attaches the content to an image, as OCI 1.1 defines it: registries and oras find it by the
// image's digest.
func Referrer(to partial.Describable, content []byte, mediaType string) (v1.Image, error) {
	subject, err := partial.Descriptor(to)
	if err != nil {
		return nil, fmt.Errorf("referring to an image: %w", err)
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.MediaType(mediaType))
	if image, err = mutate.AppendLayers(image, static.NewLayer(content, types.MediaType(mediaType))); err != nil {
		return nil, fmt.Errorf("referring to %s: %w", subject.Digest, err)
	}
	// Without the platform, which tools would take for this manifest's own.
	return mutate.Subject(image, v1.Descriptor{MediaType: subject.MediaType, Digest: subject.Digest, Size: subject.Size}).(v1.Image), nil
}
