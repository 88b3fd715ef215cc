// SPDX-License-Identifier: Apache-2.0

package buildapi

import (
	"context"
	"errors"
	"slices"

	buildv1 "github.com/openshift/api/build/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
)

// buildByStrategy stands in for OpenShift's BuildByStrategy: a caller that writes a BuildConfig or a Build, or
// instantiates one, needs the right to create builds/docker. Like OpenShift, it does not check instantiatebinary.
type buildByStrategy struct {
	*admission.Handler
	kube kubernetes.Interface
}

var _ admission.ValidationInterface = buildByStrategy{}

func newBuildByStrategy(kube kubernetes.Interface) admission.Interface {
	return buildByStrategy{admission.NewHandler(admission.Create, admission.Update), kube}
}

// Validate implements admission.ValidationInterface.
func (b buildByStrategy) Validate(ctx context.Context, attr admission.Attributes, _ admission.ObjectInterfaces) error {
	resource := attr.GetResource().GroupResource()
	if resource != buildv1.Resource("builds") && resource != buildv1.Resource("buildconfigs") || attr.GetSubresource() == "details" {
		return nil
	}
	caller := attr.GetUserInfo()
	if slices.Contains(caller.GetGroups(), user.SystemPrivilegedGroup) {
		return nil // the server itself; it must work during an outage of the cluster's API server
	}
	extra := map[string]authorizationv1.ExtraValue{}
	for name, values := range caller.GetExtra() {
		extra[name] = values
	}
	review, err := b.kube.AuthorizationV1().SubjectAccessReviews().Create(ctx,
		&authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: caller.GetName(), UID: caller.GetUID(), Groups: caller.GetGroups(), Extra: extra,
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: attr.GetNamespace(), Verb: "create", Group: buildv1.GroupName, Resource: "builds", Subresource: "docker",
				Name: attr.GetName(),
			},
		}}, metav1.CreateOptions{})
	switch {
	case err != nil:
		return admission.NewForbidden(attr, err)
	case !review.Status.Allowed:
		return admission.NewForbidden(attr, errors.New("build strategy Docker is not allowed"))
	}
	return nil
}
