package install

import (
	"context"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// byDigest is the image's reference with its digest, asked of the registry where
// the reference has none: Tasks must not change under a run, nor the agents of a
// live environment.
func byDigest(ctx context.Context, image string) (string, error) {
	reference, err := name.ParseReference(image)
	if err != nil {
		return "", fail.Becausef(fail.InvalidInput, "reading --steps-image: %w", err)
	}
	if digest, ok := reference.(name.Digest); ok {
		return digest.Name(), nil
	}
	found, err := remote.Head(reference, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain))
	if err != nil {
		return "", fail.Advise(fail.Becausef(fail.ImageUnavailable, "asking for the digest of %s: %w", reference, err),
			"give it by digest, as mlenv bundle steps-image --push printed it: --steps-image=%s@sha256:...", reference.Context())
	}
	return reference.Context().Digest(found.Digest.String()).Name(), nil
}
