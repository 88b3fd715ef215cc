// SPDX-License-Identifier: Apache-2.0

// Package release builds the files of a release that need this project's code: mlenv, the agent, the steps image as an OCI layout,
// install.yaml and the notes. make release adds licences, bills of materials, Tekton bundles and checksums by tools of others.
package release

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/install"
	"github.com/ml-dev-env/ml-dev-env/internal/install/bundle"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
)

// Request describes a release.
type Request struct {
	Source bundle.Source
	// Repository is the prefix of the images REPOSITORY/steps and REPOSITORY/tasks.
	Repository string
	// To is a missing or empty folder.
	To string
	// Base is the base of the steps image, "" for the one that pin recorded.
	Base string
	// Licences is the folder of the licences for the steps image.
	Licences string
	// Snapshot is for trying sources whose Tasks do not name the image yet.
	Snapshot bool
}

// Names of the published files except the programs.
const (
	stepsArchive = "steps-image.oci.tar"
	installFile  = "install.yaml"
	notesFile    = "notes.md"
)

func userPlatforms() []v1.Platform {
	return []v1.Platform{
		{OS: "linux", Architecture: "amd64"}, {OS: "linux", Architecture: "arm64"},
		{OS: "darwin", Architecture: "amd64"}, {OS: "darwin", Architecture: "arm64"},
	}
}

// versions matches versions that are valid as a git tag, an image tag and a label.
var versions = regexp.MustCompile(`^v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?$`)

// CheckVersion returns an error unless version is like v1.2.3.
func CheckVersion(version string) error {
	if !versions.MatchString(version) {
		return fail.Becausef(fail.InvalidInput, "reading --version: %q: want a version as v1.2.3 or v1.2.3-rc.1", version)
	}
	return nil
}

// Release is a release that is built and not pushed.
type Release struct {
	request    Request
	steps      bundle.StepsRelease
	StepsImage name.Digest
}

// steps builds the steps image with Mozilla's certificate authorities, so that the digest is the same on any machine.
func (r Request) steps(ctx context.Context, progress io.Writer, dir string) (bundle.StepsRelease, name.Digest, error) {
	roots, err := bundle.MozillaRoots()
	if err != nil {
		return bundle.StepsRelease{}, name.Digest{}, err
	}
	base, err := r.base(ctx)
	if err != nil {
		return bundle.StepsRelease{}, name.Digest{}, err
	}
	fmt.Fprintf(progress, "building on %s\n", base.Reference())
	steps, err := r.Source.BuildSteps(ctx, progress, dir, bundle.Platforms(), bundle.Ingredients{
		Base: base, Roots: roots, Licences: r.Licences, Spy: bundle.FetchSpy,
	})
	if err != nil {
		return bundle.StepsRelease{}, name.Digest{}, err
	}
	digest, err := steps.Index.Digest()
	if err != nil {
		return bundle.StepsRelease{}, name.Digest{}, err
	}
	image, err := name.NewDigest(r.Repository + "/steps@" + digest.String())
	if err != nil {
		return bundle.StepsRelease{}, name.Digest{}, fail.Becausef(fail.InvalidInput, "reading --repository: %w", err)
	}
	return steps, image, nil
}

// baseFile has the base image of the newest release by digest.
const baseFile = "install/steps-base"

// base resolves the base image: the given one, the recorded one, or the default.
func (r Request) base(ctx context.Context) (bundle.Base, error) {
	reference := r.Base
	if reference == "" {
		recorded, err := os.ReadFile(filepath.Join(r.Source.Dir, baseFile))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return bundle.Base{}, err
		}
		reference = cmp.Or(strings.TrimSpace(string(recorded)), bundle.DefaultBase)
	}
	return bundle.ResolveBase(ctx, reference)
}

// Make fills the folder of the request.
func Make(ctx context.Context, progress io.Writer, request Request) (Release, error) {
	notes, err := request.notes()
	if err != nil {
		return Release{}, err
	}
	if err := emptyFolder(request.To); err != nil {
		return Release{}, err
	}
	work, err := os.MkdirTemp("", "mlenv-release-")
	if err != nil {
		return Release{}, err
	}
	defer os.RemoveAll(work)

	release := Release{request: request}
	if release.steps, release.StepsImage, err = request.steps(ctx, progress, work); err != nil {
		return Release{}, err
	}
	// Before the rest, which takes long.
	if !request.Snapshot {
		if err := CheckPins(request.Source, release.StepsImage); err != nil {
			return Release{}, err
		}
	}
	if err := release.writeImage(work); err != nil {
		return Release{}, err
	}
	if err := release.writeInstall(); err != nil {
		return Release{}, err
	}
	if err := release.writePrograms(ctx, progress); err != nil {
		return Release{}, err
	}
	return release, release.write(notesFile, notes)
}

// emptyFolder creates the folder, and returns an error if it has files, because the release would publish them.
func emptyFolder(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("creating the folder of the release: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("creating the folder of the release: %w", err)
	}
	if len(entries) > 0 {
		return fail.Advise(fail.Becausef(fail.InvalidInput, "creating the folder of the release: %s has %s: want it empty", dir,
			entries[0].Name()), "rm -r %s", dir)
	}
	return nil
}

func (r *Release) write(file string, content []byte) error {
	return os.WriteFile(filepath.Join(r.request.To, file), content, 0o644)
}

func (r *Release) writeImage(work string) error {
	dir := filepath.Join(work, stepsArchive)
	if err := r.steps.Layout(dir, r.request.Source.Version); err != nil {
		return err
	}
	archive, err := bundle.ArchiveFolder(dir)
	if err != nil {
		return err
	}
	return r.write(stepsArchive, archive)
}

// writePrograms compiles mlenv and the agent.
func (r *Release) writePrograms(ctx context.Context, progress io.Writer) error {
	for _, product := range []struct {
		name      string
		platforms []v1.Platform
	}{{"mlenv", userPlatforms()}, {"mlenv-agent", bundle.Platforms()}} {
		for _, platform := range product.platforms {
			program := filepath.Join(r.request.To, product.name+"-"+platform.OS+"-"+platform.Architecture)
			fmt.Fprintf(progress, "compiling %s for %s\n", product.name, platform)
			if err := r.request.Source.CompileProgram(ctx, "cmd/"+product.name, program, platform); err != nil {
				return err
			}
		}
	}
	return nil
}

// Push pushes the image, tagged with the version.
func (r *Release) Push(ctx context.Context, progress io.Writer) error {
	_, err := r.steps.Push(ctx, progress, r.StepsImage.Context().Tag(r.request.Source.Version))
	return err
}

func (r Request) notes() ([]byte, error) {
	heading := "[" + strings.TrimPrefix(r.Source.Version, "v") + "]"
	if r.Snapshot {
		heading = "[Unreleased]"
	}
	content, err := os.ReadFile(filepath.Join(r.Source.Dir, "CHANGELOG.md"))
	if err != nil {
		return nil, fmt.Errorf("reading the notes of the release: %w", err)
	}
	notes, err := section(string(content), heading)
	if err != nil {
		return nil, fmt.Errorf("reading CHANGELOG.md: %w", err)
	}
	return []byte(notes), nil
}

// linkTargets are the addresses of a changelog's headings, at its end.
var linkTargets = regexp.MustCompile(`(?m)^\[[^\]]+\]: \S+$`)

func section(changelog, heading string) (string, error) {
	_, rest, found := strings.Cut(changelog, "\n## "+heading)
	if !found {
		return "", fmt.Errorf("the heading ## %s is missing: want the changes of this version below it", heading)
	}
	_, rest, _ = strings.Cut(rest, "\n")
	rest, _, _ = strings.Cut(rest, "\n## ")
	rest = linkTargets.ReplaceAllString(rest, "")
	if !strings.Contains(changelog, "\n"+heading+": https://") {
		return "", fmt.Errorf("the heading ## %s is no link: want a line %[1]s: https://github.com/... at the end", heading)
	}
	if rest = strings.TrimSpace(rest); rest == "" {
		return "", errors.New("nothing is below ## " + heading)
	}
	return rest + "\n", nil
}

const (
	namespace = "ml-dev-env"
	// clusterName is the cluster of install.yaml's Tasks: users create the ConfigMap with its cluster file.
	clusterName = "default"
)

// writeInstall writes the objects of mlenv install except the cluster file.
func (r *Release) writeInstall() error {
	request := install.Request{Namespace: namespace, ServiceAccount: launch.ServiceAccount, StepsImage: r.StepsImage.Name()}
	request.Cluster.Cluster.Name = clusterName
	rendered, err := install.Render(request, os.DirFS(r.request.Source.Dir))
	if err != nil {
		return err
	}
	objects := []*unstructured.Unstructured{{Object: map[string]any{
		"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": namespace},
	}}}
	for _, object := range rendered {
		if object.GetKind() != "ConfigMap" || object.GetName() != cluster.ConfigMapPrefix+clusterName {
			objects = append(objects, object)
		}
	}
	var out bytes.Buffer
	if err := command.WriteObjects(&out, objects); err != nil {
		return err
	}
	return r.write(installFile, out.Bytes())
}
