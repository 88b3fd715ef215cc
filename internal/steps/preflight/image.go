// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"context"

	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// builderAccount runs OpenShift's builds.
const builderAccount = "builder"

func (p *probe) image(ctx context.Context) []Check {
	const name = "image"
	checks, readable := p.pulls(ctx, name)
	if readable {
		checks = append(checks, p.exists(ctx, name))
	}
	return checks
}

func (p *probe) exists(ctx context.Context, name string) Check {
	image := p.Request.Image
	switch {
	case p.building:
		return newCheck(name, OK, "", "build-image builds it, or finds it built")
	case p.Registry == nil:
		return newCheck(name, Unknown, "", "%s: its registry was not asked", image)
	}
	exists, err := p.Registry.Has(ctx, image)
	switch {
	case err != nil:
		return newCheck(name, Unknown, "give --pull-secret-dir; the nodes may have a pull secret of their own (image.pull_secret)",
			"%s: its registry does not answer: %s", image, oneLine(err.Error()))
	case !exists:
		return newCheck(name, Blocked, "correct the param image, or image.name in the cluster file", "%s: its registry has no such image",
			image).because(fail.ImageUnavailable)
	}
	return newCheck(name, OK, "", "%s exists", image)
}

// pulls checks for each image in an image stream of another namespace whether the account that pulls it may. readable is false if
// the image of that name may not be pulled.
func (p *probe) pulls(ctx context.Context, name string) (checks []Check, readable bool) {
	images := []struct{ name, image, account, secret string }{
		{name, p.Request.Image, p.file.Security.ServiceAccount, p.file.Image.PullSecret},
		{"steps image", p.Request.StepsImage, p.file.Security.ServiceAccount, p.file.Image.PullSecret},
	}
	if p.building {
		images = append(images, struct{ name, image, account, secret string }{"base image", p.file.Image.Base, builderAccount,
			p.file.Image.BasePullSecret})
	}
	readable = true
	for _, one := range images {
		from, stream, ok := kube.InternalImage(one.image)
		if !ok || from == p.Request.Namespace {
			continue
		}
		check := p.mayPull(ctx, one.name, one.image, one.account, from, stream)
		if check.Status == Blocked && one.secret != "" {
			check.Status = Warning // the Secret may have a login of another account
		}
		checks = append(checks, check)
		readable = readable && (one.name != name || check.Status == OK)
	}
	return checks, readable
}

// mayPull asks for the account. If this step may not ask that, its own right is evidence: a namespace is usually given the right as a
// whole.
func (p *probe) mayPull(ctx context.Context, name, image, account, from, stream string) Check {
	asked := authorizationv1.ResourceAttributes{Verb: "get", Group: "image.openshift.io", Resource: "imagestreams", Subresource: "layers",
		Namespace: from, Name: stream}
	next := kube.AllowPull(p.Request.Namespace, from)
	allowed, err := kube.AccountMayElsewhere(ctx, p.Clients.Kube, p.Request.Namespace, account, asked)
	switch {
	case err == nil && allowed:
		return newCheck(name, OK, "", "service account %s may pull %s from namespace %s", account, image, from)
	case err == nil:
		return newCheck(name, Blocked, next,
			"%s is an image of namespace %s, from which service account %s may not pull (get imagestreams/layers)",
			image, from, account).because(fail.ImageUnavailable)
	}
	mine, own := kube.CanI(ctx, p.Clients.Kube, asked)
	if own == nil && !mine && p.Clients.InCluster {
		return newCheck(name, Warning, next,
			"%s is an image of namespace %s; whether service account %s may pull it is not known, and the account of this step may not",
			image, from, account)
	}
	return newCheck(name, Unknown, next, "%s is an image of namespace %s; whether service account %s may pull it is not known", image, from,
		account)
}
