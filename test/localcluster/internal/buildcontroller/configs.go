// SPDX-License-Identifier: Apache-2.0

package buildcontroller

import (
	"context"

	buildv1 "github.com/openshift/api/build/v1"
	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/buildapi"
)

// handleConfig starts the first build of a BuildConfig with the ConfigChange trigger, queues its waiting builds, and
// deletes ended builds beyond the history limits.
func (c *controller) handleConfig(ctx context.Context, namespace, name string) error {
	builds, err := c.buildsOf(ctx, namespace, name)
	if err != nil {
		return err
	}
	for _, b := range builds {
		if b.Status.Phase == buildv1.BuildPhaseNew {
			c.queue.Add(key{kindBuild, namespace, b.Name})
		}
	}
	config, err := c.Builds.BuildConfigs(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || config.DeletionTimestamp != nil {
		return err
	}
	background := metav1.DeletePropagationBackground
	for _, old := range surplus(config, builds) {
		err := c.Builds.Builds(namespace).Delete(ctx, old, metav1.DeleteOptions{PropagationPolicy: &background})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return c.buildAtFirst(ctx, config)
}

// buildAtFirst acts as the ConfigChange trigger: it starts one build when the BuildConfig appears, and none for later changes.
func (c *controller) buildAtFirst(ctx context.Context, config *buildv1.BuildConfig) error {
	if config.Status.LastVersion != 0 {
		return nil
	}
	for _, t := range config.Spec.Triggers {
		if t.Type != buildv1.ConfigChangeBuildTriggerType {
			continue
		}
		first := int64(0)
		_, err := c.instantiator.Instantiate(ctx, config.Namespace, &buildv1.BuildRequest{
			ObjectMeta:  metav1.ObjectMeta{Name: config.Name},
			LastVersion: &first,
			TriggeredBy: []buildv1.BuildTriggerCause{{Message: buildapi.CauseConfig}},
		})
		// Another request has already created the first build.
		if apierrors.IsBadRequest(err) {
			return nil
		}
		return err
	}
	return nil
}

func (c *controller) buildsOf(ctx context.Context, namespace, config string) ([]buildv1.Build, error) {
	list, err := c.Builds.Builds(namespace).List(ctx, metav1.ListOptions{
		LabelSelector: labels.Set{buildv1.BuildConfigLabel: config[:min(len(config), 63)]}.String(),
	})
	if err != nil {
		return nil, err
	}
	var builds []buildv1.Build
	for _, b := range list.Items {
		if configOf(&b) == config {
			builds = append(builds, b)
		}
	}
	return builds, nil
}

// handleStream queues builds that wait for the stream, and imports the images of its tags.
func (c *controller) handleStream(ctx context.Context, namespace, name string) error {
	list, err := c.Builds.Builds(namespace).List(ctx, metav1.ListOptions{FieldSelector: "status=" + string(buildv1.BuildPhaseNew)})
	if err != nil {
		return err
	}
	for _, b := range list.Items {
		c.queue.Add(key{kindBuild, namespace, b.Name})
	}
	stream, err := c.Images.ImageStreams(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	return c.importTags(ctx, stream)
}

// importTags imports the tags of the stream's spec that name an image by its reference. If an image is not available,
// it records the failure on the tag.
func (c *controller) importTags(ctx context.Context, stream *imagev1.ImageStream) error {
	for _, tag := range stream.Spec.Tags {
		if tag.From == nil || tag.From.Kind != "DockerImage" || tag.Reference || handled(stream, tag) {
			continue
		}
		image, err := fetchImage(ctx, tag.From.Name)
		if err != nil {
			if err := c.noteImportFailure(ctx, stream, tag.Name, err); err != nil {
				return err
			}
			continue
		}
		if err := c.tagImage(ctx, stream.Namespace, stream.Name, tag.Name, image, stream.Generation); err != nil {
			return err
		}
	}
	return nil
}

// handled reports whether the tag was imported since the last change of the stream's spec.
func handled(stream *imagev1.ImageStream, tag imagev1.TagReference) bool {
	for _, history := range stream.Status.Tags {
		if history.Tag != tag.Name {
			continue
		}
		for _, condition := range history.Conditions {
			if condition.Type == imagev1.ImportSuccess && condition.Generation >= stream.Generation {
				return true
			}
		}
		return len(history.Items) > 0 && history.Items[0].Generation >= stream.Generation
	}
	return false
}
