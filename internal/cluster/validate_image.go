// SPDX-License-Identifier: Apache-2.0

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

// CheckFlavour returns an error if a name cannot be a flavour's.
func CheckFlavour(name string) error {
	if problems := flavourName(name); len(problems) > 0 {
		return errors.New(strings.Join(problems, "; "))
	}
	return nil
}

func (i Image) validateBuild(path *field.Path) field.ErrorList {
	errs := invalidIf(i.Name != "" && i.Flavour != "", path.Child("flavour"), i.Flavour, "image.name names a finished image, so nothing "+
		"would be built; want one of the two")
	for n, arg := range i.BuildArgs {
		if name, _, ok := strings.Cut(arg, "="); !ok || len(validation.IsEnvVarName(name)) > 0 {
			errs = append(errs, field.Invalid(path.Child("build_args").Index(n), arg, "want KEY=VALUE, as in WITH_LLAMAFACTORY=true"))
		}
	}
	path = path.Child("build_resources")
	check := func(name string, request, limit Quantity) {
		errs = slices.Concat(errs,
			invalidIf(!limit.IsZero() && request.Cmp(limit.Quantity) > 0, path.Child("requests", name), request.String(),
				"is more than the limit, "+limit.String()),
			invalidIf(request.Sign() < 0, path.Child("requests", name), request.String(), "want more than nothing"),
			invalidIf(limit.Sign() < 0, path.Child("limits", name), limit.String(), "want more than nothing"),
		)
	}
	requests, limits := i.BuildResources.Requests, i.BuildResources.Limits
	check("memory", requests.Memory, limits.Memory)
	check("cpu", requests.CPU, limits.CPU)
	check("ephemeral_storage", requests.EphemeralStorage, limits.EphemeralStorage)
	return errs
}

func imageName(path *field.Path, image string) field.ErrorList {
	_, err := name.ParseReference(image)
	return invalidIf(image != "" && err != nil, path, image, "want an image, as in registry.example.com/team/training:tag or "+
		"...@sha256:DIGEST")
}
