package preflight

import (
	"context"
	"fmt"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// image says whether the training image is there, as far as its registry answers us.
func (p *probe) image(ctx context.Context) []Check {
	check := Check{Name: "image", Verdict: Unknown}
	if p.building {
		check.Verdict, check.Seen = OK, "it is built, or found, by build-image"
		return []Check{check}
	}
	image := p.Request.Image
	if p.Registry == nil {
		check.Seen = image + ": its registry was not asked"
		return []Check{check}
	}
	there, err := p.Registry.Has(ctx, image)
	switch {
	case err != nil:
		check.Seen = fmt.Sprintf("%s: its registry does not answer us: %s", image, oneLine(err.Error()))
		check.Fix = "give --pull-secret-dir; the nodes may have a pull secret of their own (image.pull_secret)"
	case !there:
		check.Verdict, check.Reason = Blocked, fail.ImageUnavailable
		check.Seen = image + ": its registry has no such image"
		check.Fix = "correct the param image, or image.name in the cluster file"
	default:
		check.Verdict, check.Seen = OK, image+" is there"
	}
	return []Check{check}
}
