// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

func workspace(mode corev1.PersistentVolumeAccessMode) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "env-workspace"},
		Spec:   corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{mode}},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound}}
}

func TestStorageAuto(t *testing.T) {
	event := func(reason, message string) func(*corev1.PersistentVolumeClaim) *corev1.Event {
		return func(*corev1.PersistentVolumeClaim) *corev1.Event {
			return &corev1.Event{Reason: reason, Message: message}
		}
	}
	for _, tc := range []struct {
		name    string
		objects []runtime.Object
		live    *appsv1.StatefulSet
		change  func(*provisioner)
		probe   func(*corev1.PersistentVolumeClaim) *corev1.Event // nil binds it
		want    cluster.StorageMode
		why     string
		probed  bool
	}{
		{"the class binds", nil, nil, nil, nil, cluster.SharedStorage, "class nfs gives ReadWriteMany claims", true},
		{"the class waits for a pod", nil, nil, nil, event("WaitForFirstConsumer", "waiting"), cluster.SharedStorage, "for the first pod", true},
		{"the class refuses", nil, nil, nil, event("ProvisioningFailed", "multi-node access is not supported"), cluster.NodeStorage,
			"class nfs gives no ReadWriteMany claim: multi-node access is not supported", true},
		{"the class fails for a moment", nil, nil, nil,
			event("ProvisioningFailed", "rpc error: code = DeadlineExceeded desc = context deadline exceeded"), cluster.NodeStorage,
			"class nfs gives no ReadWriteMany claim: rpc error: code = DeadlineExceeded", true},
		{"an earlier environment has claims of its own", []runtime.Object{&corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "env-workspace-env-0"}}}, nil, nil, nil, cluster.NodeStorage,
			"claim env-workspace-env-0 of an earlier environment exists", false},
		{"claims of both modes: the newer ones were used last", []runtime.Object{workspace(corev1.ReadWriteMany),
			&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "env-workspace-env-0",
				CreationTimestamp: metav1.Now()}}}, nil, nil, nil, cluster.NodeStorage, "claim env-workspace-env-0 of an earlier environment exists",
			false},
		{"the class does nothing", nil, nil, nil, event("ExternalProvisioning", "waiting for a volume to be created"), cluster.NodeStorage,
			"claim env-storage-probe was not bound within 1m0s", true},
		{"no class", nil, nil, func(p *provisioner) { p.request.Cluster.Storage.ClassRWX = "" }, nil, cluster.NodeStorage,
			"names no storage.class_rwx", false},
		{"a claim that is shared", []runtime.Object{workspace(corev1.ReadWriteMany)}, nil, nil, nil, cluster.SharedStorage,
			"claim env-workspace exists and is ReadWriteMany", false},
		{"a claim that cannot be shared", []runtime.Object{workspace(corev1.ReadWriteOnce)}, nil, nil, nil, cluster.NodeStorage,
			"claim env-workspace exists and is not ReadWriteMany", false},
		{"a claim that the file names", []runtime.Object{workspace(corev1.ReadWriteOnce)}, nil, func(p *provisioner) {
			p.request.Cluster.Storage.WorkspaceClaim = "env-workspace"
		}, nil, cluster.SharedStorage, "claim env-workspace exists, which the cluster file names", false},
		{"what lives has templates", nil,
			&appsv1.StatefulSet{Spec: appsv1.StatefulSetSpec{VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{}}}}, nil, nil,
			cluster.NodeStorage, "separate claims for each node", false},
		{"what lives shares", nil, &appsv1.StatefulSet{}, nil, nil, cluster.SharedStorage, "shares its claims", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPlace(t, tc.objects...)
				p.probe = tc.probe
				step := p.provisioner(func(s *provisioner) { s.request.Storage = cluster.AutoStorage })
				if tc.change != nil {
					tc.change(step)
				}
				held, err := step.lease().Acquire(t.Context(), step.leaseRequest())
				if err != nil {
					t.Fatal(err)
				}
				if err := step.decideStorage(t.Context(), held, tc.live); err != nil {
					t.Fatal(err)
				}
				if step.request.Storage != tc.want || !strings.Contains(p.messages(), "Storage "+string(tc.want)+": ") ||
					!strings.Contains(p.messages(), tc.why) {
					t.Errorf("got %s, log:\n%s\nwant %s because %q", step.request.Storage, p.messages(), tc.want, tc.why)
				}
				probe, err := p.kube.CoreV1().PersistentVolumeClaims("ns").Get(t.Context(), "env-storage-probe", metav1.GetOptions{})
				if tc.probed != (err == nil) {
					t.Errorf("the trial claim: %v, want it: %t", err, tc.probed)
				}
				if err == nil && (len(probe.OwnerReferences) != 1 || probe.OwnerReferences[0].UID != held.UID()) {
					t.Errorf("the trial claim is owned by %v, want the Lease", probe.OwnerReferences)
				}
			})
		})
	}
}

// While the API server is unavailable, provision decides nothing.
func TestStorageAutoWaitsForTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlace(t)
		began := time.Now()
		away := func(after time.Duration) clienttesting.ReactionFunc {
			return func(clienttesting.Action) (bool, runtime.Object, error) {
				took := time.Since(began)
				return took >= after && took < 90*time.Second, nil, apierrors.NewServiceUnavailable("away")
			}
		}
		p.kube.PrependReactor("list", "persistentvolumeclaims", away(0))
		p.kube.PrependReactor("get", "persistentvolumeclaims", away(30*time.Second))
		step := p.provisioner(func(s *provisioner) { s.request.Storage = cluster.AutoStorage })
		held, err := step.lease().Acquire(t.Context(), step.leaseRequest())
		if err != nil {
			t.Fatal(err)
		}
		if err := step.decideStorage(t.Context(), held, nil); err != nil || step.request.Storage != cluster.SharedStorage ||
			time.Since(began) < 90*time.Second {
			t.Errorf("got %s, %v after %s; want shared storage, decided when the server is back", step.request.Storage, err, time.Since(began))
		}
	})
}

// A cancelled request finds out nothing about a class.
func TestStorageAutoToldToEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlace(t)
		ctx, cancel := context.WithCancel(t.Context())
		p.probe = func(*corev1.PersistentVolumeClaim) *corev1.Event { cancel(); return nil }
		step := p.provisioner(func(s *provisioner) { s.request.Storage = cluster.AutoStorage })
		held, err := step.lease().Acquire(t.Context(), step.leaseRequest())
		if err != nil {
			t.Fatal(err)
		}
		if err := step.decideStorage(ctx, held, nil); !errors.Is(err, context.Canceled) || step.request.Storage != cluster.AutoStorage {
			t.Errorf("got %s, %v; want Canceled and nothing decided", step.request.Storage, err)
		}
	})
}

// The step uses a user's claims as they are, or not at all.
func TestClaimsAreAdopted(t *testing.T) {
	for _, tc := range []struct {
		name  string
		claim func(*corev1.PersistentVolumeClaim)
		want  fail.Reason // "" if the claim is adopted
	}{
		{"smaller than asked for", func(*corev1.PersistentVolumeClaim) {}, ""},
		{"of one node", func(c *corev1.PersistentVolumeClaim) {
			c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
		}, fail.EnvironmentDiffers},
		{"a disk", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeMode = new(corev1.PersistentVolumeBlock) }, fail.EnvironmentDiffers},
		{"being deleted", func(c *corev1.PersistentVolumeClaim) {
			now := metav1.Now()
			c.DeletionTimestamp, c.Finalizers = &now, []string{"kubernetes.io/pvc-protection"}
		}, fail.ClaimUnbound},
	} {
		t.Run(tc.name, func(t *testing.T) {
			claim := workspace(corev1.ReadWriteMany)
			claim.Labels = map[string]string{"theirs": "yes"}
			tc.claim(claim)
			p := newPlace(t, claim)
			want := claim.DeepCopy()
			want.Labels = map[string]string{"ours": "yes"}
			err := p.provisioner().applyClaim(t.Context(), want)
			if tc.want == "" && err != nil || tc.want != "" && (fail.ReasonOf(err) != tc.want || fail.NextOf(err) == "") {
				t.Errorf("got %v, want %q with advice", err, tc.want)
			}
			for _, action := range p.kube.Actions() {
				if action.GetVerb() != "get" {
					t.Errorf("%s of %s: want the claim left as it is", action.GetVerb(), action.GetResource().Resource)
				}
			}
		})
	}
}
