// SPDX-License-Identifier: Apache-2.0

package buildapi

import (
	"context"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
)

// statusREST is imagestreams/status.
type statusREST struct{ store *genericregistry.Store }

var _ rest.Patcher = statusREST{}

func (statusREST) New() runtime.Object { return &imagev1.ImageStream{} }
func (statusREST) Destroy()            {}

// Get implements rest.Getter.
func (r statusREST) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	return r.store.Get(ctx, name, options)
}

// Update implements rest.Updater.
func (r statusREST) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc,
	update rest.ValidateObjectUpdateFunc, _ bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	return r.store.Update(ctx, name, info, create, update, false, options)
}
