// SPDX-License-Identifier: Apache-2.0

package openshift

import (
	"context"
	"fmt"
	"slices"

	"github.com/openshift/api/security"
	securityv1 "github.com/openshift/api/security/v1"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/openshift/scc"
)

// asker checks for one pod whether its service account or its creator may use constraints.
type asker struct {
	client    kubernetes.Interface
	namespace string
	creator   authenticationv1.UserInfo
	// account is the service account, nil for none.
	account *authenticationv1.UserInfo
}

func (s *server) asker(request *admissionv1.AdmissionRequest, account string) asker {
	a := asker{client: s.clients.Kube, namespace: request.Namespace, creator: request.UserInfo}
	if account != "" {
		a.account = &authenticationv1.UserInfo{
			Username: serviceaccount.MakeUsername(request.Namespace, account),
			Groups:   append(serviceaccount.MakeGroupNames(request.Namespace), user.AllAuthenticated),
		}
	}
	return a
}

// may checks the service account first, because a pod's permission should come from it.
func (a asker) may(ctx context.Context, c *securityv1.SecurityContextConstraints) (scc.Subject, error) {
	if a.account != nil {
		if ok, err := a.uses(ctx, *a.account, c); err != nil || ok {
			return scc.ServiceAccount, err
		}
	}
	if ok, err := a.uses(ctx, a.creator, c); err != nil || ok {
		return scc.User, err
	}
	return scc.Nobody, nil
}

// uses reports whether the constraint names the user or one of the user's groups, or whether the user has the right to
// use it in the pod's namespace.
func (a asker) uses(ctx context.Context, who authenticationv1.UserInfo, c *securityv1.SecurityContextConstraints) (bool, error) {
	if slices.Contains(c.Users, who.Username) || slices.ContainsFunc(who.Groups, func(g string) bool { return slices.Contains(c.Groups, g) }) {
		return true, nil
	}
	extra := map[string]authorizationv1.ExtraValue{}
	for key, value := range who.Extra {
		extra[key] = authorizationv1.ExtraValue(value)
	}
	review, err := a.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: who.Username, Groups: who.Groups, UID: who.UID, Extra: extra,
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: a.namespace, Verb: "use", Group: security.GroupName, Resource: "securitycontextconstraints", Name: c.Name,
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return false, fmt.Errorf("checking whether %s may use the constraints %s: %w", who.Username, c.Name, err)
	}
	return review.Status.Allowed, nil
}
