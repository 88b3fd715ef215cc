package bundle

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"

	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

// StepsRelease is the steps image of several platforms and what hangs on it.
type StepsRelease struct {
	Index v1.ImageIndex
	// Base is what the image is built on.
	Base Base
	// SBOM is the bill of materials of all platforms.
	SBOM []byte
	// Referrers hang the bill on the index and on each platform's image.
	Referrers []v1.Image
}

// BuildSteps compiles the programs for the platforms into folders below dir and
// makes the image of them. What goes on is told on progress.
func (s Source) BuildSteps(ctx context.Context, progress io.Writer, dir string, platforms []v1.Platform, base Base, roots []byte) (StepsRelease, error) {
	var images []v1.Image
	var products []Product
	var programs []string
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
		if contents.Licences, err = s.Licences(ctx, contents.Program, contents.Agent); err != nil {
			return StepsRelease{}, err
		}
		contents.Base, contents.Roots = base, roots
		image, err := StepsImage(contents)
		if err != nil {
			return StepsRelease{}, err
		}
		digest, err := image.Digest()
		if err != nil {
			return StepsRelease{}, err
		}
		images = append(images, image)
		programs = append(programs, contents.Program, contents.Agent)
		products = append(products, Product{Name: "steps image for " + platform.String(), Image: digest, Programs: []string{contents.Program, contents.Agent}})
	}
	licences, err := s.Licences(ctx, programs...)
	if err != nil {
		return StepsRelease{}, err
	}
	release := StepsRelease{Base: base}
	if release.Index, err = StepsIndex(s, base, images); err != nil {
		return StepsRelease{}, err
	}
	if release.SBOM, err = s.SBOM(products, licences); err != nil {
		return StepsRelease{}, err
	}
	subjects := []partial.Describable{release.Index}
	for _, image := range images {
		subjects = append(subjects, image)
	}
	for _, subject := range subjects {
		referrer, err := Referrer(subject, release.SBOM, spdxType)
		if err != nil {
			return StepsRelease{}, err
		}
		release.Referrers = append(release.Referrers, referrer)
	}
	return release, nil
}

// Push pushes the image, then what hangs on it, and returns the image's
// reference by digest.
func (r StepsRelease) Push(ctx context.Context, progress io.Writer, to name.Reference) (string, error) {
	size, err := r.size()
	if err != nil {
		return "", err
	}
	fmt.Fprintf(progress, "pushing %s\n", humanize.Bytes(size))
	reference, err := Push(ctx, to, r.Index)
	if err != nil {
		return "", err
	}
	for _, referrer := range r.Referrers {
		digest, err := referrer.Digest()
		if err != nil {
			return "", err
		}
		if _, err := Push(ctx, to.Context().Digest(digest.String()), referrer); err != nil {
			return "", err
		}
	}
	return reference, nil
}

// size is what all platforms' nodes have to pull, in bytes.
func (r StepsRelease) size() (int64, error) {
	manifest, err := r.Index.IndexManifest()
	if err != nil {
		return 0, err
	}
	var sum int64
	for _, each := range manifest.Manifests {
		image, err := r.Index.Image(each.Digest)
		if err != nil {
			return 0, err
		}
		layers, err := image.Layers()
		if err != nil {
			return 0, err
		}
		for _, layer := range layers {
			size, err := layer.Size()
			if err != nil {
				return 0, err
			}
			sum += size
		}
	}
	return sum, nil
}

// Layout writes the image and what hangs on it as an OCI layout into the folder
// dir, under the name in which it is known.
func (r StepsRelease) Layout(dir, as string) error {
	artefacts := []Artefact{{r.Index, as}}
	for _, referrer := range r.Referrers {
		artefacts = append(artefacts, Artefact{What: referrer})
	}
	return WriteLayout(dir, artefacts...)
}
