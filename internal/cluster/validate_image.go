package cluster

import (
	"errors"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func (i Image) validate(path *field.Path) field.ErrorList {
	return slices.Concat(
		wellFormed(path.Child("pull_secret"), i.PullSecret, validation.IsDNS1123Subdomain),
		wellFormed(path.Child("base_pull_secret"), i.BasePullSecret, pullSecretName),
		imageName(path.Child("name"), i.Name),
		wellFormed(path.Child("flavour"), i.Flavour, flavourName),
		imageName(path.Child("base"), i.Base),
		i.validateBuild(path),
	)
}

// pullSecretName checks the name of a Secret; - means none.
func pullSecretName(name string) []string {
	if name == "-" {
		return nil
	}
	return validation.IsDNS1123Subdomain(name)
}

// flavourName checks what becomes the tag of an image and, with dots turned to dashes, a part of object names.
func flavourName(name string) []string {
	return validation.IsDNS1123Label(strings.ReplaceAll(name, ".", "-"))
}

// CheckFlavour is an error where a name cannot be a flavour's.
func CheckFlavour(name string) error {
	if problems := flavourName(name); len(problems) > 0 {
		return errors.New(strings.Join(problems, "; "))
	}
	return nil
}

func (i Image) validateBuild(path *field.Path) field.ErrorList {
	errs := invalidIf(i.Name != "" && i.Flavour != "", path.Child("flavour"), i.Flavour, "image.name names a finished image, so nothing would be built; want one of the two")
	for n, arg := range i.BuildArgs {
		if name, _, ok := strings.Cut(arg, "="); !ok || len(validation.IsEnvVarName(name)) > 0 {
			errs = append(errs, field.Invalid(path.Child("build_args").Index(n), arg, "want KEY=VALUE, as in WITH_LLAMAFACTORY=true"))
		}
	}
	for _, amount := range []struct {
		name            string
		requests, limit Quantity
	}{
		{"memory", i.BuildResources.Requests.Memory, i.BuildResources.Limits.Memory},
		{"cpu", i.BuildResources.Requests.CPU, i.BuildResources.Limits.CPU},
		{"ephemeral_storage", i.BuildResources.Requests.EphemeralStorage, i.BuildResources.Limits.EphemeralStorage},
	} {
		at, limit := path.Child("build_resources", "requests", amount.name), path.Child("build_resources", "limits", amount.name)
		errs = slices.Concat(errs,
			invalidIf(!amount.limit.IsZero() && amount.requests.Cmp(amount.limit.Quantity) > 0, at, amount.requests.String(), "is more than the limit, "+amount.limit.String()),
			invalidIf(amount.requests.Sign() < 0, at, amount.requests.String(), "want more than nothing"),
			invalidIf(amount.limit.Sign() < 0, limit, amount.limit.String(), "want more than nothing"),
		)
	}
	return errs
}

func imageName(path *field.Path, image string) field.ErrorList {
	_, err := name.ParseReference(image)
	return invalidIf(image != "" && err != nil, path, image, "want an image, as in registry.example.com/team/training:tag or ...@sha256:DIGEST")
}
