// SPDX-License-Identifier: Apache-2.0

package release

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/install/bundle"
)

// The places of the version, and of the default of the param steps-image. They are replaced as text, so that comments
// and order stay.
var (
	versionLabel = regexp.MustCompile(`(?m)^(    app\.kubernetes\.io/version: )"[^"]*"$`)
	stepsDefault = regexp.MustCompile(`(?m)^(  - name: steps-image\n    description: [^\n]*\n    default: )\S+$`)
	// readmeVersion is in the lines of a README by which Tekton's resolvers find the release.
	readmeVersion = regexp.MustCompile(`(/tasks:|revision, value: )v[0-9][0-9A-Za-z.-]*`)
)

// Pin compiles the steps image on the newest base image, records the base's digest in install/steps-base, and writes the
// image's digest and the version into the Tasks and Pipelines and their READMEs, for git resolvers and Artifact Hub, and the version into
// the file by which the GitHub Action finds its mlenv. They are no sources of the image, so its digest stays the same.
func Pin(ctx context.Context, progress io.Writer, request Request) (name.Digest, error) {
	work, err := os.MkdirTemp("", "mlenv-pin-")
	if err != nil {
		return name.Digest{}, err
	}
	defer os.RemoveAll(work)
	if request.Base == "" {
		request.Base = bundle.DefaultBase
	}
	steps, image, err := request.steps(ctx, progress, work)
	if err != nil {
		return name.Digest{}, err
	}
	recorded := filepath.Join(request.Source.Dir, baseFile)
	if err := os.WriteFile(recorded, []byte(steps.Base.Reference()+"\n"), 0o644); err != nil {
		return name.Digest{}, err
	}
	return image, writePins(request.Source, image)
}

func writePins(source bundle.Source, image name.Digest) error {
	return eachFile(source.Dir, func(file, text string) error {
		pinned, err := pinFile(file, text, source.Version, image)
		if err != nil {
			return fmt.Errorf("pinning %s: %w", file, err)
		}
		return os.WriteFile(filepath.Join(source.Dir, file), []byte(pinned), 0o644)
	})
}

// CheckPins compares the version and the image in the Tasks and Pipelines with the version of the sources and with image.
func CheckPins(source bundle.Source, image name.Digest) error {
	var mistakes []error
	err := eachFile(source.Dir, func(file, text string) error {
		pinned, err := pinFile(file, text, source.Version, image)
		if err != nil {
			return fmt.Errorf("reading %s: %w", file, err)
		}
		switch {
		case pinned == text:
		case path.Base(file) == readme, file == actionFile:
			mistakes = append(mistakes, fmt.Errorf("reading %s: it names another version: want %s", file, source.Version))
		default:
			mistakes = append(mistakes, fmt.Errorf("reading %s: it names %s, version %s: want %s, version %s",
				file, lastPart(stepsDefault.FindString(text)), lastPart(versionLabel.FindString(text)), image.Name(),
				strings.TrimPrefix(source.Version, "v")))
		}
		return nil
	})
	if err = errors.Join(append(mistakes, err)...); err != nil {
		return fail.Advise(fail.Because(fail.InvalidInput, err), "make pin VERSION=%s, then commit and tag; or the sources have changed since",
			source.Version)
	}
	return nil
}

const (
	// readme is the page next to a Task or Pipeline.
	readme = "README.md"
	// actionFile has the release of mlenv that the GitHub Action downloads: a commit in a workflow's uses names no version. Main's has the
	// word source.
	actionFile = ".github/mlenv-version"
)

func pinFile(file, text, version string, image name.Digest) (string, error) {
	if file == actionFile {
		return version + "\n", nil
	}
	if path.Base(file) != readme {
		return pin(text, version, image)
	}
	// One line for each resolver.
	if n := len(readmeVersion.FindAllString(text, -1)); n != 2 {
		return "", fmt.Errorf("versions for resolvers: found %d, want 2", n)
	}
	return readmeVersion.ReplaceAllString(text, "${1}"+version), nil
}

func pin(text, version string, image name.Digest) (string, error) {
	for what, place := range map[string]*regexp.Regexp{"label app.kubernetes.io/version": versionLabel,
		"default of the param steps-image": stepsDefault} {
		if n := len(place.FindAllString(text, -1)); n != 1 {
			return "", fmt.Errorf("%s: found %d times, want once", what, n)
		}
	}
	text = versionLabel.ReplaceAllString(text, `${1}"`+strings.TrimPrefix(version, "v")+`"`)
	return stepsDefault.ReplaceAllString(text, "${1}"+image.Name()), nil
}

func lastPart(text string) string {
	return strings.Trim(text[strings.LastIndex(text, " ")+1:], `"`)
}

func eachFile(dir string, visit func(file, text string) error) error {
	sources := os.DirFS(dir)
	for _, pattern := range []string{"tasks/*/*.yaml", "pipelines/*/*.yaml", "tasks/*/" + readme, "pipelines/*/" + readme, actionFile} {
		files, err := fs.Glob(sources, pattern)
		if err != nil {
			return err
		}
		if len(files) == 0 {
			return fmt.Errorf("looking for %s in %s: found none", pattern, dir)
		}
		for _, file := range files {
			text, err := fs.ReadFile(sources, file)
			if err != nil {
				return err
			}
			if err := visit(file, string(text)); err != nil {
				return err
			}
		}
	}
	return nil
}
