// SPDX-License-Identifier: Apache-2.0

package buildapi

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/names"
)

// strategy defines how the server creates, updates and deletes objects of one kind.
type strategy[T runtime.Object] struct {
	runtime.ObjectTyper
	names.NameGenerator
	clusterScoped bool
	// create and update prepare an object before it is validated.
	create   func(obj T)
	update   func(obj, old T)
	validate func(obj T) field.ErrorList
	// validateUpdate runs in addition to validate.
	validateUpdate func(obj, old T) field.ErrorList
}

func (s strategy[T]) NamespaceScoped() bool                                     { return !s.clusterScoped }
func (s strategy[T]) Canonicalize(runtime.Object)                               {}
func (s strategy[T]) AllowCreateOnUpdate() bool                                 { return false }
func (s strategy[T]) AllowUnconditionalUpdate() bool                            { return false }
func (s strategy[T]) WarningsOnCreate(context.Context, runtime.Object) []string { return nil }
func (s strategy[T]) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}

func (s strategy[T]) PrepareForCreate(_ context.Context, obj runtime.Object) {
	if s.create != nil {
		s.create(obj.(T))
	}
}

func (s strategy[T]) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	if s.update != nil {
		s.update(obj.(T), old.(T))
	}
}

func (s strategy[T]) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	if s.validate == nil {
		return nil
	}
	return s.validate(obj.(T))
}

func (s strategy[T]) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	problems := s.Validate(ctx, obj)
	if s.validateUpdate != nil {
		problems = append(problems, s.validateUpdate(obj.(T), old.(T))...)
	}
	return problems
}

var (
	_ rest.RESTCreateStrategy = strategy[runtime.Object]{}
	_ rest.RESTUpdateStrategy = strategy[runtime.Object]{}
	_ rest.RESTDeleteStrategy = strategy[runtime.Object]{}
)

// kind describes a resource that is stored in etcd.
type kind[T runtime.Object] struct {
	resource, singular schema.GroupResource
	object             func() runtime.Object
	list               func() runtime.Object
	strategy           strategy[T]
	// fields are the fields that a client can select by, in addition to name and namespace.
	fields func(obj T) fields.Set
	table  rest.TableConvertor
	// The store calls read on every object before it returns the object.
	read func(obj T)
}

// newStore creates the store of a kind.
func newStore[T runtime.Object](k kind[T], options generic.RESTOptionsGetter) (*genericregistry.Store, error) {
	attributes := func(obj runtime.Object) (labels.Set, fields.Set, error) {
		meta, err := metaOf(obj)
		if err != nil {
			return nil, nil, err
		}
		set := generic.ObjectMetaFieldsSet(meta, !k.strategy.clusterScoped)
		if k.fields != nil {
			set = generic.MergeFieldsSets(set, k.fields(obj.(T)))
		}
		return meta.Labels, set, nil
	}
	store := &genericregistry.Store{
		NewFunc: k.object, NewListFunc: k.list,
		DefaultQualifiedResource: k.resource, SingularQualifiedResource: k.singular,
		CreateStrategy: k.strategy, UpdateStrategy: k.strategy, DeleteStrategy: k.strategy,
		TableConvertor: k.table,
		PredicateFunc: func(label labels.Selector, f fields.Selector) storage.SelectionPredicate {
			return storage.SelectionPredicate{Label: label, Field: f, GetAttrs: attributes}
		},
	}
	if k.read != nil {
		store.Decorator = func(obj runtime.Object) {
			if one, ok := obj.(T); ok {
				k.read(one)
				return
			}
			for _, item := range itemsOf[T](obj) {
				k.read(item)
			}
		}
	}
	if err := store.CompleteWithOptions(&generic.StoreOptions{RESTOptions: options, AttrFunc: attributes}); err != nil {
		return nil, fmt.Errorf("opening the store of %s: %w", k.resource, err)
	}
	return store, nil
}
