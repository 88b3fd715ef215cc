// SPDX-License-Identifier: Apache-2.0

package buildapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	imagev1 "github.com/openshift/api/image/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/client-go/kubernetes"
)

// importREST is imagestreamimports with import: false: it reads images from their registries, with the pull secrets of the namespace,
// and changes nothing. Imports that change a stream are not implemented.
type importREST struct{ kube kubernetes.Interface }

var (
	_ rest.Creater              = importREST{} //nolint:misspell // its name
	_ rest.Scoper               = importREST{}
	_ rest.SingularNameProvider = importREST{}
)

func (importREST) New() runtime.Object     { return &imagev1.ImageStreamImport{} }
func (importREST) Destroy()                {}
func (importREST) NamespaceScoped() bool   { return true }
func (importREST) GetSingularName() string { return "imagestreamimport" }

// Create implements the interface for creations of package rest.
func (r importREST) Create(ctx context.Context, object runtime.Object, _ rest.ValidateObjectFunc, _ *metav1.CreateOptions) (runtime.Object,
	error) {
	asked := object.(*imagev1.ImageStreamImport)
	if problems := validateImport(asked); len(problems) > 0 {
		return nil, apierrors.NewInvalid(schema.GroupKind{Group: imagev1.GroupName, Kind: "ImageStreamImport"}, asked.Name, problems)
	}
	if asked.Spec.Import || asked.Spec.Repository != nil {
		return nil, apierrors.NewBadRequest("this stand-in implements imports of single images with import: false alone")
	}
	keys, err := r.keys(ctx, genericapirequest.NamespaceValue(ctx))
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	asked.Status = imagev1.ImageStreamImportStatus{}
	for _, image := range asked.Spec.Images {
		found, err := read(ctx, image, keys)
		status := imagev1.ImageImportStatus{Image: found, Status: metav1.Status{Status: metav1.StatusSuccess}}
		if err != nil {
			status.Status = importFailure(image.From.Name, err)
		}
		asked.Status.Images = append(asked.Status.Images, status)
	}
	return asked, nil
}

func validateImport(asked *imagev1.ImageStreamImport) (problems field.ErrorList) {
	images := field.NewPath("spec", "images")
	if asked.Name == "" {
		problems = append(problems, field.Required(field.NewPath("metadata", "name"), "name or generateName is required"))
	}
	if len(asked.Spec.Images) == 0 && asked.Spec.Repository == nil {
		problems = append(problems, field.Invalid(images, nil, "you must specify at least one image or a repository import"))
	}
	for i, image := range asked.Spec.Images {
		from := images.Index(i).Child("from")
		if image.From.Kind != "DockerImage" {
			problems = append(problems, field.Invalid(from.Child("kind"), image.From.Kind, "only DockerImage is supported"))
		} else if image.From.Name == "" {
			problems = append(problems, field.Required(from.Child("name"), ""))
		}
	}
	return problems
}

// read asks the registry with each login in turn, and without one.
func read(ctx context.Context, image imagev1.ImageImportSpec, keys []authn.Keychain) (found *imagev1.Image, err error) {
	ref, err := name.ParseReference(image.From.Name)
	if err != nil {
		return nil, err
	}
	for _, key := range append(keys, authn.DefaultKeychain) {
		var descriptor *remote.Descriptor
		descriptor, err = remote.Get(ref, remote.WithContext(ctx), remote.WithAuthFromKeychain(key))
		if loginRefused(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		digest := descriptor.Digest
		if image.ImportPolicy.ImportMode != imagev1.ImportModePreserveOriginal && descriptor.MediaType.IsIndex() {
			if digest, err = platformDigest(descriptor); err != nil {
				return nil, err
			}
		}
		return &imagev1.Image{
			ObjectMeta:           metav1.ObjectMeta{Name: digest.String()},
			DockerImageReference: ref.Context().Digest(digest.String()).String(), DockerImageManifestMediaType: string(descriptor.MediaType),
		}, nil
	}
	return nil, err
}

// loginRefused reports whether another login may be let in.
func loginRefused(err error) bool {
	var refused *transport.Error
	return errors.As(err, &refused) && (refused.StatusCode == http.StatusUnauthorized || refused.StatusCode == http.StatusForbidden)
}

// platformDigest returns the digest of the image for the server's own platform: the mode Legacy imports this one of a list.
func platformDigest(descriptor *remote.Descriptor) (v1.Hash, error) {
	img, err := descriptor.Image()
	if err != nil {
		return v1.Hash{}, err
	}
	return img.Digest()
}

func importFailure(image string, err error) metav1.Status {
	status := metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Reason: metav1.StatusReasonInternalError,
		Message: fmt.Sprintf("Internal error occurred: %v", err)}
	var refused *transport.Error
	if errors.As(err, &refused) {
		switch refused.StatusCode {
		case http.StatusNotFound:
			status.Code, status.Reason, status.Message = http.StatusNotFound, metav1.StatusReasonNotFound,
				fmt.Sprintf("dockerimage.image.openshift.io %q not found", image)
		case http.StatusUnauthorized, http.StatusForbidden:
			status.Code, status.Reason = http.StatusUnauthorized, metav1.StatusReasonUnauthorized
			status.Message = fmt.Sprintf("you may not have access to the container image %q", image)
		}
	}
	return status
}

// keys returns the logins of the namespace's pull secrets, one keychain each: several may be for the same registry.
func (r importREST) keys(ctx context.Context, namespace string) (keys []authn.Keychain, err error) {
	secrets, err := r.kube.CoreV1().Secrets(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, secret := range secrets.Items {
		var config struct {
			Auths map[string]authn.AuthConfig `json:"auths"`
		}
		switch secret.Type {
		case corev1.SecretTypeDockerConfigJson:
			err = json.Unmarshal(secret.Data[corev1.DockerConfigJsonKey], &config)
		case corev1.SecretTypeDockercfg:
			err = json.Unmarshal(secret.Data[corev1.DockerConfigKey], &config.Auths)
		}
		if err == nil && len(config.Auths) > 0 {
			keys = append(keys, logins(config.Auths))
		}
	}
	return keys, nil
}

// logins are by registry.
type logins map[string]authn.AuthConfig

// Resolve implements authn.Keychain.
func (l logins) Resolve(registry authn.Resource) (authn.Authenticator, error) {
	if login, ok := l[registry.RegistryStr()]; ok {
		return authn.FromConfig(login), nil
	}
	return authn.Anonymous, nil
}
