// SPDX-License-Identifier: Apache-2.0

package openshift

import (
	"context"
	"fmt"
	"log"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// A ConfigMap with this label gets the trusted certificates under bundleKey.
const (
	injectLabel = "config.openshift.io/inject-trusted-cabundle"
	bundleKey   = "ca-bundle.crt"
)

type bundleInjector struct {
	client kubernetes.Interface
	bundle string
}

func (b bundleInjector) watch(ctx context.Context, informer cache.SharedIndexInformer) error {
	inject := func(obj any) {
		cm, ok := obj.(*corev1.ConfigMap)
		if !ok {
			return
		}
		if err := b.inject(ctx, cm); err != nil {
			log.Print(err)
		}
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    inject,
		UpdateFunc: func(_, obj any) { inject(obj) },
	})
	return err
}

func (b bundleInjector) inject(ctx context.Context, cm *corev1.ConfigMap) error {
	if cm.Data[bundleKey] == b.bundle {
		return nil
	}
	cm = cm.DeepCopy()
	if cm.Data == nil {
		cm.Data = map[string]string{}
	}
	cm.Data[bundleKey] = b.bundle
	_, err := b.client.CoreV1().ConfigMaps(cm.Namespace).Update(ctx, cm, metav1.UpdateOptions{})
	// A conflict or a deletion causes another event.
	if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		return fmt.Errorf("writing trusted certificates to configmap %s/%s: %w", cm.Namespace, cm.Name, err)
	}
	return nil
}
