// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
)

const (
	// pullSecretTime is how long OpenShift may take to give a new service account its pull secrets, which it does within seconds.
	pullSecretTime = 30 * time.Second
	// pullSecretPause is the time between two looks for the pull secrets of an account, because steps may not watch accounts.
	pullSecretPause = 500 * time.Millisecond
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

// PodPullSecrets returns the pull secrets for a pod that needs the named ones: admission gives a pod the Secrets of its account only if
// it names none, so the account's are added. Without names it returns none.
func PodPullSecrets(named []corev1.LocalObjectReference, account *corev1.ServiceAccount) (all []corev1.LocalObjectReference) {
	if len(named) == 0 {
		return nil
	}
	for _, ref := range slices.Concat(named, account.ImagePullSecrets) {
		if !slices.Contains(all, ref) {
			all = append(all, ref)
		}
	}
	return all
}

// LinkedPullSecrets returns the Secrets that users have linked to a service account, none if it cannot be read.
func (c *Clients) LinkedPullSecrets(ctx context.Context, namespace, name string) []corev1.LocalObjectReference {
	account, err := getAccount(ctx, c.Kube, namespace, name)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(account.ImagePullSecrets, func(ref corev1.LocalObjectReference) bool { return IsPullSecretOf(account, ref) })
}

// AccountWithPullSecrets returns the service account as soon as it has its Secret for the internal registry: a pod copies the
// pull secrets of its account when it is created, and never gets later ones. It waits at most pullSecretTime, and only if
// AwaitsPullSecret reports that OpenShift still has to create the Secret. It calls say before it waits, and if no Secret came.
// The images may need none, so that is not an error.
func (c *Clients) AccountWithPullSecrets(ctx context.Context, namespace, name string, say func(string)) (*corev1.ServiceAccount, error) {
	var account *corev1.ServiceAccount
	waits := false
	err := wait.PollUntilContextTimeout(ctx, pullSecretPause, pullSecretTime, true, func(context.Context) (bool, error) {
		// Not in the context of the poll: near its end the client's rate limiter refuses a request that would come after it.
		found, err := getAccount(ctx, c.Kube, namespace, name)
		switch {
		case account != nil && Transient(err):
			return false, nil
		case err != nil:
			return false, err
		}
		account = found
		awaits, err := AwaitsPullSecret(ctx, c.Kube, account, c.Now())
		if awaits && !waits {
			waits = true
			say(fmt.Sprintf("Waiting until service account %s has its pull secrets.", name))
		}
		return !awaits && err == nil, nil
	})
	if ctx.Err() != nil {
		return account, fmt.Errorf("waiting for the pull secrets of service account %s/%s: %w", namespace, name, context.Cause(ctx))
	}
	if account != nil && wait.Interrupted(err) {
		err = nil
	}
	if waits && err == nil && !HasPullSecret(account) {
		say(fmt.Sprintf("Service account %s got no pull secrets within %s: images in the internal registry cannot be pulled without.", name,
			pullSecretTime))
	}
	return account, err
}

// AwaitsPullSecret reports whether OpenShift has not yet given the account the Secret that it gives every account. If the
// account default has one, all get one. A namespace that is new at a time of the API server's clock has none yet; then it depends on
// whether the cluster has image streams. An error is transient: another call may get the answer.
func AwaitsPullSecret(ctx context.Context, client kubernetes.Interface, account *corev1.ServiceAccount, at time.Time) (bool, error) {
	if HasPullSecret(account) {
		return false, nil
	}
	other, err := getAccount(ctx, client, account.Namespace, "default")
	switch {
	case apierrors.IsNotFound(err):
		other = account // the namespace may be as new as the account
	case err != nil:
		return false, ifTransient(err)
	case HasPullSecret(other):
		return true, nil
	}
	if at.Sub(other.CreationTimestamp.Time) > pullSecretTime {
		return false, nil
	}
	_, err = client.Discovery().ServerResourcesForGroupVersion("image.openshift.io/v1")
	if apierrors.IsNotFound(err) { // in plain text, which client-go takes for an unexpected answer
		return false, nil
	}
	return err == nil, ifTransient(Problem(err))
}

func ifTransient(err error) error {
	if Transient(err) {
		return err
	}
	return nil
}

func getAccount(ctx context.Context, client kubernetes.Interface, namespace, name string) (*corev1.ServiceAccount, error) {
	found, err := client.CoreV1().ServiceAccounts(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return found, Problem(fmt.Errorf("getting serviceaccount %s/%s: %w", namespace, name, err))
	}
	return found, nil
}
