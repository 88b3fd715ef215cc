// SPDX-License-Identifier: Apache-2.0

package env

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/test/apitest"
)

func sizes(size string) corev1.ResourceList {
	if size == "" {
		return nil
	}
	return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
}

// claimOf returns a bound claim of class nfs-csi that requests one size and has another.
func claimOf(request, has string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "claim", UID: "uid-of-claim"},
		Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: new("nfs-csi"),
			Resources: corev1.VolumeResourceRequirements{Requests: sizes(request)}},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: sizes(has)},
	}
}

func TestFitOf(t *testing.T) {
	for _, tc := range []struct {
		request, has, size string
		phase              corev1.PersistentVolumeClaimPhase
		want               Fit
	}{
		{"100Gi", "100Gi", "100Gi", corev1.ClaimBound, Fits},
		{"102400Mi", "100Gi", "100Gi", corev1.ClaimBound, Fits},
		{"100Gi", "", "100Gi", corev1.ClaimPending, Fits},
		{"100Gi", "100Gi", "200Gi", corev1.ClaimBound, Smaller},
		{"100Gi", "1Ti", "200Gi", corev1.ClaimBound, Fits}, // the storage gave more
		{"100Gi", "", "200Gi", corev1.ClaimPending, Unbound},
		{"200Gi", "100Gi", "200Gi", corev1.ClaimBound, Expanding},
		{"200Gi", "200Gi", "100Gi", corev1.ClaimBound, Larger},
		{"200Gi", "100Gi", "150Gi", corev1.ClaimBound, Larger},
	} {
		claim := claimOf(tc.request, tc.has)
		claim.Status.Phase = tc.phase
		if got := FitOf(claim, resource.MustParse(tc.size)); got != tc.want {
			t.Errorf("%+v: got %s", tc, got)
		}
	}
}

// The statuses are those that external-resizer and the kubelet write, in older and newer versions.
func TestGrowthOf(t *testing.T) {
	condition := func(kind corev1.PersistentVolumeClaimConditionType, message string) []corev1.PersistentVolumeClaimCondition {
		return []corev1.PersistentVolumeClaimCondition{{Type: kind, Status: corev1.ConditionTrue, Message: message}}
	}
	state := func(s corev1.ClaimResourceStatus) map[corev1.ResourceName]corev1.ClaimResourceStatus {
		return map[corev1.ResourceName]corev1.ClaimResourceStatus{corev1.ResourceStorage: s}
	}
	for _, tc := range []struct {
		name, has  string
		conditions []corev1.PersistentVolumeClaimCondition
		states     map[corev1.ResourceName]corev1.ClaimResourceStatus
		want       Growth
	}{
		{"nothing yet", "100Gi", nil, nil, Growth{}},
		{"in progress", "100Gi", condition(corev1.PersistentVolumeClaimResizing, ""),
			state(corev1.PersistentVolumeClaimControllerResizeInProgress), Growth{}},
		{"done", "200Gi", nil, nil, Growth{Done: true}},
		{"the file system is left", "100Gi", condition(corev1.PersistentVolumeClaimFileSystemResizePending,
			"Waiting for user to (re-)start a pod"), nil,
			Growth{NeedsPod: true}},
		{"the same in a newer version", "100Gi", nil, state(corev1.PersistentVolumeClaimNodeResizePending), Growth{NeedsPod: true}},
		{"failed", "100Gi", condition(corev1.PersistentVolumeClaimControllerResizeError, "rpc error: code = Internal"),
			state(corev1.PersistentVolumeClaimControllerResizeInProgress), Growth{Failed: "rpc error: code = Internal"}},
		{"infeasible", "100Gi", nil, state(corev1.PersistentVolumeClaimControllerResizeInfeasible), Growth{Failed: "ControllerResizeInfeasible"}},
	} {
		claim := claimOf("200Gi", tc.has)
		claim.Status.Conditions, claim.Status.AllocatedResourceStatuses = tc.conditions, tc.states
		if got := GrowthOf(claim, resource.MustParse("200Gi")); got != tc.want {
			t.Errorf("%s: got %+v, want %+v", tc.name, got, tc.want)
		}
	}
}

const claimPath = "/api/v1/namespaces/ns/persistentvolumeclaims/claim"

func requestOf(object apitest.Object) string {
	text, _ := json.Marshal(object["spec"])
	var spec corev1.PersistentVolumeClaimSpec
	_ = json.Unmarshal(text, &spec)
	return spec.Resources.Requests.Storage().String()
}

// The request grows, even after somebody else changed the claim, and never shrinks, not even if somebody else expanded it meanwhile.
func TestExpand(t *testing.T) {
	for _, tc := range []struct {
		name, meanwhile, size string
		dryRun                bool
		want                  string
	}{
		{"grows", "", "200Gi", false, "200Gi"},
		{"only asks", "", "200Gi", true, "100Gi"},
		{"after another change", "100Gi", "200Gi", false, "200Gi"},
		{"somebody asked for more meanwhile", "500Gi", "200Gi", false, "500Gi"},
		{"smaller", "", "50Gi", false, "100Gi"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			server := apitest.Start(t, claimOf("100Gi", "100Gi"))
			e := Of(server.Clients(nil), "env")
			seen, err := e.clients.Kube.CoreV1().PersistentVolumeClaims("ns").Get(t.Context(), "claim", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if tc.meanwhile != "" {
				server.Add(claimOf(tc.meanwhile, "100Gi"))
			}
			if err := e.Expand(t.Context(), seen, resource.MustParse(tc.size), tc.dryRun); err != nil {
				t.Fatal(err)
			}
			if got := requestOf(server.Get(claimPath)); got != tc.want {
				t.Errorf("the claim requests %s, want %s", got, tc.want)
			}
		})
	}
}

// A new claim of the same name is another claim.
func TestExpandLeavesAnotherClaim(t *testing.T) {
	server := apitest.Start(t, claimOf("100Gi", "100Gi"))
	e := Of(server.Clients(nil), "env")
	old := claimOf("100Gi", "100Gi")
	old.UID, old.ResourceVersion = "an older one", ""
	if err := e.Expand(t.Context(), old, resource.MustParse("200Gi"), false); err == nil || requestOf(server.Get(claimPath)) != "100Gi" {
		t.Errorf("got %v, claim %s; want an error and no change", err, requestOf(server.Get(claimPath)))
	}
}

// Kubernetes' admission plugins and RBAC write these texts.
func TestRefusedExpansion(t *testing.T) {
	forbidden := func(text string) error {
		return fmt.Errorf("expanding: %w", apierrors.NewForbidden(schema.GroupResource{Resource: "persistentvolumeclaims"}, "claim",
			errors.New(text)))
	}
	m := objects.Mount{Key: objects.DatasetsKey}
	for _, tc := range []struct {
		name       string
		err        error
		class      *string
		seen, next string
		refused    bool
	}{
		{"the class", forbidden("only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must " +
			"support resize"), new("nfs-csi"),
			"class nfs-csi does not allow it: allowVolumeExpansion is not true", `oc patch storageclass nfs-csi -p '{"allowVolumeExpansion":true}'`,
			true},
		{"no class", forbidden("only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must " +
			"support resize"), nil,
			"it has no storage class", "name it by storage.datasets_claim", true},
		{"not bound", forbidden("Only bound persistent volume claims can be expanded"), new("nfs-csi"), "it has no volume yet",
			"oc describe pvc claim -n ns", true},
		{"a quota", forbidden("exceeded quota: disks, requested: requests.storage=100Gi, used: requests.storage=100Gi, limited: " +
			"requests.storage=150Gi"), new("nfs-csi"),
			"exceeded quota: disks", "oc describe quota disks -n ns", true},
		{"a limit range", forbidden("maximum storage usage per PersistentVolumeClaim is 150Gi, but request is 200Gi"), new("nfs-csi"),
			"maximum storage usage", "oc describe limitrange -n ns", true},
		{"no right", forbidden(`User "h-kim" cannot patch resource "persistentvolumeclaims" in API group "" in the namespace "ns"`),
			new("nfs-csi"),
			"the right to patch persistentvolumeclaims is missing", "oc create role", true},
		{"away", apierrors.NewServiceUnavailable("away"), new("nfs-csi"), "", "", false},
	} {
		claim := claimOf("100Gi", "100Gi")
		claim.Spec.StorageClassName = tc.class
		f, refused := RefusedExpansion(claim, m, tc.err)
		if refused != tc.refused || refused && (!strings.Contains(f.Seen, tc.seen) || !strings.Contains(f.Next, tc.next)) {
			t.Errorf("%s: got %t, %+v", tc.name, refused, f)
		}
	}
}

func TestClassRefuses(t *testing.T) {
	class := func(allows *bool) []storagev1.StorageClass {
		return []storagev1.StorageClass{{ObjectMeta: metav1.ObjectMeta{Name: "nfs-csi"}, AllowVolumeExpansion: allows}}
	}
	for name, tc := range map[string]struct {
		classes []storagev1.StorageClass
		want    bool
	}{"allows": {class(new(true)), false}, "does not": {class(new(false)), true}, "says nothing": {class(nil), true},
		"not known": {nil, false}} {
		if _, got := ClassRefuses(claimOf("100Gi", "100Gi"), tc.classes, objects.Mount{}); got != tc.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}

// mlenv fetch uses the claim that the environment mounts, or without nodes the one that the installed cluster file names.
func TestWorkspaceClaims(t *testing.T) {
	file := "cluster: {name: x, api: api.x.example.com, namespace: ns}\nstorage: {mode: rwx, class_rwx: nfs, workspace_claim: claim}\n"
	installed := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "mlenv-cluster-x"},
		Data: map[string]string{"cluster.yaml": file}}
	named := func(name string) *corev1.PersistentVolumeClaim {
		c := claimOf("1Gi", "1Gi")
		c.Name, c.UID = name, ""
		return c
	}
	server := apitest.Start(t, installed, named("env-workspace-env-0"), named("env-workspace-env-1"))
	e := Of(server.Clients(nil), "env")
	claims := func() string {
		t.Helper()
		found, err := e.WorkspaceClaims(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(found, " ")
	}
	const ofNodes = "env-workspace-env-0 env-workspace-env-1"
	if got := claims(); got != ofNodes {
		t.Errorf("the file's claim does not exist: got %s, want those of each node", got)
	}
	server.Add(named("env-workspace"))
	if got := claims(); got != "env-workspace" {
		t.Errorf("got %s, want the one that nodes share in the mode of the installed file", got)
	}
	server.Add(named("claim"))
	if got := claims(); got != "claim" {
		t.Errorf("got %s, want the claim of the installed file", got)
	}
	server.Handle = func(w http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "/configmaps") {
			w.WriteHeader(http.StatusForbidden)
			return true
		}
		return false
	}
	if got := claims(); got != ofNodes {
		t.Errorf("without the right to read the file: got %s", got)
	}
}
