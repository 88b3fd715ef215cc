// SPDX-License-Identifier: Apache-2.0

package buildapi

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
)

func metaOf(obj runtime.Object) (*metav1.ObjectMeta, error) {
	if accessor, ok := obj.(metav1.ObjectMetaAccessor); ok {
		if m, ok := accessor.GetObjectMeta().(*metav1.ObjectMeta); ok {
			return m, nil
		}
	}
	return nil, fmt.Errorf("%T has no metadata", obj)
}

// itemsOf returns the objects of a list.
func itemsOf[T runtime.Object](list runtime.Object) []T {
	var items []T
	if !meta.IsListType(list) {
		return nil
	}
	// EachListItem returns an error only if the list cannot contain such objects.
	_ = meta.EachListItem(list, func(item runtime.Object) error {
		if one, ok := item.(T); ok {
			items = append(items, one)
		}
		return nil
	})
	return items
}

func genericFields(obj runtime.Object) fields.Set {
	m, err := metaOf(obj)
	if err != nil {
		return nil
	}
	return generic.ObjectMetaFieldsSet(m, true)
}
