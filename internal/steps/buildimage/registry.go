// SPDX-License-Identifier: Apache-2.0

package buildimage

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/authn/kubernetes"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	corev1 "k8s.io/api/core/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/secretdir"
)

// registryTime is how long a registry may take to answer. Its answer only saves a build.
const registryTime = 5 * time.Second

// serviceCA is where OpenShift mounts the authority of its internal registry.
const serviceCA = "/var/run/secrets/kubernetes.io/serviceaccount/service-ca.crt"

// openshiftRegistry is where pods of an OpenShift cluster reach its own registry.
const openshiftRegistry = "image-registry.openshift-image-registry.svc:5000"

// Registry looks up images in registries.
type Registry struct {
	keys authn.Keychain
	// token is the step's service account token, the password for the registry internal.
	token     string
	internal  string
	transport http.RoundTripper
}

// RegistryFor returns the registry client of a step. It uses the mounted pull secret, "" for the machine's own keys, and for
// the cluster's own registry the pod's token. Errors: InvalidInput.
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

// Connect returns a function for Deps.Connect: clients with the namespace of the flags or else of the cluster file, and the
// registry client of RegistryFor.
func Connect(where kube.Flags, file cluster.File, pullSecretDir, caFile string) func() (*kube.Clients, *Registry, error) {
	return func() (*kube.Clients, *Registry, error) {
		clients, err := where.Connect()
		if err != nil {
			return nil, nil, err
		}
		clients.Namespace = where.NamespaceOf(clients, file.Cluster.Namespace)
		registry, err := RegistryFor(clients, pullSecretDir, caFile)
		return clients, registry, err
	}
}

// NewRegistry reads the keys of a mounted pull secret, nil for the machine's own, and trusts the bundles that exist in
// addition to the machine's.
func NewRegistry(pullSecret map[string]string, token string, bundles ...string) (*Registry, error) {
	r := &Registry{keys: authn.DefaultKeychain, token: token, internal: openshiftRegistry}
	if pullSecret != nil {
		keys, err := readKeys(pullSecret)
		if err != nil {
			return nil, err
		}
		r.keys = keys
	}
	r.transport = tokenGuard{command.Transport(append(bundles, serviceCA)...), r}
	return r, nil
}

// tokenGuard removes the service account token from requests to any other host than the
// internal registry's, and from requests without TLS. A registry names the host that
// exchanges passwords for bearer tokens itself, so Resolve alone cannot keep the token.
type tokenGuard struct {
	next     http.RoundTripper
	registry *Registry
}

// RoundTrip implements http.RoundTripper.
func (g tokenGuard) RoundTrip(request *http.Request) (*http.Response, error) {
	_, password, _ := request.BasicAuth()
	if password != "" && password == g.registry.token && (request.URL.Scheme != "https" || request.URL.Host != g.registry.internal) {
		request = request.Clone(request.Context())
		request.Header.Del("Authorization")
	}
	return g.next.RoundTrip(request)
}

// Resolve implements authn.Keychain: the cluster's own registry gets the token.
func (r *Registry) Resolve(resource authn.Resource) (authn.Authenticator, error) {
	if r.token != "" && resource.RegistryStr() == r.internal {
		return &authn.Basic{Username: "serviceaccount", Password: r.token}, nil
	}
	return r.keys.Resolve(resource)
}

func (r *Registry) digest(ctx context.Context, image string) (string, error) {
	ref, err := name.ParseReference(image)
	if err != nil {
		return "", err
	}
	if digest, ok := ref.(name.Digest); ok {
		return digest.DigestStr(), nil
	}
	return r.head(ctx, ref)
}

func (r *Registry) options(ctx context.Context) []remote.Option {
	return []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(r), remote.WithTransport(r.transport)}
}

func (r *Registry) head(ctx context.Context, ref name.Reference) (digest string, err error) {
	ctx, cancel := context.WithTimeout(ctx, registryTime)
	defer cancel()
	found, err := remote.Head(ref, r.options(ctx)...)
	if err != nil {
		return "", err
	}
	return found.Digest.String(), nil
}

// Has reports whether the registry has an image. It returns an error if the registry does not answer, or refuses to.
func (r *Registry) Has(ctx context.Context, image string) (bool, error) {
	ref, err := name.ParseReference(image)
	if err != nil {
		return false, err
	}
	_, err = r.head(ctx, ref)
	var refused *transport.Error
	if errors.As(err, &refused) && refused.StatusCode == http.StatusNotFound {
		return false, nil
	}
	return err == nil, err
}

// RunsAsRoot reports whether the kubelet would see that containers of an image run as root, or could not rule it out: the image names no
// user, or one by name.
func (r *Registry) RunsAsRoot(ctx context.Context, image string) (bool, error) {
	ref, err := name.ParseReference(image)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, registryTime)
	defer cancel()
	found, err := remote.Image(ref, r.options(ctx)...)
	if err != nil {
		return false, err
	}
	config, err := found.ConfigFile()
	if err != nil {
		return false, err
	}
	user, _, _ := strings.Cut(config.Config.User, ":")
	id, err := strconv.Atoi(user)
	return err != nil || id == 0, nil
}

// readKeys returns the keychain of a pull secret. As for the kubelet, an entry's key is a registry with or without a path.
func readKeys(secret map[string]string) (authn.Keychain, error) {
	for key, kind := range map[string]corev1.SecretType{
		corev1.DockerConfigJsonKey: corev1.SecretTypeDockerConfigJson,
		corev1.DockerConfigKey:     corev1.SecretTypeDockercfg,
	} {
		text, found := secret[key]
		if !found {
			continue
		}
		keys, err := kubernetes.NewFromPullSecrets(context.Background(),
			[]corev1.Secret{{Type: kind, Data: map[string][]byte{key: []byte(text)}}})
		if err != nil {
			return nil, fmt.Errorf("reading the pull secret: its %s is invalid", key) // err may quote it
		}
		return keys, nil
	}
	return nil, errors.New("reading the pull secret: it has neither .dockerconfigjson nor .dockercfg: want one created by `oc create secret " +
		"docker-registry`")
}
