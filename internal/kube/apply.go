// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/util/retry"
)

// FieldManager owns every field that ml-dev-env sets.
const FieldManager = "ml-dev-env"

// Object is an object of one of the kinds that an environment is made of.
type Object interface {
	metav1.Object
	runtime.Object
}

// ApplyOptions of one object. The zero value is the environment's: FieldManager, and no dry run.
type ApplyOptions struct {
	// Manager owns the fields that are sent. FieldManager if empty.
	Manager string
	DryRun  bool
}

// Patcher is a typed or dynamic client of one kind.
type Patcher[T any] interface {
	Patch(ctx context.Context, name string, kind types.PatchType, data []byte, options metav1.PatchOptions, subresources ...string) (T, error)
}

// ApplyTo sets the fields of an object on the live one by server-side apply, except its status and empty fields. It never
// reads the live object, so a Secret needs only the verbs patch and create. It takes over fields of other managers, and
// retries after a conflict with another writer. The API server's error has no reason yet: see Problem.
func ApplyTo[T any](ctx context.Context, client Patcher[T], object any, options ApplyOptions) (T, error) {
	var applied T
	fields, err := Fields(object)
	if err != nil {
		return applied, fmt.Errorf("applying %T: %w", object, err)
	}
	sent := &unstructured.Unstructured{Object: fields}
	patch, err := json.Marshal(fields)
	if err != nil {
		return applied, fmt.Errorf("applying %s %s: %w", sent.GetKind(), FullName(sent), err)
	}
	to := metav1.PatchOptions{FieldManager: cmp.Or(options.Manager, FieldManager), Force: new(true)}
	if options.DryRun {
		to.DryRun = []string{metav1.DryRunAll}
	}
	// AlreadyExists and Conflict mean that two writers met; the second try finds the object.
	met := func(err error) bool { return apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) }
	err = retry.OnError(retry.DefaultBackoff, met, func() error {
		applied, err = client.Patch(ctx, sent.GetName(), types.ApplyPatchType, patch, to)
		return err
	})
	if err != nil {
		return applied, fmt.Errorf("applying %s %s: %w", sent.GetKind(), FullName(sent), err)
	}
	return applied, nil
}

// Contend calls write, which reads an object and then creates or changes it, again while another writer comes in between.
func Contend(write func() error) (err error) {
	const most = 5 // another writer always comes first
	for range most {
		if err = write(); !apierrors.IsAlreadyExists(err) && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			break
		}
	}
	return err
}

// FullName returns NAMESPACE/NAME, or NAME if the object has no namespace.
func FullName(object metav1.Object) string {
	return strings.TrimPrefix(object.GetNamespace()+"/"+object.GetName(), "/")
}

// Apply is ApplyTo for the kinds that an environment is made of. Errors: PermissionDenied, QuotaExceeded, SecurityRefused,
// EnvironmentDiffers where a field cannot be changed.
func Apply(ctx context.Context, client kubernetes.Interface, obj Object) error {
	namespace := obj.GetNamespace()
	var err error
	switch obj.(type) {
	case *corev1.ServiceAccount:
		_, err = ApplyTo(ctx, client.CoreV1().ServiceAccounts(namespace), obj, ApplyOptions{})
	case *corev1.Secret:
		_, err = ApplyTo(ctx, client.CoreV1().Secrets(namespace), obj, ApplyOptions{})
	case *corev1.ConfigMap:
		_, err = ApplyTo(ctx, client.CoreV1().ConfigMaps(namespace), obj, ApplyOptions{})
	case *corev1.Service:
		_, err = ApplyTo(ctx, client.CoreV1().Services(namespace), obj, ApplyOptions{})
	case *corev1.PersistentVolumeClaim:
		_, err = ApplyTo(ctx, client.CoreV1().PersistentVolumeClaims(namespace), obj, ApplyOptions{})
	case *appsv1.StatefulSet:
		_, err = ApplyTo(ctx, client.AppsV1().StatefulSets(namespace), obj, ApplyOptions{})
	default:
		err = fmt.Errorf("applying %T %s: it is not a kind that is applied", obj, FullName(obj))
	}
	return Problem(err)
}

// Fields returns an object's fields for server-side apply: with its kind, and without the zero values of unset fields, which the
// manager would own otherwise.
func Fields(object any) (map[string]any, error) {
	if shared, is := object.(*unstructured.Unstructured); is {
		object = shared.DeepCopy()
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, err
	}
	if obj, typed := object.(runtime.Object); typed && fields["kind"] == nil {
		kinds, _, err := scheme.Scheme.ObjectKinds(obj)
		if err != nil {
			return nil, err
		}
		fields["apiVersion"], fields["kind"] = kinds[0].GroupVersion().String(), kinds[0].Kind
	}
	delete(fields, "status")
	found, _, _ := unstructured.NestedFieldNoCopy(fields, "spec", "volumeClaimTemplates")
	templates, _ := found.([]any)
	for _, template := range templates {
		delete(template.(map[string]any), "status")
	}
	dropNulls(fields)
	return fields, nil
}

func dropNulls(value any) {
	switch value := value.(type) {
	case map[string]any:
		maps.DeleteFunc(value, func(_ string, inner any) bool { return inner == nil })
		for _, inner := range value {
			dropNulls(inner)
		}
	case []any:
		for _, inner := range value {
			dropNulls(inner)
		}
	}
}
