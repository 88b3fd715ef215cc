package provision

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/ml-dev-env/ml-dev-env/internal/diagnose"
	"github.com/ml-dev-env/ml-dev-env/internal/install"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// OpenShift gives a new service account its pull secrets within seconds. Steps may only get accounts, not watch them.
const (
	pullSecretTime  = 30 * time.Second
	pullSecretPause = 500 * time.Millisecond
)

// addPullSecrets waits until the pods' service account has its pull secrets, because pods copy them when they are created.
// Admission does that only for pods that name none, so it adds them to those of the cluster file and of the steps image. live
// is the existing StatefulSet, nil for none; its secrets stay, unless the cluster file has another one or OpenShift has
// replaced the account's.
func (p *provisioner) addPullSecrets(ctx context.Context, live, want *appsv1.StatefulSet) error {
	spec := &want.Spec.Template.Spec
	account, err := p.accountWithSecrets(ctx, spec.ServiceAccountName)
	if err != nil {
		return err
	}
	if live != nil {
		had := live.Spec.Template.Spec.ImagePullSecrets
		if !slices.ContainsFunc(spec.ImagePullSecrets, func(ref corev1.LocalObjectReference) bool { return !slices.Contains(had, ref) }) {
			spec.ImagePullSecrets = diagnose.CurrentPullSecrets(had, account)
			return nil
		}
	}
	named := slices.Concat(spec.ImagePullSecrets, p.stepsSecrets(ctx))
	if len(named) == 0 {
		return nil
	}
	spec.ImagePullSecrets = nil
	for _, ref := range append(named, account.ImagePullSecrets...) {
		if !slices.Contains(spec.ImagePullSecrets, ref) {
			spec.ImagePullSecrets = append(spec.ImagePullSecrets, ref)
		}
	}
	return nil
}

// stepsSecrets are the Secrets that users have linked to the service account of the steps, with which their pods pull the steps
// image. The nodes pull it too. Outside the cluster it is the account that mlenv install creates.
func (p *provisioner) stepsSecrets(ctx context.Context) []corev1.LocalObjectReference {
	name := install.DefaultServiceAccount
	if p.clients.InCluster {
		var ok bool
		if name, ok = strings.CutPrefix(kube.WhoAsks(ctx, p.clients.Kube), "system:serviceaccount:"+p.request.Namespace+":"); !ok {
			return nil
		}
	}
	account, err := p.clients.Kube.CoreV1().ServiceAccounts(p.request.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(account.ImagePullSecrets, func(ref corev1.LocalObjectReference) bool { return diagnose.IsPullSecretOf(account, ref) })
}

// accountWithSecrets returns the service account as soon as it has pull secrets. It waits only where OpenShift creates them:
// there the account default of the namespace has some. If none come it warns, for images may need none.
func (p *provisioner) accountWithSecrets(ctx context.Context, name string) (account *corev1.ServiceAccount, err error) {
	get := func(name string) (*corev1.ServiceAccount, error) {
		found, err := p.clients.Kube.CoreV1().ServiceAccounts(p.request.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return found, kube.Problem(fmt.Errorf("getting serviceaccount %s/%s: %w", p.request.Namespace, name, err))
		}
		return found, nil
	}
	if account, err = get(name); err != nil || diagnose.HasPullSecret(account) {
		return account, err
	}
	if other, _ := get("default"); other == nil || !diagnose.HasPullSecret(other) {
		return account, nil
	}
	p.log.Info(fmt.Sprintf("Waiting until service account %s has its pull secrets.", name), "serviceAccount", name)
	err = wait.PollUntilContextTimeout(ctx, pullSecretPause, pullSecretTime, true, func(context.Context) (bool, error) {
		found, err := get(name)
		if err != nil {
			if kube.Transient(err) {
				err = nil
			}
			return false, err
		}
		account = found
		return diagnose.HasPullSecret(account), nil
	})
	if wait.Interrupted(err) && ctx.Err() == nil {
		p.log.Warn(fmt.Sprintf("Service account %s got no pull secrets within %s: images in the internal registry cannot be pulled without.", name, pullSecretTime), "serviceAccount", name)
		return account, nil
	}
	return account, err
}

// replaceWithoutPullSecrets deletes the pods that were created before their service account had its pull secrets. want is
// their StatefulSet, which gets the Secrets before.
func (p *provisioner) replaceWithoutPullSecrets(ctx context.Context, snapshot diagnose.Snapshot, want *appsv1.StatefulSet) error {
	pods := diagnose.WithoutPullSecrets(snapshot)
	if len(pods) > 0 && len(want.Spec.Template.Spec.ImagePullSecrets) > 0 {
		if err := p.addPullSecrets(ctx, want, want); err != nil {
			return err
		}
		if err := kube.Apply(ctx, p.clients.Kube, want); err != nil {
			return err
		}
	}
	for _, pod := range pods {
		p.log.Info(fmt.Sprintf("Replacing pod %s: it was created before service account %s had its pull secrets.", pod.Name, snapshot.Account.Name), "pod", pod.Name, "serviceAccount", snapshot.Account.Name)
		err := p.clients.Kube.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return kube.Problem(fmt.Errorf("deleting pod %s/%s: %w", pod.Namespace, pod.Name, err))
		}
	}
	return nil
}
