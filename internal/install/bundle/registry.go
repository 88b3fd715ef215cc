package bundle

import (
	"context"
	"fmt"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

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
