// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
)

// A claim that the cluster file names is mounted whatever the environment's name is, unless each node has claims of its own. An existing
// claim grows only to a size that a param or the file has.
func TestMounts(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*Request)
		want   []string
	}{
		{"cairo", func(*Request) {}, []string{"/workspace ml-dev-workspace 100Gi asked", "/datasets ml-datasets 500Gi asked"}},
		{"another name", func(r *Request) {
			r.Name = "h-kim"
		}, []string{"/workspace h-kim-workspace 100Gi asked", "/datasets ml-datasets 500Gi asked"}},
		{"a named workspace", func(r *Request) { r.Name, r.Cluster.Storage.WorkspaceClaim = "h-kim", "team" },
			[]string{"/workspace team 100Gi asked", "/datasets ml-datasets 500Gi asked"}},
		{"the defaults", func(r *Request) {
			r.Cluster.Storage = cluster.Default().Storage
			r.Cluster.Storage.ClassRWX, r.Storage = "nfs", "rwx"
		},
			[]string{"/workspace ml-dev-workspace 20Gi", "/datasets ml-dev-datasets 10Gi"}},
		{"a param", func(r *Request) {
			r.Cluster.Storage.DatasetsSize, r.DatasetsSize = cluster.MustParseQuantity("500Gi"), "1Ti"
		},
			[]string{"/workspace ml-dev-workspace 100Gi asked", "/datasets ml-datasets 1Ti asked"}},
		{"each node its own", func(r *Request) { r.Storage = cluster.NodeStorage }, []string{
			"/workspace ml-dev-workspace-ml-dev-env-0 ml-dev-workspace-ml-dev-env-1 100Gi asked",
			"/datasets ml-dev-datasets-ml-dev-env-0 ml-dev-datasets-ml-dev-env-1 500Gi asked"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := request(t, "cairo")
			tc.change(&r)
			r = r.WithDefaults().WithDefaults() // preflight and provision both do so
			var got []string
			for _, m := range r.Mounts() {
				text := m.Path
				for _, claim := range r.Claims(m) {
					text += " " + claim
				}
				text += " " + m.Size.String()
				if m.Asked {
					text += " asked"
				}
				got = append(got, text)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// Only an environment that shares the workspace because of the file, and not by its name, tells its agents so.
func TestSharedWorkspaceIsToldToTheAgents(t *testing.T) {
	for _, tc := range []struct {
		environment, claim string
		storage            cluster.StorageMode
		want               bool
	}{
		{"h-kim", "team", "rwx", true}, {"ml-dev-env", "team", "rwx", false}, {"ml-dev-env-kim", "team", "rwx", false},
		{"h-kim", "", "rwx", false}, {"h-kim", "team", cluster.NodeStorage, false},
	} {
		r := request(t, "cairo")
		r.Name, r.Storage, r.Cluster.Storage.WorkspaceClaim = tc.environment, tc.storage, tc.claim
		_, container := pod(t, r)
		got := false
		for _, v := range container.Env {
			got = got || v.Name == agent.SharesWorkspaceVariable && v.Value == "true"
		}
		if got != tc.want {
			t.Errorf("%+v: got %v", tc, got)
		}
	}
}

// Claims of nodes are expanded one by one, so a StatefulSet that exists keeps the sizes of its templates, and nothing else.
func TestKeepClaimSizes(t *testing.T) {
	r := request(t, "barcelona")
	live := served(build(t, r).StatefulSet)
	r.WorkspaceSize, r.DatasetsSize, r.Cluster.Storage.ClassRWO = "200Gi", "50Gi", "fast"
	want := build(t, r).StatefulSet
	KeepClaimSizes(live, want)
	var got []string
	for _, d := range Differences(live, want) {
		got = append(got, d.String())
	}
	if diff := cmp.Diff([]string{
		"storage class of claim ml-dev-datasets: ocs-external-storagecluster-ceph-rbd -> fast",
		"storage class of claim ml-dev-workspace: ocs-external-storagecluster-ceph-rbd -> fast"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	r.Storage = cluster.SharedStorage
	KeepClaimSizes(live, build(t, r).StatefulSet) // no template, no panic
}

// The record of a run is on the claims that its nodes mount, whatever their names are.
func TestRecordClaims(t *testing.T) {
	r := request(t, "cairo")
	r.Cluster.Storage.WorkspaceClaim = "team"
	names := r.Names()
	for want, got := range map[string][]string{
		"[team]":             names.RecordClaims(build(t, r).StatefulSet, 2),
		"[ml-dev-workspace]": names.RecordClaims(nil, 2),
		"[ml-dev-workspace-ml-dev-env-0 ml-dev-workspace-ml-dev-env-1]": func() []string {
			r.Storage = cluster.NodeStorage
			return names.RecordClaims(build(t, r).StatefulSet, 2)
		}(),
	} {
		if fmt.Sprint(got) != want {
			t.Errorf("got %v, want %s", got, want)
		}
	}
}

func TestNamedClaimIsADifference(t *testing.T) {
	r := request(t, "cairo")
	live := served(build(t, r).StatefulSet)
	r.Cluster.Storage.WorkspaceClaim = "team"
	differences := Differences(live, build(t, r).StatefulSet)
	if len(differences) != 1 || differences[0].String() != "claim of volume ml-dev-workspace: ml-dev-workspace -> team" ||
		differences[0].Change != Recreate {
		t.Errorf("got %v", differences)
	}
}

func TestMayHaveFiles(t *testing.T) {
	claim := func(change func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
		c := &corev1.PersistentVolumeClaim{
			Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany},
				Resources: corev1.VolumeResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}},
			Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
		}
		change(c)
		return c
	}
	for name, tc := range map[string]struct {
		change func(*corev1.PersistentVolumeClaim)
		want   bool
	}{
		"bound and shared": {func(*corev1.PersistentVolumeClaim) {}, true},
		"pending":          {func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimPending }, false},
		"of one node": {func(c *corev1.PersistentVolumeClaim) {
			c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
		}, false},
		"a disk": {func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeMode = new(corev1.PersistentVolumeBlock) }, false},
		"a run's workspace": {func(c *corev1.PersistentVolumeClaim) {
			c.OwnerReferences = append(c.OwnerReferences, LeaseReference("run", "1"))
		}, false},
	} {
		if got := MayHaveFiles(claim(tc.change)); got != tc.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
}
