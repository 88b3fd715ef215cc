// SPDX-License-Identifier: Apache-2.0

package buildimage

import (
	"context"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// Environment returns the variables that an image sets, as in PATH=/usr/bin, for a node of the first platform that the image has.
func (r *Registry) Environment(ctx context.Context, image string) ([]string, error) {
	ref, err := name.ParseReference(image)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, registryTime)
	defer cancel()
	found, err := remote.Image(ref, remote.WithContext(ctx), remote.WithAuthFromKeychain(r), remote.WithTransport(r.transport))
	if err != nil {
		return nil, err
	}
	config, err := found.ConfigFile()
	if err != nil {
		return nil, err
	}
	return config.Config.Env, nil
}
