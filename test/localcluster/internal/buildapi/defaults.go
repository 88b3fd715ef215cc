// SPDX-License-Identifier: Apache-2.0

package buildapi

import (
	buildv1 "github.com/openshift/api/build/v1"
	imagev1 "github.com/openshift/api/image/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// historyLimit is the default number of successful, and of failed, builds that a BuildConfig keeps.
const historyLimit = 5

func addDefaults(scheme *runtime.Scheme) {
	scheme.AddTypeDefaultingFunc(&buildv1.BuildConfig{}, func(obj any) { defaultBuildConfig(obj.(*buildv1.BuildConfig)) })
	scheme.AddTypeDefaultingFunc(&buildv1.BuildConfigList{}, func(obj any) {
		list := obj.(*buildv1.BuildConfigList)
		for i := range list.Items {
			defaultBuildConfig(&list.Items[i])
		}
	})
	scheme.AddTypeDefaultingFunc(&buildv1.Build{}, func(obj any) { defaultCommon(&obj.(*buildv1.Build).Spec.CommonSpec) })
	scheme.AddTypeDefaultingFunc(&buildv1.BuildList{}, func(obj any) {
		list := obj.(*buildv1.BuildList)
		for i := range list.Items {
			defaultCommon(&list.Items[i].Spec.CommonSpec)
		}
	})
	scheme.AddTypeDefaultingFunc(&imagev1.ImageStream{}, func(obj any) { defaultImageStream(obj.(*imagev1.ImageStream)) })
	scheme.AddTypeDefaultingFunc(&imagev1.ImageStreamList{}, func(obj any) {
		list := obj.(*imagev1.ImageStreamList)
		for i := range list.Items {
			defaultImageStream(&list.Items[i])
		}
	})
}

func defaultBuildConfig(config *buildv1.BuildConfig) {
	spec := &config.Spec
	if spec.RunPolicy == "" {
		spec.RunPolicy = buildv1.BuildRunPolicySerial
	}
	limit := func(l **int32) {
		if *l == nil {
			n := int32(historyLimit)
			*l = &n
		}
	}
	limit(&spec.SuccessfulBuildsHistoryLimit)
	limit(&spec.FailedBuildsHistoryLimit)
	for i := range spec.Triggers {
		if t := &spec.Triggers[i]; t.Type == buildv1.ImageChangeBuildTriggerType && t.ImageChange == nil {
			t.ImageChange = &buildv1.ImageChangeTrigger{}
		}
	}
	defaultCommon(&spec.CommonSpec)
}

func defaultCommon(spec *buildv1.CommonSpec) {
	source, strategy := &spec.Source, &spec.Strategy
	if source.Type == "" && source.Binary != nil {
		source.Type = buildv1.BuildSourceBinary
	}
	if strategy.Type == "" {
		switch {
		case strategy.DockerStrategy != nil:
			strategy.Type = buildv1.DockerBuildStrategyType
		case strategy.SourceStrategy != nil:
			strategy.Type = buildv1.SourceBuildStrategyType
		case strategy.CustomStrategy != nil:
			strategy.Type = buildv1.CustomBuildStrategyType
		case strategy.JenkinsPipelineStrategy != nil:
			strategy.Type = buildv1.JenkinsPipelineBuildStrategyType
		}
	}
}

func defaultImageStream(stream *imagev1.ImageStream) {
	for i := range stream.Spec.Tags {
		tag := &stream.Spec.Tags[i]
		if tag.ImportPolicy.ImportMode == "" {
			tag.ImportPolicy.ImportMode = imagev1.ImportModeLegacy
		}
		if tag.ReferencePolicy.Type == "" {
			tag.ReferencePolicy.Type = imagev1.SourceTagReferencePolicy
		}
	}
}
