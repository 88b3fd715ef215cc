// SPDX-License-Identifier: Apache-2.0

package buildapi

import (
	buildv1 "github.com/openshift/api/build/v1"
	imagev1 "github.com/openshift/api/image/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/storage/names"
)

func strategyFor[T runtime.Object](scheme *runtime.Scheme) strategy[T] {
	return strategy[T]{ObjectTyper: scheme, NameGenerator: names.SimpleNameGenerator}
}

func buildConfigs(scheme *runtime.Scheme) kind[*buildv1.BuildConfig] {
	s := strategyFor[*buildv1.BuildConfig](scheme)
	s.create = func(config *buildv1.BuildConfig) { config.Generation = 1 }
	s.update = func(config, old *buildv1.BuildConfig) {
		// lastVersion never decreases, even if a client writes an older value.
		config.Status.LastVersion = max(config.Status.LastVersion, old.Status.LastVersion)
		config.Generation = old.Generation
		if !equality.Semantic.DeepEqual(config.Spec, old.Spec) {
			config.Generation++
		}
	}
	s.validate = validateBuildConfig
	return kind[*buildv1.BuildConfig]{
		resource: buildv1.Resource("buildconfigs"), singular: buildv1.Resource("buildconfig"),
		object:   func() runtime.Object { return &buildv1.BuildConfig{} },
		list:     func() runtime.Object { return &buildv1.BuildConfigList{} },
		strategy: s, table: buildConfigTable(),
	}
}

func builds(scheme *runtime.Scheme) kind[*buildv1.Build] {
	s := strategyFor[*buildv1.Build](scheme)
	s.create = func(build *buildv1.Build) {
		if build.Status.Phase == "" {
			build.Status.Phase = buildv1.BuildPhaseNew
		}
		build.Generation = 1
	}
	s.update = func(build, old *buildv1.Build) { build.Generation = old.Generation }
	s.validate = validateBuild
	s.validateUpdate = validateBuildUpdate
	return kind[*buildv1.Build]{
		resource: buildv1.Resource("builds"), singular: buildv1.Resource("build"),
		object:   func() runtime.Object { return &buildv1.Build{} },
		list:     func() runtime.Object { return &buildv1.BuildList{} },
		strategy: s, table: buildTable(),
		fields: func(build *buildv1.Build) fields.Set {
			return fields.Set{"status": string(build.Status.Phase), "podName": PodName(build.Name)}
		},
	}
}

// noRegistryAnnotation on an ImageStream omits the repository from its status, as on a cluster without an internal
// registry.
const noRegistryAnnotation = "localcluster/no-registry"

// imageStreams returns the kind of ImageStreams. The server adds each stream's repository in the registry to its
// status.
func imageStreams(scheme *runtime.Scheme, registry string) kind[*imagev1.ImageStream] {
	s := strategyFor[*imagev1.ImageStream](scheme)
	s.create = func(stream *imagev1.ImageStream) {
		stream.Status = imagev1.ImageStreamStatus{}
		stream.Generation = 1
	}
	s.update = func(stream, old *imagev1.ImageStream) {
		stream.Status = old.Status
		stream.Generation = old.Generation
		if !equality.Semantic.DeepEqual(stream.Spec, old.Spec) {
			stream.Generation++
		}
	}
	s.validate = validateImageStream
	return kind[*imagev1.ImageStream]{
		resource: imagev1.Resource("imagestreams"), singular: imagev1.Resource("imagestream"),
		object:   func() runtime.Object { return &imagev1.ImageStream{} },
		list:     func() runtime.Object { return &imagev1.ImageStreamList{} },
		strategy: s, table: imageStreamTable(),
		read: func(stream *imagev1.ImageStream) {
			stream.Status.DockerImageRepository = ""
			if _, ok := stream.Annotations[noRegistryAnnotation]; !ok {
				stream.Status.DockerImageRepository = registry + "/" + stream.Namespace + "/" + stream.Name
			}
		},
	}
}

// imageStreamStatus returns the strategy of imagestreams/status.
func imageStreamStatus(scheme *runtime.Scheme) strategy[*imagev1.ImageStream] {
	s := strategyFor[*imagev1.ImageStream](scheme)
	s.update = func(stream, old *imagev1.ImageStream) {
		status := stream.Status
		meta := stream.ObjectMeta
		old.DeepCopyInto(stream)
		stream.Status = status
		stream.ResourceVersion, stream.ManagedFields = meta.ResourceVersion, meta.ManagedFields
	}
	return s
}

func images(scheme *runtime.Scheme) kind[*imagev1.Image] {
	s := strategyFor[*imagev1.Image](scheme)
	s.clusterScoped = true
	s.validate = func(image *imagev1.Image) field.ErrorList {
		if image.DockerImageReference == "" {
			return field.ErrorList{field.Required(field.NewPath("dockerImageReference"), "")}
		}
		return nil
	}
	return kind[*imagev1.Image]{
		resource: imagev1.Resource("images"), singular: imagev1.Resource("image"),
		object:   func() runtime.Object { return &imagev1.Image{} },
		list:     func() runtime.Object { return &imagev1.ImageList{} },
		strategy: s, table: imageTable(),
	}
}

// since returns the age of an object in the format of tables.
func since(t metav1.Time) string {
	if t.IsZero() {
		return ""
	}
	return ageOf(metav1.Now().Sub(t.Time)) + " ago"
}
