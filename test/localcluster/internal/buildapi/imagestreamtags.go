// SPDX-License-Identifier: Apache-2.0

package buildapi

import (
	"context"
	"strings"

	imagev1 "github.com/openshift/api/image/v1"
	imageclient "github.com/openshift/client-go/image/clientset/versioned/typed/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
)

// tagREST is imagestreamtags: a view of the streams' tags with their images.
type tagREST struct {
	images imageclient.ImageV1Interface
	rest.TableConvertor
}

var (
	_ rest.Lister               = tagREST{}
	_ rest.Updater              = tagREST{}
	_ rest.Creater              = tagREST{} //nolint:misspell // its name
	_ rest.GracefulDeleter      = tagREST{}
	_ rest.Scoper               = tagREST{}
	_ rest.SingularNameProvider = tagREST{}
)

func (tagREST) New() runtime.Object     { return &imagev1.ImageStreamTag{} }
func (tagREST) NewList() runtime.Object { return &imagev1.ImageStreamTagList{} }
func (tagREST) Destroy()                {}
func (tagREST) NamespaceScoped() bool   { return true }
func (tagREST) GetSingularName() string { return "imagestreamtag" }
func (tagREST) ShortNames() []string    { return []string{"istag"} }

func tagNotFound(name string) error {
	return apierrors.NewNotFound(imagev1.Resource("imagestreamtags"), name)
}

// Get implements rest.Getter.
func (r tagREST) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	stream, tag, err := r.find(ctx, name)
	if err != nil {
		return nil, err
	}
	return r.view(ctx, stream, tag)
}

func (r tagREST) find(ctx context.Context, name string) (*imagev1.ImageStream, string, error) {
	streamName, tag, ok := strings.Cut(name, ":")
	if !ok || streamName == "" || tag == "" || strings.Contains(tag, ":") {
		return nil, "", apierrors.NewBadRequest("imagestreamtags must be specified with <image_stream_name>:<tag>")
	}
	stream, err := r.images.ImageStreams(genericapirequest.NamespaceValue(ctx)).Get(ctx, streamName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, "", tagNotFound(name)
	}
	return stream, tag, err
}

// view returns the tag as an object, or a NotFound error if the stream's status has no image for the tag.
func (r tagREST) view(ctx context.Context, stream *imagev1.ImageStream, tag string) (*imagev1.ImageStreamTag, error) {
	name := stream.Name + ":" + tag
	result := &imagev1.ImageStreamTag{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: stream.Namespace, Name: name, CreationTimestamp: stream.CreationTimestamp,
			Labels: stream.Labels, UID: stream.UID, ResourceVersion: stream.ResourceVersion,
		},
		LookupPolicy: stream.Spec.LookupPolicy,
	}
	for i, t := range stream.Spec.Tags {
		if t.Name == tag {
			result.Tag = &stream.Spec.Tags[i]
			result.Annotations = t.Annotations
		}
	}
	for _, history := range stream.Status.Tags {
		if history.Tag != tag || len(history.Items) == 0 {
			continue
		}
		event := history.Items[0]
		result.CreationTimestamp, result.Generation, result.Conditions = event.Created, event.Generation, history.Conditions
		image, err := r.images.Images().Get(ctx, event.Image, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			image = &imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: event.Image}}
		} else if err != nil {
			return nil, err
		}
		image.DockerImageReference = event.DockerImageReference
		// As on OpenShift, a tag omits these long fields.
		image.DockerImageManifest, image.DockerImageConfig, image.ManagedFields = "", "", nil
		result.Image = *image
		return result, nil
	}
	return nil, tagNotFound(name)
}

// List implements rest.Lister.
func (r tagREST) List(ctx context.Context, options *internalversion.ListOptions) (runtime.Object, error) {
	selector := labels.Everything()
	if options != nil && options.LabelSelector != nil {
		selector = options.LabelSelector
	}
	streams, err := r.images.ImageStreams(genericapirequest.NamespaceValue(ctx)).List(ctx,
		metav1.ListOptions{LabelSelector: selector.String()})
	if err != nil {
		return nil, err
	}
	list := &imagev1.ImageStreamTagList{ListMeta: metav1.ListMeta{ResourceVersion: streams.ResourceVersion}}
	for i := range streams.Items {
		for _, history := range streams.Items[i].Status.Tags {
			tag, err := r.view(ctx, &streams.Items[i], history.Tag)
			if apierrors.IsNotFound(err) {
				continue
			}
			if err != nil {
				return nil, err
			}
			if options != nil && options.FieldSelector != nil && !options.FieldSelector.Matches(genericFields(tag)) {
				continue
			}
			list.Items = append(list.Items, *tag)
		}
	}
	return list, nil
}

// Delete implements rest.GracefulDeleter: it deletes the tag, and keeps the image.
func (r tagREST) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc, _ *metav1.DeleteOptions) (
	runtime.Object, bool, error) {
	stream, tag, err := r.find(ctx, name)
	if err != nil {
		return nil, false, err
	}
	old, err := r.view(ctx, stream, tag)
	if err != nil {
		return nil, false, err
	}
	if validate != nil {
		if err := validate(ctx, old); err != nil {
			return nil, false, err
		}
	}
	spec, status := stream.DeepCopy(), stream.DeepCopy()
	spec.Spec.Tags = without(spec.Spec.Tags, func(t imagev1.TagReference) bool { return t.Name == tag })
	updated, err := r.images.ImageStreams(stream.Namespace).Update(ctx, spec, metav1.UpdateOptions{})
	if err != nil {
		return nil, false, err
	}
	status.ResourceVersion = updated.ResourceVersion
	status.Status.Tags = without(status.Status.Tags, func(t imagev1.NamedTagEventList) bool { return t.Tag == tag })
	if _, err := r.images.ImageStreams(stream.Namespace).UpdateStatus(ctx, status, metav1.UpdateOptions{}); err != nil {
		return nil, false, err
	}
	return &metav1.Status{Status: metav1.StatusSuccess}, true, nil
}

func without[E any](list []E, drop func(E) bool) []E {
	var kept []E
	for _, e := range list {
		if !drop(e) {
			kept = append(kept, e)
		}
	}
	return kept
}

// Create adds the tag to the stream's spec.
func (r tagREST) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, _ *metav1.CreateOptions) (
	runtime.Object, error) {
	if validate != nil {
		if err := validate(ctx, obj); err != nil {
			return nil, err
		}
	}
	wanted := obj.(*imagev1.ImageStreamTag)
	return r.wish(ctx, wanted)
}

// Update implements rest.Updater.
func (r tagREST) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc,
	update rest.ValidateObjectUpdateFunc, _ bool, _ *metav1.UpdateOptions) (runtime.Object, bool, error) {
	old, err := r.Get(ctx, name, nil)
	if apierrors.IsNotFound(err) {
		old = &imagev1.ImageStreamTag{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: genericapirequest.NamespaceValue(ctx)}}
	} else if err != nil {
		return nil, false, err
	}
	created := err != nil
	obj, err := info.UpdatedObject(ctx, old)
	if err != nil {
		return nil, false, err
	}
	switch {
	case created && create != nil:
		err = create(ctx, obj)
	case !created && update != nil:
		err = update(ctx, obj, old)
	}
	if err != nil {
		return nil, false, err
	}
	result, err := r.wish(ctx, obj.(*imagev1.ImageStreamTag))
	return result, created, err
}

// wish writes the tag into its stream's spec. The controller then records the tag's image in the status.
func (r tagREST) wish(ctx context.Context, wanted *imagev1.ImageStreamTag) (*imagev1.ImageStreamTag, error) {
	streamName, tag, _ := strings.Cut(wanted.Name, ":")
	if wanted.Tag == nil || tag == "" {
		return nil, apierrors.NewBadRequest("an ImageStreamTag is named <image_stream_name>:<tag> and says in tag where its image comes from")
	}
	streams := r.images.ImageStreams(genericapirequest.NamespaceValue(ctx))
	stream, err := streams.Get(ctx, streamName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		stream, err = streams.Create(ctx, &imagev1.ImageStream{ObjectMeta: metav1.ObjectMeta{Name: streamName}}, metav1.CreateOptions{})
	}
	if err != nil {
		return nil, err
	}
	reference := *wanted.Tag
	reference.Name, reference.Annotations = tag, wanted.Annotations
	stream.Spec.Tags = append(without(stream.Spec.Tags, func(t imagev1.TagReference) bool { return t.Name == tag }), reference)
	if stream, err = streams.Update(ctx, stream, metav1.UpdateOptions{}); err != nil {
		return nil, err
	}
	view, err := r.view(ctx, stream, tag)
	if apierrors.IsNotFound(err) {
		result := wanted.DeepCopy()
		result.ResourceVersion, result.UID, result.CreationTimestamp = stream.ResourceVersion, stream.UID, stream.CreationTimestamp
		return result, nil
	}
	return view, err
}
