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

// pullSecretAnnotation is on a service account that OpenShift has given a Secret for its internal registry; it names the
// Secret. Releases before 4.16 have no annotation, and call the Secret ACCOUNT-dockercfg-SUFFIX.
const pullSecretAnnotation = "openshift.io/internal-registry-pull-secret-ref"

// HasPullSecret reports whether OpenShift has given the account its Secret for the internal registry, which it does some
// moments after the account was created.
func HasPullSecret(account *corev1.ServiceAccount) bool {
	return slices.ContainsFunc(account.ImagePullSecrets, func(ref corev1.LocalObjectReference) bool { return IsPullSecretOf(account, ref) })
}

// IsPullSecretOf reports whether OpenShift has created the Secret for the account.
func IsPullSecretOf(account *corev1.ServiceAccount, ref corev1.LocalObjectReference) bool {
	return ref.Name == account.Annotations[pullSecretAnnotation] || strings.HasPrefix(ref.Name, account.Name+"-dockercfg-")
}

// CurrentPullSecrets returns the named pull secrets with those that OpenShift has created for the account as they are now.
// Without names it returns none: pods copy the account's.
func CurrentPullSecrets(named []corev1.LocalObjectReference, account *corev1.ServiceAccount) (current []corev1.LocalObjectReference) {
	if len(named) == 0 {
		return nil
	}
	for _, ref := range named {
		if !IsPullSecretOf(account, ref) || slices.Contains(account.ImagePullSecrets, ref) {
			current = append(current, ref)
		}
	}
	for _, ref := range account.ImagePullSecrets {
		if IsPullSecretOf(account, ref) && !slices.Contains(current, ref) {
			current = append(current, ref)
		}
	}
	return current
}

// WithoutPullSecrets are the pods that cannot pull an image and never will: a pod copies its service account's pull secrets when it is
// created, and these were created before the account had those that it has now. New pods in their places can pull.
func WithoutPullSecrets(s Snapshot) (pods []corev1.Pod) {
	for i := range s.Pods {
		if pod := &s.Pods[i]; pod.DeletionTimestamp == nil && s.Account != nil && cannotPull(pod) && lacksSecrets(pod.Spec.ImagePullSecrets, s.Account) {
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
	if !HasPullSecret(account) {
		return len(has) == 0 && len(account.ImagePullSecrets) > 0
	}
	return !slices.ContainsFunc(account.ImagePullSecrets, func(ref corev1.LocalObjectReference) bool {
		return IsPullSecretOf(account, ref) && slices.Contains(has, ref)
	})
}

// readAccount reads the service account if a pod cannot pull.
func (s *Snapshot) readAccount(ctx context.Context, client kubernetes.Interface) (err error) {
	i := slices.IndexFunc(s.Pods, func(pod corev1.Pod) bool { return cannotPull(&pod) })
	if i < 0 {
		return nil
	}
	spec := s.Pods[i].Spec
	if s.Account, err = readableAccount(ctx, client, s.Pods[i].Namespace, spec.ServiceAccountName); s.Account == nil || HasPullSecret(s.Account) {
		return err
	}
	other, err := readableAccount(ctx, client, s.Pods[i].Namespace, "default")
	s.awaitsSecrets = other != nil && HasPullSecret(other)
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
