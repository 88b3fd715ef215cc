package diagnose

import (
	"context"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

func TestImageSize(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	image := strings.TrimPrefix(server.URL, "http://") + "/training:1"
	made, err := random.Image(2000, 3)
	if err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(image)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, made); err != nil {
		t.Fatal(err)
	}
	manifest, err := made.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	want := agent.Bytes(manifest.Config.Size)
	for _, l := range manifest.Layers {
		want += agent.Bytes(l.Size)
	}
	if got, ok := ImageSize(context.Background(), image); got != want || !ok {
		t.Errorf("got %d, %v, want %d", got, ok, want)
	}
	for _, unknown := range []string{image + "-other", "Not A Name", "127.0.0.1:1/none:1"} {
		if got, ok := ImageSize(context.Background(), unknown); ok {
			t.Errorf("of %s: got %d, want unknown", unknown, got)
		}
	}
}

// A registry, which the user chooses by naming the image, cannot fill the step's memory.
func TestImageSizeIsBounded(t *testing.T) {
	sent := make(chan int, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.Contains(r.URL.Path, "/manifests/") {
			return
		}
		w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
		count, spaces := 0, make([]byte, 1<<20)
		for count < 16*maxSize {
			n, err := w.Write(spaces)
			if count += n; err != nil {
				break
			}
		}
		sent <- count
	}))
	defer server.Close()
	if got, ok := ImageSize(t.Context(), strings.TrimPrefix(server.URL, "http://")+"/training:1"); ok {
		t.Errorf("got %d of an endless manifest", got)
	}
	server.CloseClientConnections()
	if count := <-sent; count >= 16*maxSize {
		t.Errorf("%d bytes were read, want about %d", count, maxSize)
	}
}
