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

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
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

// WithoutPullSecrets are the pods that cannot pull an image and never will: a pod copies the pull secrets of its service
// account when it is created, and these were created before the account had any. New pods in their places can pull.
func WithoutPullSecrets(s Snapshot) (pods []corev1.Pod) {
	for i := range s.Pods {
		if pod := &s.Pods[i]; pod.DeletionTimestamp == nil && s.Account != nil && len(s.Account.ImagePullSecrets) > 0 && pullsWithoutSecrets(pod) {
			pods = append(pods, *pod)
		}
	}
	return pods
}

func pullsWithoutSecrets(pod *corev1.Pod) bool {
	return len(pod.Spec.ImagePullSecrets) == 0 && slices.ContainsFunc(containersOf(pod), func(c container) bool {
		return c.State.Waiting != nil && kube.ReasonFor(c.State.Waiting.Reason) == fail.ImageUnavailable
	})
}

// readAccount reads the service account if a pod cannot pull and has no pull secrets.
func (s *Snapshot) readAccount(ctx context.Context, client kubernetes.Interface) error {
	i := slices.IndexFunc(s.Pods, func(pod corev1.Pod) bool { return pullsWithoutSecrets(&pod) })
	if i < 0 {
		return nil
	}
	pod := &s.Pods[i]
	account, err := client.CoreV1().ServiceAccounts(pod.Namespace).Get(ctx, pod.Spec.ServiceAccountName, metav1.GetOptions{})
	switch {
	case apierrors.IsForbidden(err), apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return kube.Problem(fmt.Errorf("reading serviceaccount %s/%s: %w", pod.Namespace, pod.Spec.ServiceAccountName, err))
	}
	s.Account = account
	return nil
}
