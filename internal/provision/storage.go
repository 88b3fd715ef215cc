package provision

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/environment"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/lease"
)

// bindTime is how long a class has to give a claim before auto takes templates.
const bindTime = time.Minute

// decideStorage replaces auto by what the class really gives, and says why.
func (p *provisioner) decideStorage(ctx context.Context, held *lease.Held, live *appsv1.StatefulSet) error {
	if p.request.Storage != cluster.AutoStorage {
		return nil
	}
	decided, why, err := p.bestStorage(ctx, held, live)
	if err != nil {
		return err
	}
	p.request.Storage = decided
	p.log.Info(fmt.Sprintf("Storage %s: %s.", decided, why))
	return nil
}

func (p *provisioner) bestStorage(ctx context.Context, held *lease.Held, live *appsv1.StatefulSet) (cluster.StorageMode, string, error) {
	names, file := environment.NamesOf(p.request.Name), p.request.Cluster
	claims := p.clients.Kube.CoreV1().PersistentVolumeClaims(p.request.Namespace)
	switch {
	case live != nil && len(live.Spec.VolumeClaimTemplates) > 0:
		return cluster.NodeStorage, "the environment that is there has claims of its own for each node", nil
	case live != nil:
		return cluster.SharedStorage, "the environment that is there shares its claims", nil
	case file.Storage.ClassRWX == "":
		return cluster.NodeStorage, "the cluster file names no storage.class_rwx", nil
	}
	found, err := claims.Get(ctx, names.Workspace, metav1.GetOptions{})
	if err == nil && sharedClaim(found) && found.Status.Phase == corev1.ClaimBound {
		return cluster.SharedStorage, fmt.Sprintf("claim %s is there and is ReadWriteMany", names.Workspace), nil
	} else if err != nil && !apierrors.IsNotFound(err) {
		return "", "", kube.Problem(fmt.Errorf("getting claim %s/%s: %w", p.request.Namespace, names.Workspace, err))
	}
	// A claim of its own, the Lease's, tries it out: it goes with the environment,
	// and people's claims are never deleted.
	probe := probeClaim(p.request, held)
	if err := kube.Apply(ctx, p.clients.Kube, probe); err != nil {
		return "", "", err
	}
	p.log.Info(fmt.Sprintf("Trying whether class %s gives a ReadWriteMany claim.", file.Storage.ClassRWX))
	why, bound, err := p.binds(ctx, probe.Name)
	switch {
	case err != nil:
		return "", "", err
	case bound:
		return cluster.SharedStorage, why, nil
	case file.Storage.ClassRWO == "":
		return "", "", inputError("choosing the storage: class %s gives no ReadWriteMany claim (%s), and the cluster file names no storage.class_rwo", file.Storage.ClassRWX, why)
	}
	return cluster.NodeStorage, fmt.Sprintf("class %s gives no ReadWriteMany claim: %s", file.Storage.ClassRWX, why), nil
}

// probeClaim is as small as classes commonly make them.
func probeClaim(r environment.Request, held *lease.Held) *corev1.PersistentVolumeClaim {
	class := r.Cluster.Storage.ClassRWX
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: r.Name + "-storage-probe", Namespace: r.Namespace, Labels: environment.Labels(r.Name), OwnerReferences: []metav1.OwnerReference{held.Owner()}},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}, StorageClassName: &class,
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
}

// binds watches a claim until it is bound or known not to be. A class that waits
// for the first pod is believed.
func (p *provisioner) binds(ctx context.Context, name string) (why string, bound bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, bindTime)
	defer cancel()
	options := metav1.ListOptions{FieldSelector: "involvedObject.kind=PersistentVolumeClaim,involvedObject.name=" + name}
	events := p.clients.Kube.CoreV1().Events(p.request.Namespace)
	err = kube.Until(ctx, "the events of claim "+name, events, options, func(seen []*corev1.Event) (bool, error) {
		claim, err := p.clients.Kube.CoreV1().PersistentVolumeClaims(p.request.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, kube.Problem(fmt.Errorf("getting claim %s/%s: %w", p.request.Namespace, name, err))
		}
		if claim.Status.Phase == corev1.ClaimBound {
			why, bound = fmt.Sprintf("class %s gives ReadWriteMany claims", *claim.Spec.StorageClassName), true
			return true, nil
		}
		for _, event := range seen {
			if event.InvolvedObject.UID != claim.UID {
				continue
			}
			switch event.Reason {
			case "WaitForFirstConsumer":
				why, bound = "its class makes the volume when the first pod wants it", true
				return true, nil
			case "ProvisioningFailed":
				why = event.Message
				return true, nil
			}
		}
		return false, nil
	})
	if err != nil && ctx.Err() != nil {
		return fmt.Sprintf("claim %s was not bound within %s", name, bindTime), false, nil
	}
	return why, bound, err
}
