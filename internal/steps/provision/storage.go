// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"sync/atomic"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedv1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// bindTime is how long a class may take to bind a claim before auto uses templates.
const bindTime = time.Minute

// decideStorage replaces auto by what the storage class supports, and logs why.
func (p *provisioner) decideStorage(ctx context.Context, held *lease.Hold, live *appsv1.StatefulSet) error {
	defer func() { p.warnOfUnusedClaims() }()
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

// warnOfUnusedClaims names claims of the cluster file that no node mounts, because each has claims of its own.
func (p *provisioner) warnOfUnusedClaims() {
	for _, m := range p.request.Mounts() {
		if m.Named && p.request.Storage == cluster.NodeStorage {
			p.log.Warn(fmt.Sprintf("Claim %s (%s of the cluster file) is not mounted: with storage %s each node has claims of its own.",
				m.Claim, m.Key, cluster.NodeStorage))
		}
	}
}

func (p *provisioner) bestStorage(ctx context.Context, held *lease.Hold, live *appsv1.StatefulSet) (cluster.StorageMode, string, error) {
	file, workspace := p.request.Cluster, p.request.Mounts()[0]
	claims := p.clients.Kube.CoreV1().PersistentVolumeClaims(p.request.Namespace)
	switch {
	case live != nil && len(live.Spec.VolumeClaimTemplates) > 0:
		return cluster.NodeStorage, "the existing environment has separate claims for each node", nil
	case live != nil:
		return cluster.SharedStorage, "the existing environment shares its claims", nil
	case file.Storage.ClassRWX == "":
		return cluster.NodeStorage, "the cluster file names no storage.class_rwx", nil
	}
	shared, err := claimOrNil(ctx, claims, workspace.Claim)
	if err != nil {
		return "", "", err
	}
	names := p.request.Names()
	own, err := claimOrNil(ctx, claims, names.NodeClaim(names.Workspace, 0))
	if err != nil {
		return "", "", err
	}
	switch {
	case shared != nil && workspace.Named:
		return cluster.SharedStorage, fmt.Sprintf("claim %s exists, which the cluster file names", workspace.Claim), nil
	case own != nil && (shared == nil || shared.CreationTimestamp.Before(&own.CreationTimestamp)):
		// An earlier environment decided so, and its files are there.
		return cluster.NodeStorage, fmt.Sprintf("claim %s of an earlier environment exists", own.Name), nil
	case shared != nil && objects.IsShared(shared) && shared.Status.Phase == corev1.ClaimBound:
		return cluster.SharedStorage, fmt.Sprintf("claim %s exists and is ReadWriteMany", workspace.Claim), nil
	case shared != nil && !objects.IsShared(shared) && p.request.Nodes > 1:
		return cluster.NodeStorage, fmt.Sprintf("claim %s exists and is not ReadWriteMany", workspace.Claim), nil
	}
	// The Lease owns the probe, which is deleted with the environment; users' claims never are.
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
		return "", "", fail.Becausef(fail.InvalidInput, "choosing the storage: class %s gives no ReadWriteMany claim (%s), and the cluster "+
			"file names no storage.class_rwo", file.Storage.ClassRWX, why)
	}
	return cluster.NodeStorage, fmt.Sprintf("class %s gives no ReadWriteMany claim: %s", file.Storage.ClassRWX, why), nil
}

func claimOrNil(ctx context.Context, claims typedv1.PersistentVolumeClaimInterface, name string) (*corev1.PersistentVolumeClaim, error) {
	claim, err := claims.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, kube.Problem(fmt.Errorf("getting claim %s: %w", name, err))
	}
	return claim, nil
}

// probeClaim is as small as classes commonly make them.
func probeClaim(r objects.Request, held *lease.Hold) *corev1.PersistentVolumeClaim {
	class := r.Cluster.Storage.ClassRWX
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: r.Name + "-storage-probe", Namespace: r.Namespace, Labels: objects.Labels(r.Name),
			OwnerReferences: []metav1.OwnerReference{held.OwnerReference()}},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}, StorageClassName: &class,
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
}

// binds watches a claim until it is bound or known not to be. It accepts a class that waits for the first pod, and blames no class
// for an API server that is away.
func (p *provisioner) binds(ctx context.Context, name string) (why string, bound bool, err error) {
	claims := p.clients.Kube.CoreV1().PersistentVolumeClaims(p.request.Namespace)
	for {
		claim, err := claims.Get(ctx, name, metav1.GetOptions{})
		switch {
		case err == nil:
			why, bound, err = p.bindsInTime(ctx, claim)
			if !errors.Is(err, errNotInTime) {
				return why, bound, err
			}
			if _, err = claims.Get(ctx, name, metav1.GetOptions{}); err == nil {
				return fmt.Sprintf("claim %s was not bound within %s", name, bindTime), false, nil
			}
			p.log.Warn("The storage is not decided yet, because the API server does not answer.", "error", err)
		case !kube.Transient(err):
			return "", false, kube.Problem(fmt.Errorf("getting claim %s/%s: %w", p.request.Namespace, name, err))
		}
		select {
		case <-time.After(serverPause):
		case <-ctx.Done():
			return "", false, fmt.Errorf("getting claim %s/%s: %w", p.request.Namespace, name, errors.Join(context.Cause(ctx), err))
		}
	}
}

// serverPause is between two questions to an API server that does not answer.
const serverPause = 2 * time.Second

// errNotInTime is that nothing is known of a claim after bindTime.
var errNotInTime = errors.New("not in time")

func (p *provisioner) bindsInTime(ctx context.Context, claim *corev1.PersistentVolumeClaim) (why string, bound bool, err error) {
	claims, name := p.clients.Kube.CoreV1().PersistentVolumeClaims(p.request.Namespace), claim.Name
	trying, cancel := context.WithTimeout(ctx, bindTime)
	defer cancel()
	// Only the claim shows that it is bound, and only events show why it is not.
	watching, end := context.WithCancelCause(trying)
	defer end(nil)
	var last atomic.Pointer[string] // the last message of a provisioner that failed
	go func() {
		options := metav1.ListOptions{FieldSelector: "involvedObject.kind=PersistentVolumeClaim,involvedObject.name=" + name}
		_ = kube.WatchUntil(watching, "the events of claim "+name, p.clients.Kube.CoreV1().Events(p.request.Namespace), options,
			func(seen []*corev1.Event) (bool, error) {
				for _, event := range seen {
					if event.InvolvedObject.UID != claim.UID {
						continue
					}
					switch event.Reason {
					case "WaitForFirstConsumer":
						end(&claimEvent{"its class creates the volume for the first pod", true})
					case "ProvisioningFailed":
						last.Store(&event.Message)
						if !passes.MatchString(event.Message) {
							end(&claimEvent{event.Message, false})
						}
					}
				}
				return false, nil
			})
	}()
	err = kube.UntilOne(watching, "claim "+name, claims, name, func(claim *corev1.PersistentVolumeClaim) (bool, error) {
		return claim != nil && claim.Status.Phase == corev1.ClaimBound, nil
	})
	var event *claimEvent
	switch {
	case err == nil:
		return fmt.Sprintf("class %s gives ReadWriteMany claims", *claim.Spec.StorageClassName), true, nil
	case errors.As(err, &event):
		return event.why, event.bound, nil
	case trying.Err() != nil && ctx.Err() == nil && last.Load() != nil:
		return *last.Load(), false, nil
	case trying.Err() != nil && ctx.Err() == nil:
		return "", false, errNotInTime
	}
	return "", false, err
}

// passes matches failures after which provisioners try again, with CSI's codes for them.
var passes = regexp.MustCompile(`(?i)DeadlineExceeded|Aborted|Unavailable|ResourceExhausted|time(d |-)?out|deadline exceeded|refused`)

type claimEvent struct {
	why   string
	bound bool
}

func (e *claimEvent) Error() string { return e.why }
