// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"io"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/image"
)

func newStore(t *testing.T) *image.Store {
	t.Helper()
	store, err := image.OpenStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return store
}

// serve returns the registry's address and the credentials of its clients.
func serve(t *testing.T, dir string, store *image.Store) (address string, login remote.Option) {
	t.Helper()
	r, err := Open(dir, store, nil)
	if err != nil {
		t.Fatal(err)
	}
	password, err := Password(dir, ClusterUser)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://"), remote.WithAuth(&authn.Basic{Username: ClusterUser, Password: password})
}

func pull(t *testing.T, reference string, login remote.Option) v1.Hash {
	t.Helper()
	ref, err := name.ParseReference(reference)
	if err != nil {
		t.Fatal(err)
	}
	img, err := remote.Image(ref, login)
	if err != nil {
		t.Fatalf("pulling %s: %v", reference, err)
	}
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range layers {
		content, err := l.Compressed()
		if err != nil {
			t.Fatalf("pulling a layer of %s: %v", reference, err)
		}
		content.Close()
	}
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return digest
}

func TestPushedImagesSurviveARestart(t *testing.T) {
	dir, store := t.TempDir(), newStore(t)
	address, login := serve(t, dir, store)
	img, err := random.Image(1000, 2)
	if err != nil {
		t.Fatal(err)
	}
	index, err := random.Index(500, 1, 2)
	if err != nil {
		t.Fatal(err)
	}
	ref, _ := name.ParseReference(address + "/some/image:1")
	if err := remote.Write(ref, img, login); err != nil {
		t.Fatal(err)
	}
	indexRef, _ := name.ParseReference(address + "/some/index:1")
	if err := remote.WriteIndex(indexRef, index, login); err != nil {
		t.Fatal(err)
	}

	address, login = serve(t, dir, store)
	want, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if got := pull(t, address+"/some/image:1", login); got != want {
		t.Errorf("after the restart the tag is %s, want %s", got, want)
	}
	pull(t, address+"/some/image@"+want.String(), login)
	indexRef, _ = name.ParseReference(address + "/some/index:1")
	if _, err := remote.Index(indexRef, login); err != nil {
		t.Errorf("after the restart the index is gone: %v", err)
	}
}

func TestStoredImagesAreServed(t *testing.T) {
	store := newStore(t)
	assemble := func() (v1.Image, error) {
		img, err := random.Image(1000, 1)
		return mutate.MediaType(img, "application/vnd.oci.image.manifest.v1+json"), err
	}
	first, err := store.Ensure("tools/one", "made of a", assemble)
	if err != nil {
		t.Fatal(err)
	}
	again, err := store.Ensure("tools/one", "made of a", func() (v1.Image, error) {
		t.Error("a stored image was assembled again")
		return assemble()
	})
	if err != nil || again != first {
		t.Errorf("the stored image is %s, %v; want %s", again, err, first)
	}
	second, err := store.Ensure("tools/one", "made of b", assemble)
	if err != nil {
		t.Fatal(err)
	}
	address, login := serve(t, t.TempDir(), store)
	if got := pull(t, address+"/tools/one:latest", login); got != second {
		t.Errorf("the registry serves %s, want the newer %s", got, second)
	}
	if images, err := store.Images(); err != nil || len(images) != 1 {
		t.Errorf("the store holds %v, %v; want the newer image alone", images, err)
	}
}

func TestSlowRepositoriesAreReadSlowly(t *testing.T) {
	const size, timeThatASlowReadTakes = slowRate / 4, 200 * time.Millisecond
	img, err := random.Image(size, 1)
	if err != nil {
		t.Fatal(err)
	}
	address, login := serve(t, t.TempDir(), newStore(t))
	ref, _ := name.ParseReference(address + "/slow/image:1")
	if err := remote.Write(ref, img, login); err != nil {
		t.Fatal(err)
	}
	pulled, err := remote.Image(ref, login)
	if err != nil {
		t.Fatal(err)
	}
	layers, err := pulled.Layers()
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	content, err := layers[0].Compressed()
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	if n, err := io.Copy(io.Discard, content); err != nil || n < size {
		t.Errorf("read %d bytes, %v; want %d", n, err, size)
	}
	if took := time.Since(began); took < timeThatASlowReadTakes {
		t.Errorf("reading %d bytes took %s; want a quarter of a second", size, took)
	}
}
