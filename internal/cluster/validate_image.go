package cluster

import (
	"slices"

	"github.com/google/go-containerregistry/pkg/name"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func (i Image) validate(path *field.Path) field.ErrorList {
	return slices.Concat(
		wellFormed(path.Child("pull_secret"), i.PullSecret, validation.IsDNS1123Subdomain),
		imageName(path.Child("name"), i.Name),
	)
}

func imageName(path *field.Path, image string) field.ErrorList {
	if image == "" {
		return nil
	}
	if _, err := name.ParseReference(image); err != nil {
		return field.ErrorList{field.Invalid(path, image, "want an image, as in registry.example.com/team/training:tag or ...@sha256:DIGEST")}
	}
	return nil
}
