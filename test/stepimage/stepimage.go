// SPDX-License-Identifier: Apache-2.0

// Package stepimage builds an image of the tests' own Tekton step, which contains only one static
// Go binary.
package stepimage

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// Build compiles the step, as /step, and writes its image as an OCI layout in
// the folder dir.
func Build(ctx context.Context, dir string) (v1.Hash, error) {
	const source = "github.com/ml-dev-env/ml-dev-env/test/stepimage/step"
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", filepath.Join(dir, "step"), source)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return v1.Hash{}, fmt.Errorf("compiling the step: %w\n%s", err, out)
	}
	archive := filepath.Join(dir, "layer.tar")
	if out, err := exec.CommandContext(ctx, "tar", "-C", dir, "-cf", archive, "step").CombinedOutput(); err != nil {
		return v1.Hash{}, fmt.Errorf("archiving the step: %w\n%s", err, out)
	}
	layer, err := tarball.LayerFromFile(archive)
	if err != nil {
		return v1.Hash{}, err
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return v1.Hash{}, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return v1.Hash{}, err
	}
	config.OS, config.Architecture = "linux", "amd64"
	if img, err = mutate.ConfigFile(img, config); err != nil {
		return v1.Hash{}, err
	}
	store, err := layout.Write(dir, empty.Index)
	if err != nil {
		return v1.Hash{}, err
	}
	if err := store.AppendImage(img); err != nil {
		return v1.Hash{}, err
	}
	return img.Digest()
}
