// SPDX-License-Identifier: Apache-2.0

package envflags

import (
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// TestMayProvision: a user without any right learns all at once, and which Roles give them. A misspelt resource would not be asked for.
func TestMayProvision(t *testing.T) {
	client := fake.NewClientset()
	refuse := true
	client.PrependReactor("create", "selfsubjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SelfSubjectAccessReview)
		review.Status.Allowed = !refuse
		return true, review, nil
	})
	clients := &kube.Clients{Kube: client, Namespace: "ns"}
	err := MayProvision(t.Context(), clients)
	if fail.ReasonOf(err) != fail.PermissionDenied || !strings.Contains(fail.NextOf(err), "--role=mlenv-pipeline") ||
		!strings.Contains(fail.NextOf(err), "--role=mlenv-user ") {
		t.Fatalf("got %v, next %q", err, fail.NextOf(err))
	}
	for _, resource := range strings.Fields("leases statefulsets services secrets persistentvolumeclaims pods pods/portforward") {
		if !strings.Contains(err.Error(), "\n  "+resource) {
			t.Errorf("%s is not named in %v", resource, err)
		}
	}
	refuse = false
	if err := MayProvision(t.Context(), clients); err != nil {
		t.Error(err)
	}
}
