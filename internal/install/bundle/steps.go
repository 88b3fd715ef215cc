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
)

// StepsRelease is the steps image of several platforms and its referrers.
type StepsRelease struct {
	Index v1.ImageIndex
	Base  Base
	SBOM  []byte
	// Referrers attach the bill to the index and to each platform's image.
	Referrers []v1.Image
}

// BuildSteps compiles the programs for the platforms into folders below dir and builds the image from them, with what spy
// returns: FetchSpy does.
func (s Source) BuildSteps(ctx context.Context, progress io.Writer, dir string, platforms []v1.Platform, base Base, roots []byte, spy func(context.Context, v1.Platform) (Spy, error)) (StepsRelease, error) {
	var images []v1.Image
	var products []Product
	var programs []string
	var tools []Licence // the same for all platforms
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
		if contents.Spy, err = spy(ctx, platform); err != nil {
			return StepsRelease{}, err
		}
		tools = []Licence{contents.Spy.Licence}
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
		products = append(products, Product{Name: "steps image for " + platform.String(), Image: digest, Tools: tools, Programs: []string{contents.Program, contents.Agent}})
	}
	licences, err := s.Licences(ctx, programs...)
	if err != nil {
		return StepsRelease{}, err
	}
	licences = append(licences, tools...)
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

// Push pushes the image, then its referrers, and returns the image's reference by digest.
func (r StepsRelease) Push(ctx context.Context, progress io.Writer, to name.Reference) (string, error) {
	fmt.Fprintf(progress, "pushing %s\n", to)
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

// Layout writes the image and its referrers as an OCI layout into the folder dir.
func (r StepsRelease) Layout(dir, as string) error {
	artefacts := []Artefact{{r.Index, as}}
	for _, referrer := range r.Referrers {
		artefacts = append(artefacts, Artefact{What: referrer})
	}
	return WriteLayout(dir, artefacts...)
}
