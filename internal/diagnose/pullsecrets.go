// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// WithoutPullSecrets returns the pods that cannot pull an image and never will: a pod copies its service account's pull secrets when it is
// created, and these were created before the account had those that it has now. New pods in their places can pull.
func WithoutPullSecrets(s Snapshot) (pods []corev1.Pod) {
	for i := range s.Pods {
		if pod := &s.Pods[i]; pod.DeletionTimestamp == nil && s.Account != nil && cannotPull(pod) &&
			lacksSecrets(pod.Spec.ImagePullSecrets, s.Account) {
			pods = append(pods, *pod)
		}
	}
	return pods
}

func cannotPull(pod *corev1.Pod) bool {
	return slices.ContainsFunc(containersOf(pod), container.lacksImage)
}

// lacksSecrets reports whether the account has a Secret for the internal registry that is not among these. A Secret that
// OpenShift has replaced does not exist any more.
func lacksSecrets(has []corev1.LocalObjectReference, account *corev1.ServiceAccount) bool {
	if !kube.HasPullSecret(account) {
		return len(has) == 0 && len(account.ImagePullSecrets) > 0
	}
	return !slices.ContainsFunc(account.ImagePullSecrets, func(ref corev1.LocalObjectReference) bool {
		return kube.IsPullSecretOf(account, ref) && slices.Contains(has, ref)
	})
}

// pullSecretsOf lists the account's pull secrets.
func pullSecretsOf(account *corev1.ServiceAccount) string {
	var names []string
	for _, ref := range account.ImagePullSecrets {
		names = append(names, ref.Name)
	}
	return strings.Join(names, ", ")
}

// readAccount reads the service account if a pod cannot pull.
func (s *Snapshot) readAccount(ctx context.Context, client kubernetes.Interface) (err error) {
	i := slices.IndexFunc(s.Pods, func(pod corev1.Pod) bool { return cannotPull(&pod) })
	if i < 0 {
		return nil
	}
	s.Account, err = readableAccount(ctx, client, s.Pods[i].Namespace, s.Pods[i].Spec.ServiceAccountName)
	if s.Account != nil {
		s.awaitsSecrets, err = kube.AwaitsPullSecret(ctx, client, s.Account, s.Pods[i].CreationTimestamp.Time)
	}
	return err
}

// readableAccount returns the account, nil if it does not exist or may not be read.
func readableAccount(ctx context.Context, client kubernetes.Interface, namespace, name string) (*corev1.ServiceAccount, error) {
	account, err := client.CoreV1().ServiceAccounts(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsForbidden(err), apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, kube.Problem(fmt.Errorf("reading serviceaccount %s/%s: %w", namespace, name, err))
	}
	return account, nil
}
