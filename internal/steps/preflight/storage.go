// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/diagnose"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

// storage checks that the class of the claims exists, supports their access mode, and that its server works.
func (p *probe) storage(ctx context.Context) []Check {
	const check = "storage"
	key, name := "storage.class_rwo", p.file.Storage.ClassRWO
	if p.shared() {
		key, name = "storage.class_rwx", p.file.Storage.ClassRWX
	}
	bound, lost := p.bound(ctx)
	if lost != "" {
		return []Check{newCheck(check, Blocked, fmt.Sprintf("oc describe pvc -n %s", p.Request.Namespace), "%s", lost).because(fail.ClaimUnbound)}
	}
	list, err := p.Clients.Kube.StorageV1().StorageClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return []Check{unread(check, "the storage classes", err)}
	}
	classes := list.Items
	i := slices.IndexFunc(classes, func(c storagev1.StorageClass) bool { return c.Name == name })
	if i < 0 {
		var names []string
		for _, class := range classes {
			names = append(names, class.Name)
		}
		next := fmt.Sprintf("correct %s in the cluster file (oc get storageclass)", key)
		return []Check{p.unlessBound(newCheck(check, Blocked, next, "class %s (%s) does not exist; the cluster has %s", name, key,
			cmp.Or(humanize.First(names, 10), "none")), bound)}
	}
	class := &classes[i]
	checks := []Check{p.unlessBound(p.supports(check, class), bound)}
	return slices.Concat(checks, p.squashed(class), p.served(ctx, class, classes))
}

// squashed warns about an NFS server's root_squash, which only a write shows: it refuses root the files of others. A claim that
// exists may have files of the other mode's user.
func (p *probe) squashed(class *storagev1.StorageClass) []Check {
	if !p.rdma || !p.shared() || !strings.Contains(strings.ToLower(class.Provisioner), "nfs") {
		return nil
	}
	if user := p.objects[agent.RDMA].StatefulSet.Spec.Template.Spec.SecurityContext.RunAsUser; user == nil || *user != 0 {
		return nil
	}
	return []Check{newCheck("storage owner", Unknown, "export the volume with no_root_squash or all_squash (docs/operate/rdma.md, NFS and "+
		"root); "+
		"provision writes on each node, docs/project/unproven.md has the test of both modes",
		"unproven: pods are root in mode rdma and another user in mode tcp; an NFS server with root_squash keeps them from each other's files")}
}

// bound returns the environment's bound shared claims, which no longer depend on their class; lost
// names one that has lost its volume.
func (p *probe) bound(ctx context.Context) (names []string, lost string) {
	if !p.shared() {
		return nil, ""
	}
	for _, m := range p.Request.Mounts() {
		name := m.Claim
		claim, err := p.Clients.Kube.CoreV1().PersistentVolumeClaims(p.Request.Namespace).Get(ctx, name, metav1.GetOptions{})
		switch {
		case err != nil:
		case claim.Status.Phase == corev1.ClaimBound:
			names = append(names, name)
		case claim.Status.Phase == corev1.ClaimLost:
			lost = fmt.Sprintf("claim %s was bound to volume %s, which no longer exists", name, claim.Spec.VolumeName)
		}
	}
	return names, lost
}

// unlessBound weakens a problem of the class if both claims are bound
// already, or if storage auto then uses the other class. Otherwise a blocked check gets its reason.
func (p *probe) unlessBound(check Check, bound []string) Check {
	auto := p.Request.Storage == cluster.AutoStorage && p.file.Storage.ClassRWO != ""
	switch {
	case check.Status == OK:
	case len(bound) == 2:
		return newCheck(check.Object, OK, "", "claims %s are bound; about their class: %s", humanize.First(bound, 2), check.Seen)
	case auto && check.Status == Blocked:
		return newCheck(check.Object, Warning, check.Next, "%s; storage auto then uses volumeClaimTemplates", check.Seen)
	}
	return check.because(fail.ClaimUnbound)
}

// Parts of provisioners' names: of those whose filesystems many nodes can mount at once, and of those that
// attach a disk to one node.
var (
	manyNodes = []string{"nfs", "cephfs", "efs.csi", "filestore", "file.csi.azure", "glusterfs", "lustre", "weka", "gpfs", "spectrumscale",
		"beegfs", "juicefs", "manila"}
	oneNode = []string{"rbd", "ebs", "pd.csi", "gce-pd", "disk.csi", "azure-disk", "cinder", "topolvm", "local-path", "hostpath",
		"no-provisioner", "vsphere"}
)

// SharesFilesystems reports whether many nodes can mount a provisioner's filesystems at
// once, and whether that is known.
func SharesFilesystems(provisioner string) (shares, known bool) {
	about := func(signs []string) bool {
		return slices.ContainsFunc(signs, func(sign string) bool { return strings.Contains(strings.ToLower(provisioner), sign) })
	}
	shares = about(manyNodes)
	return shares, shares || about(oneNode)
}

func (p *probe) supports(check string, class *storagev1.StorageClass) Check {
	shares, known := SharesFilesystems(class.Provisioner)
	access := corev1.ReadWriteOnce
	if p.shared() {
		access = corev1.ReadWriteMany
	}
	text := fmt.Sprintf("class %s, %s filesystems by %s", class.Name, access, class.Provisioner)
	switch {
	case !p.shared(), shares:
		return newCheck(check, OK, "", "%s", text)
	case known && p.Request.Nodes > 1:
		return newCheck(check, Blocked, "correct storage.class_rwx in the cluster file, or use --storage=volumeClaimTemplates",
			"class %s (storage.class_rwx): %s gives no ReadWriteMany filesystems", class.Name, class.Provisioner)
	}
	return newCheck(check, Unknown, "--storage=auto tries it", "%s: whether this provisioner supports that is not known", text)
}

// served finds a storage server within the cluster that waits for its own claim,
// for example an NFS server whose claim has no storage class.
func (p *probe) served(ctx context.Context, class *storagev1.StorageClass, classes []storagev1.StorageClass) []Check {
	const name = "storage server"
	namespace := diagnose.ServerNamespace(class)
	if namespace == "" {
		return nil
	}
	claims, err := p.Clients.Kube.CoreV1().PersistentVolumeClaims(namespace).List(ctx, metav1.ListOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return []Check{unread(name, "the claims in namespace "+namespace, err)}
	}
	if f, waits := diagnose.StorageServerWaits(class, classes, claims.Items, p.Request.Namespace); waits {
		return []Check{newCheck(name, Blocked, f.Next, "%s", f.Seen).because(f.Reason)}
	}
	return []Check{newCheck(name, OK, "", "%s has no claim that waits", class.Parameters["server"])}
}
