// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// TestMayRun: all rights that a run lacks are named at once.
func TestMayRun(t *testing.T) {
	const all = "pipelineruns create,get,list,watch,patch; taskruns list,watch; statefulsets get; secrets get; " +
		"pods/portforward create"
	for _, tc := range []struct {
		name             string
		folder, followed bool
		lacking          string
		want             []string
	}{
		{"all rights", true, true, "", nil},
		{"no right", true, true, all, []string{"5 of 5", "may not create, get, list, watch, patch", "secrets env-agent-client in ns: may not get",
			"pods/portforward in ns: may not create"}},
		{"a repository's run", false, true, "taskruns watch; secrets get", []string{"1 of 2", "taskruns.tekton.dev in ns: may not watch"}},
		{"a detached run", false, false, "secrets get; taskruns list", nil},
		{"a detached run of a folder", true, false, "secrets get", []string{"1 of 5"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			client := kubefake.NewClientset()
			client.PrependReactor("create", "selfsubjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
				review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SelfSubjectAccessReview)
				asked := review.Spec.ResourceAttributes
				resource := strings.TrimSuffix(asked.Resource+"/"+asked.Subresource, "/")
				review.Status.Allowed = !slices.ContainsFunc(strings.Split(tc.lacking, "; "), func(each string) bool {
					of, verbs, _ := strings.Cut(each, " ")
					return of == resource && slices.Contains(strings.Split(verbs, ","), asked.Verb)
				})
				return true, review, nil
			})
			client.PrependReactor("create", "selfsubjectreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, &authenticationv1.SelfSubjectReview{Status: authenticationv1.SelfSubjectReviewStatus{
					UserInfo: authenticationv1.UserInfo{Username: "system:serviceaccount:ns:engineer"}}}, nil
			})
			err := mayRun(t.Context(), &kube.Clients{Kube: client, Namespace: "ns"}, "env", tc.folder, tc.followed)
			if len(tc.want) == 0 {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if fail.ReasonOf(err) != fail.PermissionDenied || !strings.Contains(fail.NextOf(err), "--serviceaccount=ns:engineer") {
				t.Fatalf("%v, next %q", err, fail.NextOf(err))
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("want %q in %v", want, err)
				}
			}
		})
	}
}
