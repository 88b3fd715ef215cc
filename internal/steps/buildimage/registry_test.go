// SPDX-License-Identifier: Apache-2.0

package buildimage

import (
	"encoding/base64"
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	registryserver "github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"k8s.io/client-go/rest"

	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// serve starts a registry with team/image:1. Everything below team/ requires the user and password.
func serve(t *testing.T) (host, digest string) {
	t.Helper()
	inner := registryserver.New(registryserver.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		if user == "" && !strings.Contains(r.URL.Path, "/public/") || user != "" && user+":"+password != "me:secret" && user+":"+
			password != "serviceaccount:token" {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		inner.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	host = strings.TrimPrefix(server.URL, "http://")
	image, err := random.Image(64, 1)
	if err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(host + "/team/image:1")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, image, remote.WithAuth(&authn.Basic{Username: "me", Password: "secret"})); err != nil {
		t.Fatal(err)
	}
	hash, err := image.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return host, hash.String()
}

func TestDigest(t *testing.T) {
	host, digest := serve(t)
	auth := base64.StdEncoding.EncodeToString([]byte("me:secret"))
	secrets := map[string]map[string]string{
		"by host": {".dockerconfigjson": `{"auths":{"` + host + `":{"auth":"` + auth + `"}}}`},
		"by repository": {".dockerconfigjson": `{"auths":{"` + host + `":{"username":"x","password":"y"},"https://` + host +
			`/team":{"username":"me","password":"secret"}}}`},
		"of the old kind": {".dockercfg": `{"` + host + `":{"username":"me","password":"secret"}}`},
	}
	for name, secret := range secrets {
		t.Run(name, func(t *testing.T) {
			r, err := NewRegistry(secret, "")
			if err != nil {
				t.Fatal(err)
			}
			if got, err := r.digest(t.Context(), host+"/team/image:1"); got != digest || err != nil {
				t.Errorf("digest %s (%v), want %s", got, err, digest)
			}
		})
	}
	r, err := NewRegistry(map[string]string{".dockerconfigjson": `{"auths":{"elsewhere.example.com":{"auth":"` + auth + `"}}}`}, "")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := r.digest(t.Context(), host+"/team/image:1"); err == nil {
		t.Errorf("digest %s without a key, want an error", got)
	}
	const known = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	if got, err := r.digest(t.Context(), host+"/team/image@"+known); got != known || err != nil {
		t.Errorf("digest of a digest: %s (%v)", got, err)
	}
	for _, wrong := range []map[string]string{{}, {".dockerconfigjson": "{"}, {".dockercfg": "["}} {
		if _, err := NewRegistry(wrong, ""); err == nil {
			t.Errorf("a pull secret with %v is accepted", wrong)
		}
	}
}

func TestGone(t *testing.T) {
	gone := func(r *Registry, image string) bool {
		has, err := r.Has(t.Context(), image)
		return err == nil && !has
	}
	host, digest := serve(t)
	auth := base64.StdEncoding.EncodeToString([]byte("me:secret"))
	r, err := NewRegistry(map[string]string{".dockerconfigjson": `{"auths":{"` + host + `":{"auth":"` + auth + `"}}}`}, "token")
	if err != nil {
		t.Fatal(err)
	}
	if gone(r, host+"/team/image@"+digest) {
		t.Error("an existing image is reported as missing")
	}
	if !gone(r, host+"/team/image:2") {
		t.Error("a missing image is not reported as missing")
	}
	stranger, err := NewRegistry(map[string]string{".dockerconfigjson": "{}"}, "")
	if err != nil {
		t.Fatal(err)
	}
	if gone(stranger, host+"/team/image:2") || gone(stranger, "127.0.0.1:1/team/image:2") {
		t.Error("an image is reported as missing although the registry refuses the request or does not answer")
	}
}

// roundTrip answers requests.
type roundTrip func(*http.Request) *http.Response

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r), nil }

// TestTokenGuard: the token goes to one address only, whatever the registry library sends to other addresses.
func TestTokenGuard(t *testing.T) {
	for _, tc := range []struct {
		url, password string
		want          bool
	}{
		{"https://registry.svc:5000/v2/", "token", true},
		{"http://registry.svc:5000/v2/", "token", false},
		{"https://registry.svc/v2/", "token", false},
		{"https://registry.example.com/token", "token", false},
		{"https://registry.example.com/token", "its own password", true},
	} {
		sent := ""
		next := roundTrip(func(r *http.Request) *http.Response {
			_, sent, _ = r.BasicAuth()
			return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}
		})
		request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, tc.url, nil)
		request.SetBasicAuth("serviceaccount", tc.password)
		response, err := tokenGuard{next, &Registry{token: "token", internal: "registry.svc:5000"}}.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if (sent == tc.password) != tc.want {
			t.Errorf("%s got %q instead of %q; want it sent: %t", tc.url, sent, tc.password, tc.want)
		}
	}
}

// TestTokenOfAUser: mlenv has the user's own token, which is for the API server only.
func TestTokenOfAUser(t *testing.T) {
	for inCluster, want := range map[bool]string{true: "token", false: ""} {
		registry, err := RegistryFor(&kube.Clients{Config: &rest.Config{BearerToken: "token"}, InCluster: inCluster}, "", "")
		if err != nil {
			t.Fatal(err)
		}
		if registry.token != want {
			t.Errorf("in a cluster: %t: the registry gets %q, want %q", inCluster, registry.token, want)
		}
	}
}

// TestTokenStays: the service account token reaches the internal registry over TLS, and no other address.
func TestTokenStays(t *testing.T) {
	tests := []struct {
		name string
		// internal reports whether the registry is the cluster's own.
		internal, tls bool
		// realm makes the registry name another host for the exchange of passwords.
		realm bool
		want  bool
	}{
		{name: "the internal registry", internal: true, tls: true, want: true},
		{name: "the internal registry without TLS", internal: true},
		{name: "the internal registry with a realm elsewhere", internal: true, tls: true, realm: true},
		{name: "a foreign registry", tls: true},
		{name: "a foreign registry with a realm elsewhere", tls: true, realm: true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var received atomic.Bool
			record := func(r *http.Request) {
				if _, password, _ := r.BasicAuth(); password == "token" || strings.Contains(r.Header.Get("Authorization"), "token") {
					received.Store(true)
				}
			}
			start := httptest.NewServer
			if test.tls {
				start = httptest.NewTLSServer
			}
			elsewhere := start(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				record(r)
				w.WriteHeader(http.StatusUnauthorized)
			}))
			defer elsewhere.Close()
			server := start(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				record(r)
				challenge := `Basic realm="test"`
				if test.realm {
					challenge = `Bearer realm="` + elsewhere.URL + `/token",service="test"`
				}
				w.Header().Set("WWW-Authenticate", challenge)
				w.WriteHeader(http.StatusUnauthorized)
			}))
			defer server.Close()
			var bundle []string
			if test.tls {
				file := filepath.Join(t.TempDir(), "ca.pem")
				// Both servers have the same certificate.
				if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600); err != nil {
					t.Fatal(err)
				}
				bundle = []string{file}
			}
			r, err := NewRegistry(map[string]string{".dockerconfigjson": "{}"}, "token", bundle...)
			if err != nil {
				t.Fatal(err)
			}
			host := server.Listener.Addr().String()
			if test.internal {
				r.internal = host
			}
			_, _ = r.Has(t.Context(), host+"/team/image:1")
			if received.Load() != test.want {
				t.Errorf("the token was sent: %t, want %t", received.Load(), test.want)
			}
		})
	}
}
