// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/registry"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/topology"
)

// Load pushes an image, from an archive as `docker save` writes it or from an
// OCI layout folder, to the cluster's registry and returns its reference there.
func Load(ctx context.Context, path, as string) (string, error) {
	if _, ok, err := Stored(); err != nil || !ok {
		return "", errors.Join(errors.New("there is no cluster to load an image into; run localcluster up"), err)
	}
	img, err := readImage(path)
	if err != nil {
		return "", fmt.Errorf("reading image %s: %w", path, err)
	}
	if as == "" {
		as, _, _ = strings.Cut(strings.ToLower(filepath.Base(path)), ".")
	}
	target, err := name.ParseReference(topology.RegistryHost + "/" + as)
	if err != nil {
		return "", fmt.Errorf("naming the image: %w; give a name with --as", err)
	}
	password, err := registry.Password(registryDir(), registry.ClusterUser)
	if err != nil {
		return "", err
	}
	login := remote.WithAuth(&authn.Basic{Username: registry.ClusterUser, Password: password})
	if err := remote.Write(target, img, remote.WithContext(ctx), login); err != nil {
		return "", fmt.Errorf("pushing to the cluster's registry: %w", err)
	}
	digest, err := img.Digest()
	if err != nil {
		return "", err
	}
	return target.Context().Digest(digest.String()).String(), nil
}

func readImage(path string) (v1.Image, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return tarball.ImageFromPath(path, nil)
	}
	index, err := layout.ImageIndexFromPath(path)
	if err != nil {
		return nil, err
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	if len(manifest.Manifests) != 1 {
		return nil, fmt.Errorf("the layout holds %d images; it must hold one", len(manifest.Manifests))
	}
	return index.Image(manifest.Manifests[0].Digest)
}
