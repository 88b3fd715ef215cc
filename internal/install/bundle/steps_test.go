// SPDX-License-Identifier: Apache-2.0

package bundle_test

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"testing"

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
	return bundle.Spy{Program: []byte("py-spy for " + platform.Architecture), Version: "0.4.3"}, nil
}

func buildSteps(t *testing.T) (bundle.StepsRelease, v1.Hash) {
	t.Helper()
	made, err := sources(t).BuildSteps(t.Context(), io.Discard, t.TempDir(), bundle.Platforms(), bundle.Ingredients{
		Roots: []byte("roots"), Licences: licences(t), Spy: fakeSpy,
	})
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
	}
	if agents[0] == agents[1] {
		t.Error("both platforms have the same agent")
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
	if len(manifest.Manifests) != 1 {
		t.Fatalf("%d entries, want the image", len(manifest.Manifests))
	}
	first := manifest.Manifests[0]
	if first.Digest != digest || first.Annotations["org.opencontainers.image.ref.name"] != "v1.2.3" {
		t.Errorf("first entry %s named %v, want %s named v1.2.3", first.Digest, first.Annotations, digest)
	}
}
