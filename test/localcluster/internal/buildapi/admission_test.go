// SPDX-License-Identifier: Apache-2.0

package buildapi

import (
	"strings"
	"testing"

	buildv1 "github.com/openshift/api/build/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// TestBuildByStrategy tests that only a caller with the right to create builds/docker can write BuildConfigs and
// Builds.
func TestBuildByStrategy(t *testing.T) {
	objects := kubefake.NewClientset()
	objects.PrependReactor("create", "subjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
		asked := review.Spec.ResourceAttributes
		review.Status.Allowed = review.Spec.User == "allowed" && asked.Namespace == "team" && asked.Verb == "create" &&
			asked.Group == buildv1.GroupName && asked.Resource == "builds" && asked.Subresource == "docker"
		return true, review, nil
	})
	plugin := newBuildByStrategy(objects).(admission.ValidationInterface)
	for _, test := range []struct {
		resource, subresource string
		caller                user.DefaultInfo
		allowed               bool
	}{
		{"buildconfigs", "", user.DefaultInfo{Name: "allowed"}, true},
		{"buildconfigs", "", user.DefaultInfo{Name: "other"}, false},
		{"buildconfigs", "instantiate", user.DefaultInfo{Name: "other"}, false},
		{"builds", "", user.DefaultInfo{Name: "other"}, false},
		{"builds", "details", user.DefaultInfo{Name: "other"}, true},
		{"builds", "", user.DefaultInfo{Name: "other", Groups: []string{user.SystemPrivilegedGroup}}, true},
	} {
		attributes := admission.NewAttributesRecord(&buildv1.BuildConfig{}, nil, buildv1.GroupVersion.WithKind("BuildConfig"), "team", "app",
			buildv1.GroupVersion.WithResource(test.resource), test.subresource, admission.Create, nil, false, &test.caller)
		err := plugin.Validate(t.Context(), attributes, nil)
		if test.allowed != (err == nil) || err != nil &&
			(!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "build strategy Docker is not allowed")) {
			t.Errorf("%s/%s by %s: %v, want allowed %t", test.resource, test.subresource, test.caller.Name, err, test.allowed)
		}
	}
}
