// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// Access are verbs on one object or, without a name, on all objects of a resource.
type Access struct {
	Resource        schema.GroupResource
	Namespace, Name string
	Verbs           []string
}

func (a Access) String() string {
	text := a.Resource.String()
	if a.Name != "" {
		text += " " + a.Name
	}
	if a.Namespace != "" {
		text += " in " + a.Namespace
	}
	return text
}

// Reviewer reports whether RBAC lets someone do what is asked.
type Reviewer func(ctx context.Context, asked authorizationv1.ResourceAttributes) (bool, error)

// reviewsAtOnce is a guess of how many reviews an API server answers at a time without delay.
const reviewsAtOnce = 16

// Refused returns the accesses of which a verb is refused, each with these verbs alone. Reviews are sent at the same time.
func Refused(ctx context.Context, may Reviewer, needed []Access) ([]Access, error) {
	refused := make([]Access, len(needed))
	var reviews errgroup.Group
	reviews.SetLimit(reviewsAtOnce)
	for i, one := range needed {
		reviews.Go(func() error {
			refused[i] = one
			refused[i].Verbs = nil
			resource, sub, _ := strings.Cut(one.Resource.Resource, "/")
			for _, verb := range one.Verbs {
				allowed, err := may(ctx, authorizationv1.ResourceAttributes{Verb: verb, Group: one.Resource.Group, Resource: resource,
					Subresource: sub, Namespace: one.Namespace, Name: one.Name})
				if err != nil {
					return Problem(fmt.Errorf("asking for the right to %s %s: %w", verb, one, err))
				}
				if !allowed {
					refused[i].Verbs = append(refused[i].Verbs, verb)
				}
			}
			return nil
		})
	}
	err := reviews.Wait()
	return slices.DeleteFunc(refused, func(a Access) bool { return len(a.Verbs) == 0 }), err
}

// CheckAccess checks every right of the caller before any is used, so that a missing one does not leave half of the work done. doing is
// the work, as in "applying". Errors: PermissionDenied with all that is refused.
func CheckAccess(ctx context.Context, client kubernetes.Interface, doing string, needed []Access) error {
	may := func(ctx context.Context, asked authorizationv1.ResourceAttributes) (bool, error) {
		return CanI(ctx, client, asked)
	}
	refused, err := Refused(ctx, may, needed)
	if err != nil || len(refused) == 0 {
		return err
	}
	var lines []string
	for _, one := range refused {
		lines = append(lines, fmt.Sprintf("%s: may not %s", one, strings.Join(one.Verbs, ", ")))
	}
	return fail.Becausef(fail.PermissionDenied, "%s: nothing was changed: %d of %d objects are refused:\n  %s",
		doing, len(refused), len(needed), strings.Join(lines, "\n  "))
}

// Account returns a service account as the API server names it.
func Account(namespace, name string) string {
	return "system:serviceaccount:" + namespace + ":" + name
}

// AccountMay asks whether a service account may do something in its namespace, by a review that needs only a Role there.
func AccountMay(ctx context.Context, client kubernetes.Interface, namespace, account string,
	asked authorizationv1.ResourceAttributes) (bool, error) {
	asked.Namespace = namespace
	review, err := client.AuthorizationV1().LocalSubjectAccessReviews(namespace).Create(ctx, &authorizationv1.LocalSubjectAccessReview{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace},
		Spec: authorizationv1.SubjectAccessReviewSpec{
			ResourceAttributes: &asked, User: Account(namespace, account),
			Groups: groupsOf(namespace),
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	return review.Status.Allowed, nil
}

// AccountMayElsewhere asks whether a service account may do something in the namespace of asked. That needs the right to create
// SubjectAccessReviews in the cluster, or their local kind in that namespace.
func AccountMayElsewhere(ctx context.Context, client kubernetes.Interface, namespace, account string,
	asked authorizationv1.ResourceAttributes) (bool, error) {
	spec := authorizationv1.SubjectAccessReviewSpec{ResourceAttributes: &asked, User: Account(namespace, account), Groups: groupsOf(namespace)}
	review, err := client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec},
		metav1.CreateOptions{})
	if err == nil {
		return review.Status.Allowed, nil
	}
	local, localErr := client.AuthorizationV1().LocalSubjectAccessReviews(asked.Namespace).Create(ctx,
		&authorizationv1.LocalSubjectAccessReview{
			ObjectMeta: metav1.ObjectMeta{Namespace: asked.Namespace}, Spec: spec,
		}, metav1.CreateOptions{})
	if localErr == nil {
		return local.Status.Allowed, nil
	}
	return false, err
}

// groupsOf returns the groups of a namespace's service accounts.
func groupsOf(namespace string) []string {
	return []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"}
}

// CanI asks whether the caller may do something, which needs no right.
func CanI(ctx context.Context, client kubernetes.Interface, asked authorizationv1.ResourceAttributes) (bool, error) {
	review, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &asked},
	}, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	return review.Status.Allowed, nil
}

// WhoAsks returns the API server's name of the caller, or "USER" if it does not answer.
func WhoAsks(ctx context.Context, client kubernetes.Interface) string {
	review, err := client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return "USER"
	}
	return cmp.Or(review.Status.UserInfo.Username, "USER")
}

var refusedRequest = regexp.MustCompile(
	`User "([^"]*)" cannot (\S+) resource "([^"]*)" in API group "([^"]*)"(?: in the namespace "([^"]*)")?`)

// LacksRight reports whether RBAC refuses the caller, and not admission the object: the API server calls both Forbidden.
func LacksRight(err error) bool { return refusedRequest.MatchString(err.Error()) }

func denied(err error) error {
	next := "oc auth can-i --list"
	if found := refusedRequest.FindStringSubmatch(err.Error()); found != nil && found[1] == "system:anonymous" {
		next = "oc login"
	} else if found != nil {
		next = GrantCommands(found[1], found[2], found[3], found[4], found[5])
	}
	return fail.Advise(fail.Because(fail.PermissionDenied, err), "%s", next)
}

// GrantCommands returns the commands that let user do verb, or several with commas; an empty namespace means the whole cluster.
func GrantCommands(user, verb, resource, group, namespace string) string {
	resource, sub, isSub := strings.Cut(resource, "/")
	name := "ml-dev-env-" + strings.ReplaceAll(verb, ",", "-") + "-" + resource
	if isSub {
		name += "-" + sub
	}
	if group != "" {
		resource += "." + group
	}
	if isSub {
		resource += "/" + sub
	}
	kind, where := "role", " -n "+namespace
	if namespace == "" {
		kind, where = "clusterrole", ""
	}
	return fmt.Sprintf("oc create %s %s%s --verb=%s --resource=%s\noc create %sbinding %s%s --%s=%s %s",
		kind, name, where, companions(verb), resource, kind, name, where, kind, name, Subject(user))
}

// companions adds the verbs that the API server would refuse next.
func companions(verb string) string {
	switch verb {
	case "patch":
		// Server-side apply of what does not exist asks for create as well.
		return "patch,create"
	case "list", "watch":
		return "list,watch"
	}
	return verb
}

// Subject returns the flag of oc create rolebinding that names a user as the API server does.
func Subject(user string) string {
	if account, is := strings.CutPrefix(user, "system:serviceaccount:"); is {
		return "--serviceaccount=" + account
	}
	return "--user=" + user
}
