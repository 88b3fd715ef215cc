package buildimage

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/step/secretdir"
)

// registryTime is what a registry has to answer. What it would say only saves a
// build, so it is not waited for.
const registryTime = 5 * time.Second

// serviceCA is where OpenShift mounts the authority of its internal registry.
const serviceCA = "/var/run/secrets/kubernetes.io/serviceaccount/service-ca.crt"

// openshiftRegistry is where pods of an OpenShift cluster reach its own registry.
const openshiftRegistry = "image-registry.openshift-image-registry.svc:5000"

// Registry asks image registries what they have.
type Registry struct {
	keys authn.Keychain
	// token is the cluster's own registry's password, of the account we are.
	token     string
	internal  string
	transport http.RoundTripper
}

// RegistryFor is the registry client of a step: with the mounted pull secret, "" for the machine's own
// keys, and for the cluster's own registry with the pod's token. Errors: InvalidInput.
func RegistryFor(clients *kube.Clients, pullSecretDir, caFile string) (*Registry, error) {
	secret, err := secretdir.Read(pullSecretDir)
	if err != nil {
		return nil, err
	}
	token := ""
	if clients.InCluster {
		token = clients.Config.BearerToken
	}
	registry, err := NewRegistry(secret, token, caFile)
	if err != nil {
		return nil, fail.Because(fail.InvalidInput, err)
	}
	return registry, nil
}

// NewRegistry reads the keys of a mounted pull secret, nil for the machine's own,
// and trusts the bundles of the files that exist beside what the machine trusts.
func NewRegistry(pullSecret map[string]string, token string, bundles ...string) (*Registry, error) {
	r := &Registry{keys: authn.DefaultKeychain, token: token, internal: openshiftRegistry}
	if pullSecret != nil {
		keys, err := readKeys(pullSecret)
		if err != nil {
			return nil, err
		}
		r.keys = keys
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		roots = x509.NewCertPool()
	}
	for _, file := range append(bundles, serviceCA) {
		if content, err := os.ReadFile(file); err == nil {
			roots.AppendCertsFromPEM(content)
		}
	}
	plain := http.DefaultTransport.(*http.Transport).Clone()
	plain.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	r.transport = plain
	return r, nil
}

// Resolve implements authn.Keychain: the cluster's own registry takes the token.
func (r *Registry) Resolve(resource authn.Resource) (authn.Authenticator, error) {
	if r.token != "" && resource.RegistryStr() == r.internal {
		return &authn.Basic{Username: "serviceaccount", Password: r.token}, nil
	}
	return r.keys.Resolve(resource)
}

// digest is the image's, as in "sha256:...".
func (r *Registry) digest(ctx context.Context, image string) (string, error) {
	ref, err := name.ParseReference(image)
	if err != nil {
		return "", err
	}
	if digest, ok := ref.(name.Digest); ok {
		return digest.DigestStr(), nil
	}
	ctx, cancel := context.WithTimeout(ctx, registryTime)
	defer cancel()
	found, err := remote.Head(ref, remote.WithContext(ctx), remote.WithAuthFromKeychain(r), remote.WithTransport(r.transport))
	if err != nil {
		return "", err
	}
	return found.Digest.String(), nil
}

// gone is true where the registry says that it has no such image; not where it
// does not answer, or not to us.
func (r *Registry) gone(ctx context.Context, image string) bool {
	if ref, err := name.ParseReference(image); err == nil {
		r.internal = ref.Context().RegistryStr()
	}
	found, err := r.Has(ctx, image)
	return err == nil && !found
}

// Has asks the registry whether it has an image. The error is that it does not
// answer, or not to us.
func (r *Registry) Has(ctx context.Context, image string) (bool, error) {
	ref, err := name.ParseReference(image)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, registryTime)
	defer cancel()
	_, err = remote.Head(ref, remote.WithContext(ctx), remote.WithAuthFromKeychain(r), remote.WithTransport(r.transport))
	var refused *transport.Error
	if errors.As(err, &refused) && refused.StatusCode == http.StatusNotFound {
		return false, nil
	}
	return err == nil, err
}

// dockerConfig is the content of a Secret of type kubernetes.io/dockerconfigjson.
type dockerConfig struct {
	Auths map[string]authn.AuthConfig `json:"auths"`
}

// Resolve implements authn.Keychain: the most specific entry counts, as for the kubelet.
func (c dockerConfig) Resolve(resource authn.Resource) (authn.Authenticator, error) {
	best, found := "", authn.Anonymous
	for key, auth := range c.Auths {
		at := strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(key, "https://"), "http://"), "/")
		at = strings.TrimSuffix(strings.TrimSuffix(at, "/v1"), "/v2")
		whole := resource.String()
		if at != resource.RegistryStr() && at != whole && !strings.HasPrefix(whole, at+"/") {
			continue
		}
		if len(at) > len(best) {
			best, found = at, authn.FromConfig(auth)
		}
	}
	return found, nil
}

func readKeys(secret map[string]string) (authn.Keychain, error) {
	if text, ok := secret[".dockerconfigjson"]; ok {
		var config dockerConfig
		if err := json.Unmarshal([]byte(text), &config); err != nil {
			return nil, errors.New("reading the pull secret: its .dockerconfigjson is no JSON")
		}
		return config, nil
	}
	if text, ok := secret[".dockercfg"]; ok {
		var config dockerConfig
		if err := json.Unmarshal([]byte(text), &config.Auths); err != nil {
			return nil, errors.New("reading the pull secret: its .dockercfg is no JSON")
		}
		return config, nil
	}
	return nil, errors.New("reading the pull secret: it has neither .dockerconfigjson nor .dockercfg: want one made by `oc create secret docker-registry`")
}
