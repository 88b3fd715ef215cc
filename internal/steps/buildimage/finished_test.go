// SPDX-License-Identifier: Apache-2.0

package buildimage

import (
	"log/slog"
	"testing"

	"github.com/google/go-cmp/cmp"

	mldevenv "github.com/ml-dev-env/ml-dev-env"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// TestFinishedImageNeedsNoCluster: the step passes on a named image without a kubeconfig or a pull secret.
func TestFinishedImageNeedsNoCluster(t *testing.T) {
	o := Options{Image: "quay.io/team/train@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}
	connect := func() (*kube.Clients, *Registry, error) {
		t.Error("it connects to a cluster")
		return nil, nil, nil
	}
	got, err := Run(t.Context(), Deps{Connect: connect, Images: mldevenv.Images(), Log: slog.New(slog.DiscardHandler)}, o)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Image{URL: o.Image, Reference: o.Image, Digest: o.Image[len("quay.io/team/train@"):]}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
