// SPDX-License-Identifier: Apache-2.0

package bundle_test

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/ml-dev-env/ml-dev-env/internal/install/bundle"
)

// contents returns stand-ins for the programs.
func contents(t *testing.T) bundle.Contents {
	t.Helper()
	dir := t.TempDir()
	write := func(name string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(strings.Repeat(name, 1000)), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return bundle.Contents{
		Source:   bundle.Source{Version: "v1.2.3", Revision: "c0ffee", Changed: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)},
		Platform: v1.Platform{OS: "linux", Architecture: "arm64"},
		Program:  write("program"), Agent: write("agent"), Roots: []byte("roots"),
		Spy:      bundle.Spy{Program: []byte("py-spy"), Version: "v0", Texts: map[string][]byte{"LICENSE": []byte("terms")}},
		Licences: licences(t),
	}
}

// licences returns a folder as go-licenses saves it.
func licences(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "example.com", "library"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "example.com", "library", "LICENSE"), []byte("terms"), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func stepsImage(t *testing.T, contents bundle.Contents) v1.Image {
	t.Helper()
	image, err := bundle.StepsImage(contents)
	if err != nil {
		t.Fatal(err)
	}
	return image
}

func TestStepsImageHoldsNothingElse(t *testing.T) {
	image := stepsImage(t, contents(t))
	files := mutate.Extract(image)
	defer files.Close()
	var got []string
	for archive := tar.NewReader(files); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		line := fmt.Sprintf("%04o %d:%d %s", header.Mode, header.Uid, header.Gid, header.Name)
		if header.Linkname != "" {
			line += " -> " + header.Linkname
		}
		if !header.ModTime.Equal(time.Unix(0, 0)) {
			t.Errorf("%s has the time %s, want a fixed time", header.Name, header.ModTime)
		}
		got = append(got, line)
	}
	want := []string{
		"0755 0:0 ko-app",
		"0555 0:0 ko-app/ml-dev-env",
		"0777 0:0 ko-app/build-image -> ml-dev-env",
		"0777 0:0 ko-app/check-fabric -> ml-dev-env",
		"0777 0:0 ko-app/preflight -> ml-dev-env",
		"0777 0:0 ko-app/provision -> ml-dev-env",
		"0777 0:0 ko-app/sync-repo -> ml-dev-env",
		"0777 0:0 ko-app/teardown -> ml-dev-env",
		"0777 0:0 ko-app/train -> ml-dev-env",
		"0777 0:0 ko-app/mlenv -> ml-dev-env",
		"0777 0:0 ko-app/reap -> ml-dev-env",
		"0755 0:0 licenses",
		"0755 0:0 licenses/py-spy@v0",
		"0444 0:0 licenses/py-spy@v0/LICENSE",
		"0555 0:0 py-spy",
		"0555 0:0 mlenv-agent",
		"0755 0:0 licenses/example.com",
		"0755 0:0 licenses/example.com/library",
		"0444 0:0 licenses/example.com/library/LICENSE",
		"0755 0:0 etc",
		"0755 0:0 etc/ssl",
		"0755 0:0 etc/ssl/certs",
		"0444 0:0 etc/ssl/certs/ca-certificates.crt",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.Config.User != "65532:0" || config.Platform().String() != "linux/arm64" {
		t.Errorf("user %s on %s, want 65532:0 on linux/arm64", config.Config.User, config.Platform())
	}
	manifest, err := image.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	labels := map[string]string{
		"org.opencontainers.image.title":    "ml-dev-env steps",
		"org.opencontainers.image.version":  "v1.2.3",
		"org.opencontainers.image.licenses": "Apache-2.0",
		"org.opencontainers.image.source":   "https://github.com/ml-dev-env/ml-dev-env",
		"org.opencontainers.image.revision": "c0ffee",
		"org.opencontainers.image.created":  "2026-01-02T03:04:05Z",
	}
	if diff := cmp.Diff(labels, config.Config.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(labels, manifest.Annotations); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
	for _, layer := range manifest.Layers {
		if layer.MediaType != types.OCILayer {
			t.Errorf("layer of type %s, want %s", layer.MediaType, types.OCILayer)
		}
	}
}

// The image keeps the base's files and PATH, and records the base's digest.
func TestStepsImageOnBase(t *testing.T) {
	some := contents(t)
	base, err := random.Image(100, 2)
	if err != nil {
		t.Fatal(err)
	}
	config, err := base.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = some.Platform.OS, some.Platform.Architecture
	config.Config = v1.Config{Env: []string{"PATH=/usr/bin", "LANG=C.UTF-8"}, Cmd: []string{"git"}, User: "root"}
	if base, err = mutate.ConfigFile(base, config); err != nil {
		t.Fatal(err)
	}
	to := registryTag(t, "base/git:latest")
	if err := remote.Write(to, base); err != nil {
		t.Fatal(err)
	}
	if some.Base, err = bundle.ResolveBase(t.Context(), to.Name()); err != nil {
		t.Fatal(err)
	}
	hash, err := base.Digest()
	if err != nil {
		t.Fatal(err)
	}
	digest := hash.String()
	if got, want := some.Base.Reference(), to.Name()+"@"+digest; got != want {
		t.Errorf("base %s, want %s", got, want)
	}
	image := stepsImage(t, some)
	layers, err := image.Layers()
	if err != nil || len(layers) != 2+5 {
		t.Errorf("%d layers, %v: want the base's 2 and 5", len(layers), err)
	}
	made, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"PATH=/ko-app:/usr/bin", "LANG=C.UTF-8"}, made.Config.Env); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	if made.Config.User != "65532:0" || made.Config.Cmd != nil {
		t.Errorf("user %s, command %q: want 65532:0 and none", made.Config.User, made.Config.Cmd)
	}
	manifest, err := image.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{"org.opencontainers.image.base.name": to.Name(), "org.opencontainers.image.base.digest": digest} {
		if manifest.Annotations[key] != want || made.Config.Labels[key] != want {
			t.Errorf("%s: annotation %q, label %q: want %q", key, manifest.Annotations[key], made.Config.Labels[key], want)
		}
	}
	// The digest names the same image.
	if some.Base, err = bundle.ResolveBase(t.Context(), to.Name()+"@"+digest); err != nil {
		t.Fatal(err)
	}
	again, err := stepsImage(t, some).Digest()
	if err != nil {
		t.Fatal(err)
	}
	if first, err := image.Digest(); err != nil || again != first {
		t.Errorf("by tag %s, %v, by digest %s: want one digest", first, err, again)
	}
	some.Platform.Architecture = "amd64"
	if _, err := bundle.StepsImage(some); err == nil || !strings.Contains(err.Error(), "it is for linux/arm64: want linux/amd64") {
		t.Errorf("another platform: got %v", err)
	}
}

func TestStepsImageIsReproducible(t *testing.T) {
	digest := func(contents bundle.Contents) v1.Hash {
		t.Helper()
		digest, err := stepsImage(t, contents).Digest()
		if err != nil {
			t.Fatal(err)
		}
		return digest
	}
	first, second := contents(t), contents(t)
	want := digest(first)
	if got := digest(second); got != want {
		t.Errorf("the same contents give %s and %s", want, got)
	}
	second.Agent = second.Program
	if got := digest(second); got == want {
		t.Errorf("other contents give %s too", got)
	}
}

func TestStepsImageWithoutRoots(t *testing.T) {
	some := contents(t)
	some.Roots = nil
	layers, err := stepsImage(t, some).Layers()
	if err != nil || len(layers) != 4 {
		t.Errorf("%d layers, %v: want the licences, the agent's, py-spy's and the steps'", len(layers), err)
	}
}

func TestPush(t *testing.T) {
	to := registryTag(t, "team/steps:v1")
	index, err := bundle.StepsIndex(bundle.Source{}, bundle.Base{}, []v1.Image{stepsImage(t, contents(t))})
	if err != nil {
		t.Fatal(err)
	}
	reference, err := bundle.Push(t.Context(), to, index)
	if err != nil {
		t.Fatal(err)
	}
	byDigest, err := name.NewDigest(reference)
	if err != nil {
		t.Fatalf("printed %s: %v", reference, err)
	}
	if _, err := remote.Index(byDigest); err != nil {
		t.Errorf("pulling what was pushed: %v", err)
	}
}

// registryTag returns a tag in a registry that ends with the test.
func registryTag(t *testing.T, repository string) name.Tag {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.WithReferrersSupport(true), registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	tag, err := name.NewTag(strings.TrimPrefix(server.URL, "http://") + "/" + repository)
	if err != nil {
		t.Fatal(err)
	}
	return tag
}
