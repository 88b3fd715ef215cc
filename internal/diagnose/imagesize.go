package diagnose

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

// The bounds of the registry's answers, which are for progress only.
const (
	sizeTime = 5 * time.Second
	maxSize  = 4 << 20 // bytes; a manifest has some kilobytes
)

// limitedTransport cuts answers off at maxSize.
type limitedTransport struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (b limitedTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := b.RoundTripper.RoundTrip(request)
	if err == nil {
		response.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(response.Body, maxSize), response.Body}
	}
	return response, err
}

// ImageSize asks the image's registry, without credentials, for the image's compressed size. ok is false if the registry
// does not answer. For an image of several platforms it is the size for amd64. It is meant for images that the nodes pull
// without credentials too.
func ImageSize(ctx context.Context, image string) (compressed agent.Bytes, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, sizeTime)
	defer cancel()
	ref, err := name.ParseReference(image)
	if err != nil {
		return 0, false
	}
	found, err := remote.Image(ref, remote.WithContext(ctx), remote.WithAuth(authn.Anonymous), remote.WithTransport(limitedTransport{remote.DefaultTransport}))
	if err != nil {
		return 0, false
	}
	manifest, err := found.Manifest()
	if err != nil {
		return 0, false
	}
	compressed = agent.Bytes(manifest.Config.Size)
	for _, layer := range manifest.Layers {
		compressed += agent.Bytes(layer.Size)
	}
	return compressed, compressed > 0 // the sizes are the registry's own words
}
