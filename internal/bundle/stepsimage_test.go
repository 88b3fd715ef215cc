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
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/ml-dev-env/ml-dev-env/internal/bundle"
)

// contents are stand-ins for the programs.
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
	return bundle.Contents{Program: write("program"), Agent: write("agent"), Roots: write("roots"), Version: "1.2.3"}
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
			t.Errorf("%s is of %s, want a fixed time", header.Name, header.ModTime)
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
		"0555 0:0 mlenv-agent",
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
	if config.Config.User != "65532:0" || config.OS != "linux" || config.Architecture != "amd64" {
		t.Errorf("user %s on %s/%s, want 65532:0 on linux/amd64", config.Config.User, config.OS, config.Architecture)
	}
	manifest, err := image.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	for _, layer := range manifest.Layers {
		if layer.MediaType != types.OCILayer {
			t.Errorf("layer of type %s, want %s", layer.MediaType, types.OCILayer)
		}
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
	some.Roots = ""
	layers, err := stepsImage(t, some).Layers()
	if err != nil || len(layers) != 2 {
		t.Errorf("%d layers, %v: want the agent's and the steps'", len(layers), err)
	}
}

func TestPush(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	to, err := name.ParseReference(strings.TrimPrefix(server.URL, "http://") + "/team/steps:v1")
	if err != nil {
		t.Fatal(err)
	}
	image := stepsImage(t, contents(t))
	reference, err := bundle.Push(t.Context(), to, image)
	if err != nil {
		t.Fatal(err)
	}
	byDigest, err := name.NewDigest(reference)
	if err != nil {
		t.Fatalf("printed %s: %v", reference, err)
	}
	if _, err := remote.Image(byDigest); err != nil {
		t.Errorf("pulling what was pushed: %v", err)
	}
}
