package preflight

import (
	"context"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

func (p *probe) image(ctx context.Context) []Check {
	const name = "image"
	image := p.Request.Image
	switch {
	case p.building:
		return []Check{newCheck(name, OK, "", "build-image builds it, or finds it built")}
	case p.Registry == nil:
		return []Check{newCheck(name, Unknown, "", "%s: its registry was not asked", image)}
	}
	exists, err := p.Registry.Has(ctx, image)
	switch {
	case err != nil:
		return []Check{newCheck(name, Unknown, "give --pull-secret-dir; the nodes may have a pull secret of their own (image.pull_secret)", "%s: its registry does not answer: %s", image, oneLine(err.Error()))}
	case !exists:
		return []Check{newCheck(name, Blocked, "correct the param image, or image.name in the cluster file", "%s: its registry has no such image", image).because(fail.ImageUnavailable)}
	}
	return []Check{newCheck(name, OK, "", "%s exists", image)}
}
