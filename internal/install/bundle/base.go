// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"bytes"
	"context"
	"encoding/pem"
	"fmt"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	mozilla "golang.org/x/crypto/x509roots/fallback/bundle"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// DefaultBase is the default base of the steps image: it has git, git-lfs, certificate authorities and a non-root user,
// for both platforms.
const DefaultBase = "cgr.dev/chainguard/git:latest"

// Base is the base of a steps image; the zero value is none.
type Base struct {
	// Name is its reference without the digest.
	Name string
	// Digest identifies the index of all platforms.
	Digest v1.Hash
	image  func(v1.Platform) (v1.Image, error)
}

// Reference returns the base by digest.
func (b Base) Reference() string { return b.Name + "@" + b.Digest.String() }

// ResolveBase asks the registry for an image's digest, with the credentials of docker or podman.
func ResolveBase(ctx context.Context, reference string) (Base, error) {
	ref, err := name.ParseReference(reference)
	if err != nil {
		return Base{}, fail.Becausef(fail.InvalidInput, "reading --base: %w", err)
	}
	options := []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)}
	found, err := remote.Get(ref, options...)
	if err != nil {
		return Base{}, fail.Advise(fmt.Errorf("resolving base image %s: %w", reference, err),
			"choose an image with git and git-lfs that this machine can pull: --base=IMAGE")
	}
	base := Base{Digest: found.Digest}
	base.Name, _, _ = strings.Cut(reference, "@")
	base.image = func(platform v1.Platform) (v1.Image, error) {
		image, err := remote.Image(ref.Context().Digest(found.Digest.String()), append(options, remote.WithPlatform(platform))...)
		if err != nil {
			return nil, fmt.Errorf("pulling base image %s for %s: %w", base.Reference(), platform, err)
		}
		config, err := image.ConfigFile()
		if err != nil {
			return nil, fmt.Errorf("pulling base image %s for %s: %w", base.Reference(), platform, err)
		}
		if config.OS != platform.OS || config.Architecture != platform.Architecture {
			return nil, fail.Becausef(fail.InvalidInput, "pulling base image %s: it is for %s/%s: want %s", base.Reference(), config.OS,
				config.Architecture, platform)
		}
		return image, nil
	}
	return base, nil
}

func (b Base) labels(all map[string]string) map[string]string {
	if b.Name != "" {
		all["org.opencontainers.image.base.name"] = b.Name
		all["org.opencontainers.image.base.digest"] = b.Digest.String()
	}
	return all
}

// environment returns the base's environment with the steps in PATH.
func environment(base []string) []string {
	const steps = "/ko-app"
	for i, variable := range base {
		if path, ok := strings.CutPrefix(variable, "PATH="); ok {
			base[i] = "PATH=" + steps + ":" + path
			return base
		}
	}
	return append(base, "PATH="+steps+":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
}

// MozillaRoots returns the certificate authorities of Mozilla's list as PEM, the same on any machine. It omits authorities
// that are trusted for older certificates only, because PEM cannot express that.
func MozillaRoots() ([]byte, error) {
	var all bytes.Buffer
	for root := range mozilla.Roots() {
		if root.Constraint != nil {
			continue
		}
		if err := pem.Encode(&all, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
			return nil, err
		}
	}
	return all.Bytes(), nil
}
