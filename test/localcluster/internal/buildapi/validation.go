// SPDX-License-Identifier: Apache-2.0

package buildapi

import (
	"strings"

	buildv1 "github.com/openshift/api/build/v1"
	imagev1 "github.com/openshift/api/image/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func validateBuildConfig(config *buildv1.BuildConfig) field.ErrorList {
	spec := field.NewPath("spec")
	problems := validateCommon(config.Spec.CommonSpec, spec, false)
	switch config.Spec.RunPolicy {
	case buildv1.BuildRunPolicySerial, buildv1.BuildRunPolicySerialLatestOnly, buildv1.BuildRunPolicyParallel:
	default:
		problems = append(problems, field.Invalid(spec.Child("runPolicy"), config.Spec.RunPolicy,
			"run policy must Parallel, Serial, or SerialLatestOnly"))
	}
	for i, t := range config.Spec.Triggers {
		switch t.Type {
		case "":
			problems = append(problems, field.Required(spec.Child("triggers").Index(i).Child("type"), ""))
		case buildv1.ConfigChangeBuildTriggerType:
		default:
			problems = append(problems, field.NotSupported(spec.Child("triggers").Index(i).Child("type"), t.Type,
				[]buildv1.BuildTriggerType{buildv1.ConfigChangeBuildTriggerType}))
		}
	}
	return problems
}

func validateBuild(build *buildv1.Build) field.ErrorList {
	return validateCommon(build.Spec.CommonSpec, field.NewPath("spec"), true)
}

// terminal reports whether a build never leaves the phase.
func terminal(phase buildv1.BuildPhase) bool {
	switch phase {
	case buildv1.BuildPhaseNew, buildv1.BuildPhasePending, buildv1.BuildPhaseRunning:
		return false
	}
	return true
}

func validateBuildUpdate(build, old *buildv1.Build) field.ErrorList {
	var problems field.ErrorList
	if terminal(old.Status.Phase) && old.Status.Phase != build.Status.Phase {
		problems = append(problems, field.Invalid(field.NewPath("status", "phase"), build.Status.Phase,
			"phase cannot be updated from a terminal state"))
	}
	// The controller sets these two fields later.
	was, is := old.Spec.DeepCopy(), build.Spec.DeepCopy()
	is.Output.PushSecret, is.Revision = was.Output.PushSecret, was.Revision
	if !equality.Semantic.DeepEqual(was, is) {
		problems = append(problems, field.Invalid(field.NewPath("spec"), "content of spec is not printed out, please refer to the \"details\"",
			"spec is immutable"))
	}
	return problems
}

func validateCommon(spec buildv1.CommonSpec, path *field.Path, isBuild bool) field.ErrorList {
	problems := validateStrategy(spec.Strategy, path.Child("strategy"))
	source := path.Child("source")
	if isBuild && spec.Source.Binary == nil {
		problems = append(problems, field.Invalid(source, "", "must provide a value for at least one source input(git, binary, dockerfile, "+
			"images)."))
	}
	if from := spec.Source; from.Git != nil || from.Dockerfile != nil || from.ContextDir != "" ||
		len(from.Images)+len(from.Secrets)+len(from.ConfigMaps) > 0 {
		problems = append(problems, field.NotSupported(source, "other sources", []buildv1.BuildSourceType{buildv1.BuildSourceBinary}))
	}
	if spec.MountTrustedCA != nil && *spec.MountTrustedCA {
		problems = append(problems, notImplemented(path.Child("mountTrustedCA")))
	}
	if to := spec.Output.To; to != nil {
		problems = append(problems, validateOutput(*to, path.Child("output", "to"))...)
	}
	for i, label := range spec.Output.ImageLabels {
		if label.Name == "" {
			problems = append(problems, field.Required(path.Child("output", "imageLabels").Index(i).Child("name"), ""))
		}
	}
	if seconds := spec.CompletionDeadlineSeconds; seconds != nil && *seconds <= 0 {
		problems = append(problems, field.Invalid(path.Child("completionDeadlineSeconds"), *seconds,
			"completionDeadlineSeconds must be a positive integer greater than 0"))
	}
	return problems
}

func validateOutput(to corev1.ObjectReference, path *field.Path) field.ErrorList {
	switch to.Kind {
	case "ImageStreamTag":
		if stream, tag, ok := strings.Cut(to.Name, ":"); !ok || stream == "" || tag == "" {
			return field.ErrorList{field.Invalid(path.Child("name"), to.Name, "ImageStreamTag object references must be in the form <name>:<tag>")}
		}
	case "DockerImage", "ImageStream":
		if to.Name == "" {
			return field.ErrorList{field.Required(path.Child("name"), "")}
		}
	case "":
		return field.ErrorList{field.Required(path.Child("kind"), "")}
	default:
		return field.ErrorList{field.Invalid(path.Child("kind"), to.Kind, "the target of build output must be an 'ImageStreamTag' or "+
			"'DockerImage'")}
	}
	return nil
}

func validateStrategy(strategy buildv1.BuildStrategy, path *field.Path) field.ErrorList {
	if strategy.DockerStrategy == nil {
		if strategy.SourceStrategy != nil || strategy.CustomStrategy != nil || strategy.JenkinsPipelineStrategy != nil {
			return field.ErrorList{field.NotSupported(path.Child("type"), strategy.Type,
				[]buildv1.BuildStrategyType{buildv1.DockerBuildStrategyType})}
		}
		return field.ErrorList{field.Invalid(path, "", "must provide a value for exactly one of sourceStrategy, customStrategy, "+
			"dockerStrategy, or jenkinsPipelineStrategy")}
	}
	docker, path := strategy.DockerStrategy, path.Child("dockerStrategy")
	var problems field.ErrorList
	for name, used := range map[string]bool{
		"from": docker.From != nil, "dockerfilePath": docker.DockerfilePath != "", "noCache": docker.NoCache,
		"imageOptimizationPolicy": docker.ImageOptimizationPolicy != nil,
	} {
		if used {
			problems = append(problems, notImplemented(path.Child(name)))
		}
	}
	for i, env := range docker.Env {
		if env.Name == "" {
			problems = append(problems, field.Required(path.Child("env").Index(i).Child("name"), ""))
		}
	}
	names, targets := map[string]bool{}, map[string]bool{}
	for i, volume := range docker.Volumes {
		at := path.Child("volumes").Index(i)
		if volume.Name == "" {
			problems = append(problems, field.Required(at.Child("name"), ""))
		} else if names[volume.Name] {
			problems = append(problems, field.Duplicate(at.Child("name"), volume.Name))
		}
		names[volume.Name] = true
		switch {
		case volume.Source.Type == buildv1.BuildVolumeSourceTypeSecret && volume.Source.Secret != nil:
		case volume.Source.Type == buildv1.BuildVolumeSourceTypeConfigMap && volume.Source.ConfigMap != nil:
		default:
			problems = append(problems, field.Invalid(at.Child("source", "type"), volume.Source.Type,
				"a volume of a build is a Secret or a ConfigMap, given with its type"))
		}
		if len(volume.Mounts) == 0 {
			problems = append(problems, field.Required(at.Child("mounts"), ""))
		}
		for j, mount := range volume.Mounts {
			target := at.Child("mounts").Index(j).Child("destinationPath")
			switch {
			case !strings.HasPrefix(mount.DestinationPath, "/"):
				problems = append(problems, field.Invalid(target, mount.DestinationPath, "must be an absolute path"))
			case targets[mount.DestinationPath]:
				problems = append(problems, field.Duplicate(target, mount.DestinationPath))
			}
			targets[mount.DestinationPath] = true
		}
	}
	return problems
}

// notImplemented refuses fields of OpenShift that this stand-in does not implement.
func notImplemented(path *field.Path) *field.Error {
	return field.Forbidden(path, "this stand-in does not implement it")
}

func validateImageStream(stream *imagev1.ImageStream) field.ErrorList {
	var problems field.ErrorList
	for i, tag := range stream.Spec.Tags {
		if tag.Name == "" || strings.ContainsAny(tag.Name, "/:@") {
			problems = append(problems, field.Invalid(field.NewPath("spec", "tags").Index(i).Child("name"), tag.Name, "must be the name of a tag"))
		}
	}
	return problems
}
