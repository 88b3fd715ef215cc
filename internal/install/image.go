package install

import (
	"context"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// byDigest is the image's reference with its digest, which it asks the registry for if necessary: neither the Tasks of a
// run nor the agents of an environment may change later.
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
			"name it by digest, as mlenv bundle steps-image --push prints it: --steps-image=%s@sha256:...", reference.Context())
	}
	return reference.Context().Digest(found.Digest.String()).Name(), nil
}
