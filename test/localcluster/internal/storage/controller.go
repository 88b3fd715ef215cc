// SPDX-License-Identifier: Apache-2.0

// Package storage is a stand-in for the clusters' storage classes, with the same names and behaviour. Its volumes are
// folders on this machine. It provisions and expands claims, attaches volumes to one node or many, and mounts them with a
// CSI driver.
//
// The real clusters do not have the -retain classes; they exist to test that policy, and claims that cannot be expanded. Claims of the
// other classes can, by a stand-in for the CSI project's external-resizer; for ceph-rbd the kubelet ends it when a pod mounts the claim.
// The driver has no block volumes, snapshots or sizes: a volume is as large as the disk, whatever its claim requests.
package storage

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"
)

// Driver is a CSI driver of the clusters that this package stands in for.
type Driver struct {
	Name string
	// class is the name of its storage class on the clusters.
	class string
	// Shared reports whether many nodes can mount a volume at the same time. Such volumes need no attachment.
	Shared bool
	// mode is the mode of a new volume's root folder.
	mode os.FileMode
	// refusal is the real driver's answer to an access mode that it lacks.
	refusal string
}

// Drivers are all drivers, with the names in the clusters' storage classes.
var Drivers = []Driver{
	{Name: "nfs.csi.k8s.io", class: "nfs-csi", Shared: true, mode: 0o777},
	{
		Name: "openshift-storage.rbd.csi.ceph.com", class: "ocs-external-storagecluster-ceph-rbd", mode: 0o755,
		refusal: "rpc error: code = InvalidArgument desc = multi node access modes are only supported on rbd `block` type volumes",
	},
}

// Class is a storage class.
type Class struct {
	Name, Driver string
	Reclaim      corev1.PersistentVolumeReclaimPolicy
	// Expands reports whether claims of the class can be expanded.
	Expands bool
}

// Classes returns all storage classes: the clusters' classes, and for each of them a class that retains its volumes and does not
// allow to expand them. No class is the default, as on the clusters.
func Classes() []Class {
	var classes []Class
	for _, d := range Drivers {
		classes = append(classes, Class{d.class, d.Name, corev1.PersistentVolumeReclaimDelete, true},
			Class{d.class + "-retain", d.Name, corev1.PersistentVolumeReclaimRetain, false})
	}
	return classes
}

// RunController provisions, expands, deletes and attaches volumes in the folder volumes
// until the context ends.
func RunController(ctx context.Context, client kubernetes.Interface, volumes string) error {
	if err := os.MkdirAll(volumes, 0o755); err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	attachments := factory.Storage().V1().VolumeAttachments().Informer()
	if _, err := attachments.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { attach(ctx, client, obj) },
		UpdateFunc: func(_, obj any) { attach(ctx, client, obj) },
	}); err != nil {
		return err
	}
	if _, err := factory.Core().V1().PersistentVolumeClaims().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { expand(ctx, client, obj) },
		UpdateFunc: func(_, obj any) { expand(ctx, client, obj) },
	}); err != nil {
		return err
	}
	factory.Start(ctx.Done())
	for _, d := range Drivers {
		c := controller.NewProvisionController(ctx, client, d.Name, provisioner{driver: d, volumes: volumes},
			controller.LeaderElection(false), controller.AddFinalizer(true))
		go c.Run(ctx)
	}
	log.Printf("provisioning in %s", volumes)
	<-ctx.Done()
	return nil
}

type provisioner struct {
	driver  Driver
	volumes string
}

// Provision implements controller.Provisioner.
func (p provisioner) Provision(_ context.Context, o controller.ProvisionOptions) (
	*corev1.PersistentVolume, controller.ProvisioningState, error) {
	if mode := o.PVC.Spec.VolumeMode; mode != nil && *mode == corev1.PersistentVolumeBlock {
		return nil, controller.ProvisioningFinished, fmt.Errorf("this stand-in for %s provisions file systems, not block volumes", p.driver.Name)
	}
	for _, mode := range o.PVC.Spec.AccessModes {
		if !p.driver.Shared && (mode == corev1.ReadWriteMany || mode == corev1.ReadOnlyMany) {
			return nil, controller.ProvisioningFinished, fmt.Errorf("%s", p.driver.refusal)
		}
	}
	dir := filepath.Join(p.volumes, o.PVName)
	if err := os.Mkdir(dir, p.driver.mode); err != nil && !os.IsExist(err) {
		return nil, controller.ProvisioningFinished, err
	}
	// The umask has changed the mode of Mkdir.
	if err := os.Chmod(dir, p.driver.mode); err != nil {
		return nil, controller.ProvisioningFinished, err
	}
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: o.PVName},
		Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeReclaimPolicy: *o.StorageClass.ReclaimPolicy,
			AccessModes:                   o.PVC.Spec.AccessModes,
			VolumeMode:                    o.PVC.Spec.VolumeMode,
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: o.PVC.Spec.Resources.Requests[corev1.ResourceStorage]},
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: p.driver.Name, VolumeHandle: o.PVName, FSType: "ext4"},
			},
		},
	}, controller.ProvisioningFinished, nil
}

// Delete implements controller.Provisioner.
func (p provisioner) Delete(_ context.Context, pv *corev1.PersistentVolume) error {
	return os.RemoveAll(filepath.Join(p.volumes, filepath.Base(pv.Spec.CSI.VolumeHandle)))
}

// attach answers the attach-detach controller, which decides which node may attach a volume. Attaching a folder needs
// no other action.
func attach(ctx context.Context, client kubernetes.Interface, obj any) {
	attachment, ok := obj.(*storagev1.VolumeAttachment)
	if !ok || attachment.Status.Attached || attachment.DeletionTimestamp != nil {
		return
	}
	_, err := client.StorageV1().VolumeAttachments().Patch(ctx, attachment.Name, types.MergePatchType,
		[]byte(`{"status":{"attached":true}}`), metav1.PatchOptions{}, "status")
	if err != nil {
		log.Printf("attaching by %s to %s: %v", attachment.Name, attachment.Spec.NodeName, err)
	}
}
