// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/test/apitest"
)

func storage(size string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
}

// sized returns a bound claim of a class with that size.
func sized(name, class, size string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-of-" + name)},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany},
			StorageClassName: &class, Resources: corev1.VolumeResourceRequirements{Requests: storage(size)},
		},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: storage(size)},
	}
}

const claimsPath = "/api/v1/namespaces/ns/persistentvolumeclaims/"

// resizer stands in for admission and for the CSI project's resizer, by the class of a claim: nfs expands at once, block leaves the
// file system to the kubelet, and fixed does not allow it.
type resizer struct{ *apitest.Server }

func newResizer(t *testing.T, claims ...runtime.Object) resizer {
	r := resizer{apitest.Start(t, claims...)}
	r.Handle = func(w http.ResponseWriter, request *http.Request) bool {
		name, isClaim := strings.CutPrefix(request.URL.Path, claimsPath)
		if request.Method != http.MethodPatch || !isClaim || *r.claim(t, name).Spec.StorageClassName != "fixed" {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_ = json.NewEncoder(w).Encode(apitest.Object{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403,
			"reason": "Forbidden", "message": fmt.Sprintf(
				`persistentvolumeclaims %q is forbidden: only dynamically provisioned pvc can be resized and the storageclass that provisions the `+
					`pvc must support resize`, name)})
		return true
	}
	r.Changed = func(path string, object apitest.Object) {
		name, isClaim := strings.CutPrefix(path, claimsPath)
		if !isClaim || object == nil {
			return
		}
		claim := r.claim(t, name)
		asked, has := claim.Spec.Resources.Requests.Storage(), claim.Status.Capacity.Storage()
		switch {
		case asked.Cmp(*has) <= 0 || len(claim.Status.Conditions) > 0:
		case *claim.Spec.StorageClassName == "nfs":
			claim.Status.Capacity = storage(asked.String())
			r.Add(claim)
		case *claim.Spec.StorageClassName == "block":
			claim.Status.Conditions = []corev1.PersistentVolumeClaimCondition{{Type: corev1.PersistentVolumeClaimFileSystemResizePending,
				Status: corev1.ConditionTrue}}
			r.Add(claim)
		}
	}
	return r
}

func (r resizer) claim(t *testing.T, name string) *corev1.PersistentVolumeClaim {
	claim := &corev1.PersistentVolumeClaim{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(r.Get(claimsPath+name), claim); err != nil {
		t.Error(err)
	}
	return claim
}

// step returns the step on this server, and the place with its log.
func (r resizer) step(t *testing.T, change ...func(*provisioner)) (*place, *provisioner) {
	t.Helper()
	p := newPlace(t)
	return p, p.provisioner(append(change, func(s *provisioner) { s.clients = r.Clients(nil) })...)
}

// Existing claims grow to a size that the file or a param has, and to no other one.
func TestExpandClaims(t *testing.T) {
	asks := func(size string) func(*provisioner) { return func(s *provisioner) { s.request.WorkspaceSize = size } }
	for _, tc := range []struct {
		name, class, has string
		change           func(*provisioner)
		want             string // what the claim requests at last
		says             []string
		growing          bool
	}{
		{"by a param", "nfs", "1Gi", asks("2Gi"), "2Gi",
			[]string{"Claim env-workspace is being expanded from 1Gi to 2Gi (class nfs).", "Claim env-workspace has 2Gi now."}, false},
		{"by the file", "nfs", "512Mi", func(*provisioner) {}, "1Gi", []string{"from 512Mi to 1Gi"}, false},
		{"the file system is left", "block", "1Gi", asks("2Gi"), "2Gi",
			[]string{"The volume of claim env-workspace has 2Gi; its file system grows when a node mounts it."}, true},
		{"the class does not allow it", "fixed", "1Gi", asks("2Gi"), "1Gi",
			[]string{"Claim env-workspace stays as it is with 1Gi; 2Gi was asked for: " +
				`class fixed does not allow it: allowVolumeExpansion is not true. Next: oc patch storageclass fixed -p ` +
				`'{"allowVolumeExpansion":true}'`}, false},
		{"smaller", "nfs", "2Gi", asks("1Gi"), "2Gi",
			[]string{"Claim env-workspace stays as it is with 2Gi: 1Gi was asked for, and no claim is ever made smaller."}, false},
		{"the same", "nfs", "1Gi", asks("1024Mi"), "1Gi", nil, false},
		{"a default is no wish", "nfs", "1Gi", func(s *provisioner) {
			s.request.Cluster.Storage.WorkspaceSize = cluster.MustParseQuantity("100Gi")
		}, "1Gi", nil, false},
		{"a claim that the file names", "nfs", "1Gi", func(s *provisioner) {
			s.request.WorkspaceSize, s.request.Cluster.Storage.WorkspaceClaim = "2Gi", "env-workspace"
			s.request.Name = "other"
		}, "2Gi", []string{"Claim env-workspace has 2Gi now."}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newResizer(t, sized("env-workspace", tc.class, tc.has), sized("env-datasets", "nfs", "1Gi"), sized("theirs", "nfs", "1Mi"))
			p, step := r.step(t, tc.change)
			if err := step.expandClaims(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := r.claim(t, "env-workspace").Spec.Resources.Requests.Storage().String(); got != tc.want {
				t.Errorf("the claim requests %s, want %s", got, tc.want)
			}
			for _, says := range tc.says {
				if !strings.Contains(p.messages(), says) {
					t.Errorf("log:\n%s\nwant %q", p.messages(), says)
				}
			}
			if tc.says == nil && p.messages() != "" {
				t.Errorf("log:\n%s\nwant nothing", p.messages())
			}
			if _, growing := step.growing["env-workspace"]; growing != tc.growing {
				t.Errorf("is looked at again: %t, want %t", growing, tc.growing)
			}
			if got := r.claim(t, "theirs").Spec.Resources.Requests.Storage().String(); got != "1Mi" {
				t.Errorf("another claim requests %s", got)
			}
		})
	}
}

// What could not be done before pods mount a claim is done after it.
func TestFinishClaims(t *testing.T) {
	pending := sized("env-workspace", "nfs", "1Gi")
	pending.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}
	for _, tc := range []struct {
		name   string
		claim  *corev1.PersistentVolumeClaim
		before string
		mount  func(*corev1.PersistentVolumeClaim)
		want   string
	}{
		{"the file system has grown", sized("env-workspace", "block", "1Gi"), "grows when a node mounts it",
			func(c *corev1.PersistentVolumeClaim) {
				c.Status.Conditions, c.Status.Capacity = nil, storage("2Gi")
			}, "Claim env-workspace has 2Gi now."},
		{"the claim is bound now", pending, "has no volume yet; it is expanded from 1Gi to 2Gi once it has one",
			func(c *corev1.PersistentVolumeClaim) {
				c.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: storage("1Gi")}
			}, "Claim env-workspace has 2Gi now."},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newResizer(t, tc.claim)
			p, step := r.step(t, func(s *provisioner) { s.request.WorkspaceSize = "2Gi" })
			if err := step.expandClaims(t.Context()); err != nil || !strings.Contains(p.messages(), tc.before) ||
				strings.Contains(p.messages(), tc.want) {
				t.Fatalf("before: %v, log:\n%s\nwant %q", err, p.messages(), tc.before)
			}
			claim := r.claim(t, "env-workspace")
			tc.mount(claim)
			r.Add(claim)
			if err := step.finishClaims(t.Context()); err != nil || !strings.Contains(p.messages(), tc.want) {
				t.Errorf("%v, log:\n%s\nwant %q", err, p.messages(), tc.want)
			}
		})
	}
}

// Storage that fails, or does nothing, does not keep the nodes from starting.
func TestExpansionInVain(t *testing.T) {
	for _, tc := range []struct {
		name, event, want string
		after             time.Duration
	}{
		{"nothing happens", "", "Claim env-workspace does not have 2Gi after 2m0s; the storage continues. Next: oc describe pvc " +
			"env-workspace -n ns", 2 * time.Minute},
		{"it fails", "resize volume pvc-1 failed: rpc error: code = Internal desc = no space",
			"Claim env-workspace stays at 1Gi; 2Gi was asked for: class nfs: resize volume pvc-1 failed: rpc error: code = Internal desc = no space",
			10 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				claim := sized("env-workspace", "nfs", "1Gi")
				p := newPlace(t, claim)
				event := func(name, message string, age time.Duration) {
					p.must(p.kube.Tracker().Add(&corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)},
						Reason: "VolumeResizeFailed", Message: message,
						InvolvedObject: corev1.ObjectReference{Kind: "PersistentVolumeClaim", Name: claim.Name, UID: claim.UID},
						LastTimestamp:  metav1.NewTime(time.Now().Add(-age))}))
				}
				event("old", "yesterday's", 24*time.Hour)
				if tc.event != "" {
					event("new", tc.event, 0)
				}
				step := p.provisioner(func(s *provisioner) { s.request.WorkspaceSize = "2Gi" })
				began := time.Now()
				if err := step.expandClaims(t.Context()); err != nil || !strings.Contains(p.messages(), tc.want) {
					t.Errorf("%v, log:\n%s\nwant %q", err, p.messages(), tc.want)
				}
				if took := time.Since(began); took > tc.after {
					t.Errorf("waited for %s, want at most %s", took, tc.after)
				}
			})
		})
	}
}

// The claims of nodes grow one by one under a StatefulSet that stays as it is, with its pods. One whose class does not allow it stays.
func TestClaimsOfNodesGrow(t *testing.T) {
	p := newPlace(t, sized("env-workspace-env-0", "block", "1Gi"), sized("env-workspace-env-1", "block", "1Gi")).withRun(day())
	store := clienttesting.ObjectReaction(p.kube.Tracker())
	p.kube.PrependReactor("patch", "persistentvolumeclaims", func(action clienttesting.Action) (bool, runtime.Object, error) {
		handled, obj, err := store(action)
		if err == nil {
			claim := obj.(*corev1.PersistentVolumeClaim)
			claim.Status.Capacity = claim.Spec.Resources.Requests
			p.must(p.kube.Tracker().Update(action.GetResource(), claim, "ns"))
		}
		return handled, obj, err
	})
	p.separate = true
	var pods []string
	for i, size := range []string{"1Gi", "2Gi"} {
		_, err := p.provisioner(func(s *provisioner) {
			s.request.Storage, s.request.WorkspaceSize = cluster.NodeStorage, size
		}).run(t.Context())
		if err != nil {
			t.Fatalf("time %d: %v\n%s", i+1, err, p.messages())
		}
		list, err := p.kube.CoreV1().Pods("ns").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, pod := range list.Items {
			pods = append(pods, string(pod.UID)+" "+pod.CreationTimestamp.String())
		}
	}
	if n := len(pods) / 2; !slices.Equal(pods[:n], pods[n:]) {
		t.Errorf("pods before and after: %v", pods)
	}
	var set *appsv1.StatefulSet
	set, err := p.kube.AppsV1().StatefulSets("ns").Get(t.Context(), "env", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := set.Spec.VolumeClaimTemplates[0].Spec.Resources.Requests.Storage().String(); got != "1Gi" {
		t.Errorf("the template has %s, want 1Gi, which is immutable", got)
	}
	for node := range 2 {
		name := fmt.Sprintf("env-workspace-env-%d", node)
		claim, err := p.kube.CoreV1().PersistentVolumeClaims("ns").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got := claim.Spec.Resources.Requests.Storage().String(); got != "2Gi" ||
			!strings.Contains(p.messages(), "Claim "+name+" has 2Gi now.") {
			t.Errorf("claim %s requests %s, log:\n%s", name, got, p.messages())
		}
	}
}
