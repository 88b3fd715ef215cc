// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// patchClaim does the part of admission that decides about larger claims: the class's allowVolumeExpansion, and quotas of storage.
func (w *world) patchClaim(action clienttesting.Action) (bool, runtime.Object, error) {
	patch := action.(clienttesting.PatchActionImpl)
	if !slices.Equal(patch.PatchOptions.DryRun, []string{metav1.DryRunAll}) {
		w.t.Errorf("patch of %s is not a dry run", patch.Name)
	}
	var sent corev1.PersistentVolumeClaim
	if err := json.Unmarshal(patch.Patch, &sent); err != nil {
		w.t.Error(err)
	}
	refused := func(text string) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "persistentvolumeclaims"}, patch.Name, fmt.Errorf("%s", text))
	}
	class := ""
	for _, object := range w.objects {
		if claim, ok := object.(*corev1.PersistentVolumeClaim); ok && claim.Name == patch.Name {
			class = *claim.Spec.StorageClassName
		}
	}
	for _, object := range w.objects {
		switch object := object.(type) {
		case *storagev1.StorageClass:
			if object.Name == class && (object.AllowVolumeExpansion == nil || !*object.AllowVolumeExpansion) {
				return refused("only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize")
			}
		case *corev1.ResourceQuota:
			hard := object.Status.Hard[corev1.ResourceRequestsStorage]
			if size := sent.Spec.Resources.Requests.Storage(); !hard.IsZero() && size.Cmp(hard) > 0 {
				return refused(fmt.Sprintf("exceeded quota: %s, requested: requests.storage=1, used: requests.storage=1, limited: requests.storage=1",
					object.Name))
			}
		}
	}
	return true, &sent, nil
}

// existing returns a bound claim that several nodes can mount.
func existing(name, size string, change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	list := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
	c := claim(name, corev1.ClaimBound)
	c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	c.Spec.StorageClassName, c.Spec.Resources.Requests, c.Status.Capacity = new("nfs-csi"), list, list
	c.CreationTimestamp = metav1.NewTime(time.Date(2026, 2, 3, 0, 0, 0, 0, time.UTC))
	for _, ch := range change {
		ch(c)
	}
	return c
}

// expands makes nfs-csi a class whose claims can be expanded.
func (w *world) expands() {
	for _, object := range w.objects {
		if c, ok := object.(*storagev1.StorageClass); ok && c.Name == "nfs-csi" {
			c.AllowVolumeExpansion = new(true)
		}
	}
}

func TestClaims(t *testing.T) {
	younger := func(c *corev1.PersistentVolumeClaim) {
		c.CreationTimestamp = metav1.NewTime(c.CreationTimestamp.Add(time.Hour))
	}
	ownedBy := func(environment string) func(*corev1.PersistentVolumeClaim) {
		return func(c *corev1.PersistentVolumeClaim) { c.Labels = objects.Labels(environment) }
	}
	once := func(c *corev1.PersistentVolumeClaim) {
		c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	}
	unnamed := func(o *Options) { o.Request.Cluster.Storage.DatasetsClaim = "" }
	const workspace, datasets = "ml-dev-workspace", "ml-datasets"
	for _, tc := range []struct {
		name   string
		claims []runtime.Object
		change func(*world, *Options)
		want   []want
		// not are texts that no check has.
		not    []string
		reason fail.Reason
	}{
		{"those that the file names", []runtime.Object{existing(workspace, "100Gi"), existing(datasets, "500Gi")}, nil, []want{
			{"claims", OK, "ml-dev-workspace (100Gi) for /workspace", ""}, {"claims", OK, "ml-datasets (500Gi) for /datasets", ""}},
			[]string{"other claims"}, ""},
		{"the named one does not exist", []runtime.Object{existing(workspace, "100Gi")}, nil, []want{
			{"claims", Warning, "claim ml-datasets (storage.datasets_claim) does not exist: provision creates an empty one of 500Gi for /datasets",
				"oc get pvc -n nccl-test"}}, nil, ""},
		{"the file names none, and one exists",
			[]runtime.Object{existing(workspace, "100Gi"), existing(datasets, "500Gi", func(c *corev1.PersistentVolumeClaim) {
				c.Labels = map[string]string{"team": "vision"}
			})}, func(_ *world, o *Options) { unnamed(o) }, []want{
				{"other claims", Warning, "claim ml-datasets (500Gi, bound, mounted now by no pod, labels team=vision) exists and the cluster file " +
					"does not name it: " +
					"provision creates an empty ml-dev-datasets for /datasets. Whether it has files is not known",
					"storage.datasets_claim: ml-datasets in the cluster file"}}, nil, ""},
		{"an empty one was created next to it", []runtime.Object{existing(workspace, "100Gi"), existing(datasets, "500Gi"),
			existing("ml-dev-datasets", "500Gi", younger)},
			func(_ *world, o *Options) {
				unnamed(o)
			}, []want{{"other claims", Warning, "provision mounts the younger ml-dev-datasets for /datasets",
				"or, to keep what is mounted, storage.datasets_claim: ml-dev-datasets"}}, nil, ""},
		{"a younger one is something else", []runtime.Object{existing(workspace, "100Gi"), existing(datasets, "500Gi", younger),
			existing("ml-dev-datasets", "500Gi")},
			func(_ *world, o *Options) { unnamed(o) }, nil, []string{"other claims"}, ""},
		{"claims of others", []runtime.Object{existing(workspace, "100Gi"), existing("h-kim-datasets", "500Gi", ownedBy("h-kim")),
			existing("postgres-data", "10Gi", once),
			existing("data-of-a-run", "1Gi", func(c *corev1.PersistentVolumeClaim) {
				c.OwnerReferences = []metav1.OwnerReference{{Kind: "PipelineRun", Name: "run"}}
			}), existing("data-to-come", "1Gi", func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimPending })},
			func(_ *world, o *Options) { unnamed(o) }, nil, []string{"other claims"}, ""},
		{"a claim without a telling name", []runtime.Object{existing("shared", "1Ti")}, func(_ *world, o *Options) { unnamed(o) }, []want{
			{"other claims", Warning, "creates an empty ml-dev-workspace for /workspace and creates an empty ml-dev-datasets for /datasets",
				"storage.workspace_claim: shared or storage.datasets_claim: shared"}}, nil, ""},
		{"those of nodes, of another storage mode",
			[]runtime.Object{existing("ml-dev-workspace-ml-dev-env-0", "100Gi", once, ownedBy("ml-dev-env"))}, nil, []want{
				{"other claims", Warning, "claim ml-dev-workspace-ml-dev-env-0", "--storage=volumeClaimTemplates mounts it"}}, nil, ""},
		{"many", []runtime.Object{existing("data-1", "1Gi"), existing("data-2", "1Gi"), existing("data-3", "1Gi"), existing("data-4", "1Gi"),
			existing("data-5", "1Gi")},
			func(_ *world, o *Options) { unnamed(o) }, []want{{"other claims", Warning, "data-4, data-5 exist too", "oc get pvc"}}, nil, ""},

		{"one that a class expands", []runtime.Object{existing(workspace, "50Gi"), existing(datasets, "500Gi")}, func(w *world, _ *Options) {
			w.expands()
		}, []want{
			{"claims", OK, "claim ml-dev-workspace is expanded from 50Gi to 100Gi (class nfs-csi allows it)", ""}}, nil, ""},
		{"one that its class does not expand", []runtime.Object{existing(workspace, "50Gi"), existing(datasets, "500Gi")}, nil, []want{
			{"claims", Warning, "claim ml-dev-workspace stays at 50Gi, not 100Gi: class nfs-csi does not allow it: allowVolumeExpansion is not true",
				"oc patch storageclass nfs-csi"}}, nil, ""},
		{"the same without the right to read classes", []runtime.Object{existing(workspace, "50Gi"), existing(datasets, "500Gi")},
			func(w *world, _ *Options) {
				w.forbidden = append(w.forbidden, "list storageclasses")
			}, []want{{"claims", Warning, "class nfs-csi does not allow it", "oc patch storageclass nfs-csi"}}, nil, ""},
		{"a quota is in the way", []runtime.Object{existing(workspace, "50Gi"), existing(datasets, "500Gi"),
			quota("disks", "requests.storage", "60Gi", "50Gi")},
			func(w *world, _ *Options) {
				w.expands()
			}, []want{{"claims", Warning, "stays at 50Gi, not 100Gi: exceeded quota: disks", "oc describe quota disks -n nccl-test"}}, nil, ""},
		{"no right to patch", []runtime.Object{existing(workspace, "50Gi"), existing(datasets, "500Gi")}, func(w *world, _ *Options) {
			w.expands()
			w.forbidden = append(w.forbidden, "patch persistentvolumeclaims")
		}, []want{{"claims", Warning, "the right to patch persistentvolumeclaims is missing", "oc create role"}}, nil, fail.PermissionDenied},
		{"larger than the file asks", []runtime.Object{existing(workspace, "1Ti"), existing(datasets, "500Gi")}, nil, []want{
			{"claims", Warning, "claim ml-dev-workspace stays at 1Ti: 100Gi is asked for, and no claim is ever made smaller", "correct the size"}},
			nil, ""},
		{"a default is no wish", []runtime.Object{existing(workspace, "50Gi"), existing(datasets, "500Gi")}, func(_ *world, o *Options) {
			o.Request.Cluster.Storage.WorkspaceSize = cluster.MustParseQuantity("100Gi")
		}, []want{{"claims", OK, "ml-dev-workspace (50Gi) for /workspace", ""}}, []string{"100Gi"}, ""},
		{"claims of nodes", []runtime.Object{existing("ml-dev-workspace-ml-dev-env-0", "50Gi", once),
			existing("ml-dev-workspace-ml-dev-env-1", "50Gi", once)},
			func(w *world, o *Options) { w.expands(); o.Request.Storage = cluster.NodeStorage }, []want{
				{"claims", Warning, "claim ml-datasets (storage.datasets_claim) is not mounted: with storage volumeClaimTemplates", "--storage=rwx"},
				{"claims", OK, "claim ml-dev-workspace-ml-dev-env-1 is expanded from 50Gi to 100Gi", ""}}, nil, ""},

		{"a claim of one node", []runtime.Object{existing(workspace, "100Gi"), existing(datasets, "500Gi", once)}, nil, []want{
			{"claims", Blocked, "claim ml-datasets for /datasets of 2 nodes has access modes [ReadWriteOnce], want ReadWriteMany",
				"name another claim by storage.datasets_claim"}},
			nil, fail.EnvironmentDiffers},
		{"for one node", []runtime.Object{existing(workspace, "100Gi"), existing(datasets, "500Gi", once)}, func(_ *world, o *Options) {
			o.Request.Nodes = 1
		}, []want{
			{"claims", OK, "ml-datasets (500Gi) for /datasets", ""}}, nil, ""},
		{"a disk", []runtime.Object{existing(workspace, "100Gi"), existing(datasets, "500Gi", func(c *corev1.PersistentVolumeClaim) {
			c.Spec.VolumeMode = new(corev1.PersistentVolumeBlock)
		})}, nil, []want{{"claims", Blocked, "claim ml-datasets for /datasets has volume mode Block, want Filesystem", "storage.datasets_claim"}},
			nil, fail.EnvironmentDiffers},
		{"being deleted", []runtime.Object{existing(workspace, "100Gi"), existing(datasets, "500Gi", func(c *corev1.PersistentVolumeClaim) {
			c.DeletionTimestamp, c.Finalizers = new(metav1.Now()), []string{"kubernetes.io/pvc-protection"}
		})}, nil, []want{{"claims", Blocked, "claim ml-datasets for /datasets is being deleted since", "oc describe pvc ml-datasets"}}, nil,
			fail.ClaimUnbound},
		{"not readable", nil, func(w *world, _ *Options) { w.forbidden = append(w.forbidden, "list persistentvolumeclaims") }, []want{
			{"claims", Unknown, "the claims of namespace nccl-test may not be read", "oc create role"}}, nil, fail.PermissionDenied},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w, file := cairo(t)
			w.objects = append(w.objects, tc.claims...)
			asked := Options{Request: objects.Request{Cluster: file}}
			if tc.change != nil {
				tc.change(w, &asked)
			}
			report := w.examine(asked.Request.Cluster, agent.TCP, func(_ *Deps, o *Options) {
				o.Request.Nodes, o.Request.Storage = asked.Request.Nodes, asked.Request.Storage
			})
			for _, want := range tc.want {
				if !said(report, want) {
					t.Errorf("want %s %s %q, fix %q in\n%s", want.check, want.status, want.seen, want.fix, print(report))
				}
			}
			for _, text := range tc.not {
				for _, check := range report.Checks {
					if strings.HasPrefix(check.Object, "claims") && strings.Contains(check.Seen, text) || check.Object == text {
						t.Errorf("%s: %s: want no %q", check.Object, check.Seen, text)
					}
				}
			}
			if got := fail.ReasonOf(report.Err()); tc.reason == "" && report.Err() != nil || tc.reason != "" && got != tc.reason {
				t.Errorf("reason %s: %v, want %q", got, report.Err(), tc.reason)
			}
		})
	}
}
