// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/diagnose"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
)

// addPullSecrets waits until the pods' service account has its pull secrets, because pods copy them when they are created.
// Admission does that only for pods that name none, so it adds them to the secrets of the cluster file and the steps image. live
// is the existing StatefulSet, nil for none; its secrets stay, unless the cluster file has another one or OpenShift has
// replaced the account's.
func (p *provisioner) addPullSecrets(ctx context.Context, live, want *appsv1.StatefulSet) error {
	spec := &want.Spec.Template.Spec
	account, err := p.clients.AccountWithPullSecrets(ctx, p.request.Namespace, spec.ServiceAccountName, func(line string) { p.log.Info(line) })
	if err != nil {
		return err
	}
	if live != nil {
		had := live.Spec.Template.Spec.ImagePullSecrets
		if !slices.ContainsFunc(spec.ImagePullSecrets, func(ref corev1.LocalObjectReference) bool { return !slices.Contains(had, ref) }) {
			spec.ImagePullSecrets = kube.CurrentPullSecrets(had, account)
			return nil
		}
	}
	spec.ImagePullSecrets = kube.PodPullSecrets(slices.Concat(spec.ImagePullSecrets, p.stepsSecrets(ctx)), account)
	return nil
}

// stepsSecrets returns the Secrets that users have linked to the service account of the steps, with which their pods pull the steps
// image. The nodes pull it too. Outside the cluster it is the account to which mlenv install gave the rights.
func (p *provisioner) stepsSecrets(ctx context.Context) []corev1.LocalObjectReference {
	if !p.clients.InCluster {
		return p.clients.LinkedPullSecrets(ctx, p.request.Namespace, launch.Account(ctx, p.clients))
	}
	name, ok := strings.CutPrefix(kube.WhoAsks(ctx, p.clients.Kube), "system:serviceaccount:"+p.request.Namespace+":")
	if !ok {
		return nil
	}
	return p.clients.LinkedPullSecrets(ctx, p.request.Namespace, name)
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
		p.log.Info(fmt.Sprintf("Replacing pod %s: it was created before service account %s had its pull secrets.", pod.Name,
			snapshot.Account.Name))
		err := p.clients.Kube.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name,
			metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return kube.Problem(fmt.Errorf("deleting pod %s/%s: %w", pod.Namespace, pod.Name, err))
		}
	}
	return nil
}
