// SPDX-License-Identifier: Apache-2.0

package buildapi

import (
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	registryserver "github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	imagev1 "github.com/openshift/api/image/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	kubefake "k8s.io/client-go/kubernetes/fake"
)

// TestImport reads a list of images that needs the login of one of the namespace's Secrets.
func TestImport(t *testing.T) {
	inner := registryserver.New(registryserver.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, password, _ := r.BasicAuth(); password != "secret" {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		inner.ServeHTTP(w, r)
	}))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	ref, err := name.ParseReference(host + "/team/base:1")
	if err != nil {
		t.Fatal(err)
	}
	image, err := random.Image(64, 1)
	if err != nil {
		t.Fatal(err)
	}
	index := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: image})
	if err := remote.WriteIndex(ref, index, remote.WithAuth(&authn.Basic{Username: "me", Password: "secret"})); err != nil {
		t.Fatal(err)
	}
	digest, err := index.Digest()
	if err != nil {
		t.Fatal(err)
	}
	secret := func(name, password string) *corev1.Secret {
		text, err := json.Marshal(map[string]any{"auths": map[string]any{host: map[string]string{"username": "me", "password": password}}})
		if err != nil {
			t.Fatal(err)
		}
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns"}, Type: corev1.SecretTypeDockerConfigJson,
			Data: map[string][]byte{corev1.DockerConfigJsonKey: text}}
	}
	asked := func(image string) *imagev1.ImageStreamImport {
		return &imagev1.ImageStreamImport{ObjectMeta: metav1.ObjectMeta{Name: "any"},
			Spec: imagev1.ImageStreamImportSpec{Images: []imagev1.ImageImportSpec{{
				From:         corev1.ObjectReference{Kind: "DockerImage", Name: image},
				ImportPolicy: imagev1.TagImportPolicy{ImportMode: imagev1.ImportModePreserveOriginal},
			}}}}
	}
	ctx := genericapirequest.WithNamespace(t.Context(), "ns")
	for _, test := range []struct {
		name, image string
		secrets     []*corev1.Secret
		want        string
		reason      metav1.StatusReason
	}{
		{"the second login", host + "/team/base:1", []*corev1.Secret{secret("a", "wrong"), secret("b", "secret")}, digest.String(), ""},
		{"no login", host + "/team/base:1", nil, "", metav1.StatusReasonUnauthorized},
		{"no image", host + "/team/base:2", []*corev1.Secret{secret("b", "secret")}, "", metav1.StatusReasonNotFound},
	} {
		client := kubefake.NewClientset()
		for _, secret := range test.secrets {
			if _, err := client.CoreV1().Secrets("ns").Create(ctx, secret, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		object, err := importREST{client}.Create(ctx, asked(test.image), nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		got := object.(*imagev1.ImageStreamImport).Status.Images[0]
		if got.Status.Reason != test.reason || (got.Image == nil) != (test.want == "") || got.Image != nil && got.Image.Name != test.want {
			t.Errorf("%s: %+v, want image %q, reason %q", test.name, got, test.want, test.reason)
		}
	}
	for want, change := range map[string]func(*imagev1.ImageStreamImport){
		"only DockerImage is supported": func(i *imagev1.ImageStreamImport) { i.Spec.Images[0].From.Kind = "ImageStreamTag" },
		"at least one image":            func(i *imagev1.ImageStreamImport) { i.Spec.Images = nil },
		"name or generateName":          func(i *imagev1.ImageStreamImport) { i.Name = "" },
	} {
		object := asked(host + "/team/base:1")
		change(object)
		if _, err := (importREST{kubefake.NewClientset()}).Create(ctx, object, nil, nil); !apierrors.IsInvalid(err) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v, want it invalid with %q", err, want)
		}
	}
}
