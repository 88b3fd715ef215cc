package preflight

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
	"github.com/ml-dev-env/ml-dev-env/internal/steps/buildimage"
)

func TestImage(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	repository := strings.TrimPrefix(server.URL, "http://") + "/training"
	tag, err := name.NewTag(repository + ":1")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(tag, empty.Image); err != nil {
		t.Fatal(err)
	}
	asked, err := buildimage.NewRegistry(map[string]string{".dockerconfigjson": "{}"}, "")
	if err != nil {
		t.Fatal(err)
	}
	gone := httptest.NewServer(nil)
	gone.Close()
	tests := []struct {
		name, image, flavour string
		want                 Status
		reason               fail.Reason
	}{
		{"there", repository + ":1", "", OK, ""},
		{"not there", repository + ":2", "", Blocked, fail.ImageUnavailable},
		{"no answer", strings.TrimPrefix(gone.URL, "http://") + "/training:1", "", Unknown, ""},
		{"to be built", "", "cpu", OK, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w, file := cairo(t)
			report := w.examine(file, Auto, func(d *Deps, o *Options) {
				o.Request.Image, o.Flavour, d.Registry = test.image, test.flavour, asked
			})
			for _, check := range report.Checks {
				if check.Object == "image" && (check.Status != test.want || check.Reason != test.reason) {
					t.Errorf("got %+v, want %s %s", check, test.want, test.reason)
				}
			}
		})
	}
}
