// SPDX-License-Identifier: Apache-2.0

package install

import (
	"io"
	"log"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

func TestByDigest(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	repository := strings.TrimPrefix(server.URL, "http://") + "/steps"
	tag, err := name.ParseReference(repository + ":v1")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(tag, empty.Image); err != nil {
		t.Fatal(err)
	}
	digest, err := empty.Image.Digest()
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, image, want string
		reason            fail.Reason
	}{
		{"a tag", repository + ":v1", repository + "@" + digest.String(), ""},
		{"a digest is not asked for", stepsImage, stepsImage, ""},
		{"no such tag", repository + ":v2", "", fail.ImageUnavailable},
		{"no reference", "Steps Image", "", fail.InvalidInput},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := byDigest(t.Context(), test.image)
			if got != test.want || test.reason != "" && fail.ReasonOf(err) != test.reason || test.reason == "" && err != nil {
				t.Errorf("got %q, %v; want %q, %q", got, err, test.want, test.reason)
			}
		})
	}
}
