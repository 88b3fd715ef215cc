package diagnose

import (
	"context"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

// sizeTime is what the registry has to answer. The size is only shown.
const sizeTime = 5 * time.Second

// ImageSize asks the image's registry, without credentials, for the image's
// compressed size: what a node without any of its layers has to pull. It is not
// ok where the registry does not say, for whatever cause. Of an image for several
// processors it is the one for amd64.
func ImageSize(ctx context.Context, image string) (compressed agent.Bytes, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, sizeTime)
	defer cancel()
	ref, err := name.ParseReference(image)
	if err != nil {
		return 0, false
	}
	found, err := remote.Image(ref, remote.WithContext(ctx), remote.WithAuth(authn.Anonymous))
	if err != nil {
		return 0, false
	}
	manifest, err := found.Manifest()
	if err != nil {
		return 0, false
	}
	compressed = agent.Bytes(manifest.Config.Size)
	for _, layer := range manifest.Layers {
		compressed += agent.Bytes(layer.Size)
	}
	return compressed, true
}
