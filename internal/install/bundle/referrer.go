package bundle

import (
	"fmt"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

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
