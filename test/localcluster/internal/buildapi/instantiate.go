// SPDX-License-Identifier: Apache-2.0

package buildapi

import (
	"context"
	"fmt"
	"strings"

	buildv1 "github.com/openshift/api/build/v1"
	buildclient "github.com/openshift/client-go/build/clientset/versioned/typed/build/v1"
	imageclient "github.com/openshift/client-go/image/clientset/versioned/typed/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/client-go/kubernetes"
)

// conflictRetries is the number of attempts to create a build if other requests change the BuildConfig first.
const conflictRetries = 3

// Instantiator creates Builds from BuildConfigs.
type Instantiator struct {
	Builds buildclient.BuildV1Interface
	Images imageclient.ImageV1Interface
	Kube   kubernetes.Interface
}

// Instantiate increments the BuildConfig's lastVersion and creates its next Build.
func (i Instantiator) Instantiate(ctx context.Context, namespace string, request *buildv1.BuildRequest) (*buildv1.Build, error) {
	var err error
	for range conflictRetries {
		var build *buildv1.Build
		if build, err = i.once(ctx, namespace, request); err == nil || !apierrors.IsConflict(err) {
			return build, err
		}
	}
	return nil, err
}

func (i Instantiator) once(ctx context.Context, namespace string, request *buildv1.BuildRequest) (*buildv1.Build, error) {
	configs := i.Builds.BuildConfigs(namespace)
	config, err := configs.Get(ctx, request.Name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	if strings.EqualFold(config.Annotations[buildv1.BuildConfigPausedAnnotation], "true") {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("can't instantiate from BuildConfig %s/%s: BuildConfig is paused", config.Namespace,
			config.Name))
	}
	if v := request.LastVersion; v != nil && *v != config.Status.LastVersion {
		return nil,
			apierrors.NewBadRequest(fmt.Sprintf("the LastVersion(%d) on build config %s/%s does not match the build request LastVersion(%d)",
				config.Status.LastVersion, config.Namespace, config.Name, *v))
	}
	config.Status.LastVersion++
	build, err := generate(config, request)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	account := build.Spec.ServiceAccount
	if _, err := i.Kube.CoreV1().ServiceAccounts(namespace).Get(ctx, account, metav1.GetOptions{}); err != nil {
		//nolint:errorlint // OpenShift drops the error's own status here
		err = fmt.Errorf("error getting push/pull secrets for service account %s/%s: %v", namespace, account, err)
		return nil, apierrors.NewInternalError(err)
	}
	// Update lastVersion first: if two requests arrive at the same time, only one succeeds here.
	if _, err := configs.Update(ctx, config, metav1.UpdateOptions{}); err != nil {
		return nil, err
	}
	return i.Builds.Builds(namespace).Create(ctx, build, metav1.CreateOptions{})
}

// instantiateREST is buildconfigs/instantiate.
type instantiateREST struct{ instantiator Instantiator }

var (
	_ rest.NamedCreater    = instantiateREST{}
	_ rest.StorageMetadata = instantiateREST{}
)

func (instantiateREST) New() runtime.Object { return &buildv1.BuildRequest{} }
func (instantiateREST) Destroy()            {}

func (instantiateREST) ProducesMIMETypes(string) []string { return nil }
func (instantiateREST) ProducesObject(string) any         { return buildv1.Build{} }

// Create implements rest.NamedCreater.
func (r instantiateREST) Create(ctx context.Context, name string, obj runtime.Object, validate rest.ValidateObjectFunc,
	_ *metav1.CreateOptions) (runtime.Object, error) {
	request := obj.(*buildv1.BuildRequest)
	if request.Name == "" {
		request.Name = name
	}
	if request.Name != name {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)", request.Name,
			name))
	}
	if validate != nil {
		if err := validate(ctx, obj); err != nil {
			return nil, err
		}
	}
	if len(request.TriggeredBy) == 0 {
		request.TriggeredBy = []buildv1.BuildTriggerCause{{Message: CauseManual}}
	}
	return r.instantiator.Instantiate(ctx, genericapirequest.NamespaceValue(ctx), request)
}
