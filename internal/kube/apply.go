package kube

import (
	"context"
	"encoding/json"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// Apply makes the live object have what obj says, and leaves alone what it does
// not say, by server-side apply. It never reads the object, so a Secret needs the
// verbs patch and create only. obj is not changed; its status and its empty
// fields are not sent.
//
// Errors: PermissionDenied, QuotaExceeded, SecurityRefused, EnvironmentDiffers
// where a field cannot be changed.
func Apply(ctx context.Context, client kubernetes.Interface, obj Object) error {
	patch, kind, err := applyPatch(obj)
	if err != nil {
		return err
	}
	// AlreadyExists and Conflict mean that two writers met; the second try finds the object.
	met := func(err error) bool { return apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) }
	err = retry.OnError(retry.DefaultBackoff, met, func() error { return send(ctx, client, obj, patch) })
	if err != nil {
		return Problem(fmt.Errorf("applying %s %s/%s: %w", kind, obj.GetNamespace(), obj.GetName(), err))
	}
	return nil
}

func send(ctx context.Context, client kubernetes.Interface, obj Object, patch []byte) error {
	namespace, name := obj.GetNamespace(), obj.GetName()
	force := true
	options := metav1.PatchOptions{FieldManager: FieldManager, Force: &force}
	var err error
	switch obj.(type) {
	case *corev1.ServiceAccount:
		_, err = client.CoreV1().ServiceAccounts(namespace).Patch(ctx, name, types.ApplyPatchType, patch, options)
	case *corev1.Secret:
		_, err = client.CoreV1().Secrets(namespace).Patch(ctx, name, types.ApplyPatchType, patch, options)
	case *corev1.ConfigMap:
		_, err = client.CoreV1().ConfigMaps(namespace).Patch(ctx, name, types.ApplyPatchType, patch, options)
	case *corev1.Service:
		_, err = client.CoreV1().Services(namespace).Patch(ctx, name, types.ApplyPatchType, patch, options)
	case *corev1.PersistentVolumeClaim:
		_, err = client.CoreV1().PersistentVolumeClaims(namespace).Patch(ctx, name, types.ApplyPatchType, patch, options)
	case *appsv1.StatefulSet:
		_, err = client.AppsV1().StatefulSets(namespace).Patch(ctx, name, types.ApplyPatchType, patch, options)
	default:
		err = fmt.Errorf("%T is not a kind that is applied", obj)
	}
	return err
}

// applyPatch is obj as server-side apply wants it: with its kind, and without the
// zero values that Go types send for fields nobody set, which would be owned.
func applyPatch(obj Object) (patch []byte, kind string, err error) {
	kinds, _, err := scheme.Scheme.ObjectKinds(obj)
	if err != nil {
		return nil, "", fmt.Errorf("applying %T %s/%s: %w", obj, obj.GetNamespace(), obj.GetName(), err)
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		return nil, "", fmt.Errorf("applying %s %s/%s: %w", kinds[0].Kind, obj.GetNamespace(), obj.GetName(), err)
	}
	fields["apiVersion"], fields["kind"] = kinds[0].GroupVersion().String(), kinds[0].Kind
	delete(fields, "status")
	if spec, ok := fields["spec"].(map[string]any); ok {
		if templates, ok := spec["volumeClaimTemplates"].([]any); ok {
			for _, template := range templates {
				delete(template.(map[string]any), "status")
			}
		}
	}
	dropNulls(fields)
	patch, err = json.Marshal(fields)
	if err != nil {
		return nil, "", fmt.Errorf("applying %s %s/%s: %w", kinds[0].Kind, obj.GetNamespace(), obj.GetName(), err)
	}
	return patch, kinds[0].Kind, nil
}

func dropNulls(value any) {
	switch value := value.(type) {
	case map[string]any:
		for key, inner := range value {
			if inner == nil {
				delete(value, key)
				continue
			}
			dropNulls(inner)
		}
	case []any:
		for _, inner := range value {
			dropNulls(inner)
		}
	}
}
