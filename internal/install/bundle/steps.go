// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
)

// StepsRelease is the steps image of several platforms.
type StepsRelease struct {
	Index v1.ImageIndex
	Base  Base
}

// Ingredients are what a steps image has besides the programs.
type Ingredients struct {
	Base Base
	// Roots are certificate authorities, PEM; empty for none.
	Roots []byte
	// Licences is the folder of the terms of what is linked into the programs, "" for none.
	Licences string
	// Spy returns py-spy for a platform: FetchSpy does.
	Spy func(context.Context, v1.Platform) (Spy, error)
}

// BuildSteps compiles the programs for the platforms into folders below dir and builds the image from them.
func (s Source) BuildSteps(
	ctx context.Context, progress io.Writer, dir string, platforms []v1.Platform, with Ingredients,
) (StepsRelease, error) {
	release := StepsRelease{Base: with.Base}
	var images []v1.Image
	for _, platform := range platforms {
		fmt.Fprintf(progress, "compiling the steps and the agent for %s, version %s\n", platform, s.Version)
		into := filepath.Join(dir, platform.OS+"-"+platform.Architecture)
		if err := os.MkdirAll(into, 0o755); err != nil {
			return StepsRelease{}, err
		}
		contents, err := s.Compile(ctx, into, platform)
		if err != nil {
			return StepsRelease{}, err
		}
		contents.Base, contents.Roots, contents.Licences = with.Base, with.Roots, with.Licences
		if contents.Spy, err = with.Spy(ctx, platform); err != nil {
			return StepsRelease{}, err
		}
		image, err := StepsImage(contents)
		if err != nil {
			return StepsRelease{}, err
		}
		images = append(images, image)
	}
	var err error
	release.Index, err = StepsIndex(s, with.Base, images)
	return release, err
}

// Push pushes the image, and returns its reference by digest.
func (r StepsRelease) Push(ctx context.Context, progress io.Writer, to name.Reference) (string, error) {
	fmt.Fprintf(progress, "pushing %s\n", to)
	return Push(ctx, to, r.Index)
}

// Layout writes the image as an OCI layout into the folder dir, for skopeo, crane and oras. as is its tag or its whole reference.
func (r StepsRelease) Layout(dir, as string) error {
	store, err := layout.Write(dir, empty.Index)
	if err == nil {
		err = store.AppendIndex(r.Index, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": as}))
	}
	if err != nil {
		return fmt.Errorf("writing %s into the layout %s: %w", as, dir, err)
	}
	return nil
}
