// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// ClusterRights asks the API server, as OpenShift's registry does, for the user of the token and for the user's right
// to the layers of the stream.
type ClusterRights struct{ Client kubernetes.Interface }

// May implements Rights.
func (c ClusterRights) May(ctx context.Context, token, namespace, stream, verb string) (known, allowed bool, err error) {
	review, err := c.Client.AuthenticationV1().TokenReviews().Create(ctx,
		&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	if err != nil || !review.Status.Authenticated {
		return false, false, err
	}
	user := review.Status.User
	access, err := c.Client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: user.Username, UID: user.UID, Groups: user.Groups,
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: namespace, Verb: verb, Group: "image.openshift.io", Resource: "imagestreams", Subresource: "layers", Name: stream,
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return true, false, err
	}
	return true, access.Status.Allowed, nil
}

// HasStreams implements Rights.
func (c ClusterRights) HasStreams(ctx context.Context, namespace string) (bool, error) {
	_, err := c.Client.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}
