// SPDX-License-Identifier: Apache-2.0

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

// Push pushes an index with its images, with the credentials of docker or podman, and returns its reference by digest.
func Push(ctx context.Context, to name.Reference, index v1.ImageIndex) (string, error) {
	digest, err := index.Digest()
	if err != nil {
		return "", fmt.Errorf("pushing %s: %w", to, err)
	}
	if err := remote.Push(to, index, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
		return "", fail.Advise(fmt.Errorf("pushing %s: %w", to, err), "podman login %s", to.Context().RegistryStr())
	}
	return to.Context().Digest(digest.String()).Name(), nil
}
