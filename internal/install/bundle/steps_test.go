package bundle_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/ml-dev-env/ml-dev-env/internal/install/bundle"
)

// sources returns a checkout in a folder of its own: the module's name and requirements, with programs that compile
// quickly; each links one module in addition to Go's library.
func sources(t *testing.T) bundle.Source {
	t.Helper()
	dir := t.TempDir()
	const program = `package main

import (
	"fmt"

	"github.com/ml-dev-env/ml-dev-env/internal/version"
	"golang.org/x/sync/errgroup"
)

func main() { fmt.Println(version.String(), new(errgroup.Group).Wait()) }
`
	files := map[string]string{
		"cmd/steps/main.go":           program,
		"cmd/mlenv-agent/main.go":     program,
		"internal/version/version.go": "package version\n\nvar number = \"devel\"\n\nfunc String() string { return number }\n",
	}
	for _, name := range []string{"go.mod", "go.sum", "LICENSE"} {
		content, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		files[name] = string(content)
	}
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return bundle.Source{Dir: dir, Version: "v1.2.3", Revision: "c0ffee"}
}

func fakeSpy(_ context.Context, platform v1.Platform) (bundle.Spy, error) {
	return bundle.Spy{Program: []byte("py-spy for " + platform.Architecture), Licence: bundle.Licence{Module: "py-spy", Version: "0.4.3", SPDX: "MIT"}}, nil
}

func buildSteps(t *testing.T) (bundle.StepsRelease, v1.Hash) {
	t.Helper()
	made, err := sources(t).BuildSteps(t.Context(), io.Discard, t.TempDir(), bundle.Platforms(), bundle.Base{}, []byte("roots"), fakeSpy)
	if err != nil {
		t.Fatal(err)
	}
	digest, err := made.Index.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return made, digest
}

func TestBuildSteps(t *testing.T) {
	made, digest := buildSteps(t)
	if _, again := buildSteps(t); again != digest {
		t.Errorf("two folders give %s and %s, want one digest", digest, again)
	}

	to := registryTag(t, "team/steps:v1")
	reference, err := made.Push(t.Context(), io.Discard, to)
	if err != nil {
		t.Fatal(err)
	}
	if want := to.Context().Digest(digest.String()).Name(); reference != want {
		t.Errorf("pushed %s, want %s", reference, want)
	}
	var agents []v1.Hash
	for _, platform := range bundle.Platforms() {
		image, err := remote.Image(to, remote.WithPlatform(platform))
		if err != nil {
			t.Fatalf("%s: %v", platform, err)
		}
		if err := validate.Image(image); err != nil {
			t.Errorf("%s: %v", platform, err)
		}
		layers, err := image.Layers()
		if err != nil || len(layers) != 5 {
			t.Fatalf("%s: %d layers, %v: want the roots, the licences, the agent, py-spy and the steps", platform, len(layers), err)
		}
		agent, err := layers[2].Digest()
		if err != nil {
			t.Fatal(err)
		}
		agents = append(agents, agent)
		of, err := image.Digest()
		if err != nil {
			t.Fatal(err)
		}
		attached(t, to, of, made.SBOM)
	}
	if agents[0] == agents[1] {
		t.Error("both platforms have the same agent")
	}
	attached(t, to, digest, made.SBOM)
}

// attached checks that the registry lists a bill of materials for its subject.
func attached(t *testing.T, to name.Tag, subject v1.Hash, want []byte) {
	t.Helper()
	found, err := remote.Referrers(to.Context().Digest(subject.String()))
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := found.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 || manifest.Manifests[0].ArtifactType != "application/spdx+json" {
		t.Fatalf("%s has the referrers %+v, %v: want one bill of materials", subject, manifest, err)
	}
	image, err := remote.Image(to.Context().Digest(manifest.Manifests[0].Digest.String()))
	if err != nil {
		t.Fatal(err)
	}
	layers, err := image.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers, %v: want one", len(layers), err)
	}
	content, err := layers[0].Compressed()
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	if got, err := io.ReadAll(content); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the bill of %s differs: %v", subject, err)
	}
}

func TestLayoutOfSteps(t *testing.T) {
	made, digest := buildSteps(t)
	dir := t.TempDir()
	if err := made.Layout(dir, "v1.2.3"); err != nil {
		t.Fatal(err)
	}
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Error(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(manifest.Manifests) != 4 {
		t.Fatalf("%d entries, want the image and a bill of materials for it and each platform", len(manifest.Manifests))
	}
	first := manifest.Manifests[0]
	if first.Digest != digest || first.Annotations["org.opencontainers.image.ref.name"] != "v1.2.3" {
		t.Errorf("first entry %s named %v, want %s named v1.2.3", first.Digest, first.Annotations, digest)
	}
}

// bill has the fields of SPDX that the tests read.
type bill struct {
	Packages []struct {
		Name, SPDXID, VersionInfo, LicenseDeclared string
	}
	Relationships []struct{ SPDXElementID, RelationshipType, RelatedSPDXElement string }
}

func TestSBOM(t *testing.T) {
	made, _ := buildSteps(t)
	var got bill
	if err := json.Unmarshal(made.SBOM, &got); err != nil {
		t.Fatal(err)
	}
	var modules []string
	known := map[string]bool{"SPDXRef-DOCUMENT": true}
	for _, each := range got.Packages {
		known[each.SPDXID] = true
		if strings.HasPrefix(each.SPDXID, "SPDXRef-module-") {
			if each.VersionInfo == "" {
				t.Errorf("module %s has no version", each.Name)
			}
			modules = append(modules, each.Name+" "+each.LicenseDeclared)
		}
	}
	want := []string{"github.com/ml-dev-env/ml-dev-env Apache-2.0", "golang.org/x/sync BSD-3-Clause", "std BSD-3-Clause", "py-spy MIT"}
	if diff := cmp.Diff(want, modules); diff != "" {
		t.Errorf("modules (-want +got):\n%s", diff)
	}
	for _, each := range got.Relationships {
		if !known[each.SPDXElementID] || !known[each.RelatedSPDXElement] {
			t.Errorf("%v refers to an element that the bill does not have", each)
		}
	}
	count := func(kind string) (n int) {
		for _, each := range got.Relationships {
			if each.RelationshipType == kind {
				n++
			}
		}
		return n
	}
	if got, want := []int{count("DESCRIBES"), count("CONTAINS"), count("DEPENDS_ON")}, []int{2, 6, 12}; !slices.Equal(got, want) {
		t.Errorf("relations %v, want %v: two images with py-spy and two programs of three modules each", got, want)
	}
}
