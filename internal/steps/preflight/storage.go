package preflight

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/diagnose"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// storage says whether the class of the claims is there, can give what they ask, and
// is served.
func (p *probe) storage(ctx context.Context) []Check {
	key, name := "storage.class_rwo", p.file.Storage.ClassRWO
	if p.shared() {
		key, name = "storage.class_rwx", p.file.Storage.ClassRWX
	}
	check := Check{Name: "storage", Verdict: Blocked, Reason: fail.ClaimUnbound}
	bound, lost := p.bound(ctx)
	list, err := p.Clients.Kube.StorageV1().StorageClasses().List(ctx, metav1.ListOptions{})
	switch {
	case lost != "":
		check.Seen, check.Fix = lost, fmt.Sprintf("oc describe pvc -n %s", p.Request.Namespace)
		return []Check{check}
	case err != nil:
		return []Check{unread(check.Name, "the storage classes", err)}
	}
	classes := list.Items
	i := slices.IndexFunc(classes, func(c storagev1.StorageClass) bool { return c.Name == name })
	if i < 0 {
		check.Seen = fmt.Sprintf("class %s (%s) does not exist; the cluster has %s", name, key, listed(classNames(classes), 10))
		check.Fix = fmt.Sprintf("correct %s in the cluster file (oc get storageclass)", key)
		return []Check{p.unlessBound(check, bound)}
	}
	class := &classes[i]
	checks := []Check{p.unlessBound(p.gives(class, check), bound)}
	return append(checks, p.served(ctx, class, classes)...)
}

func classNames(classes []storagev1.StorageClass) []string {
	if len(classes) == 0 {
		return []string{"none"}
	}
	var names []string
	for _, class := range classes {
		names = append(names, class.Name)
	}
	return names
}

// bound are the environment's shared claims that are there and bound, which no class
// matters to any more; lost says that one has lost its volume.
func (p *probe) bound(ctx context.Context) (names []string, lost string) {
	if !p.shared() {
		return nil, ""
	}
	environmentNames := objects.NamesOf(p.Request.Name)
	for _, name := range []string{environmentNames.Workspace, environmentNames.Datasets} {
		claim, err := p.Clients.Kube.CoreV1().PersistentVolumeClaims(p.Request.Namespace).Get(ctx, name, metav1.GetOptions{})
		switch {
		case err != nil:
		case claim.Status.Phase == corev1.ClaimBound:
			names = append(names, name)
		case claim.Status.Phase == corev1.ClaimLost:
			lost = fmt.Sprintf("claim %s was bound to volume %s, which does not exist any more", name, claim.Spec.VolumeName)
		}
	}
	return names, lost
}

// unlessBound makes a problem of the class a warning where it has given both claims
// already, or where auto storage takes the other class then.
func (p *probe) unlessBound(check Check, bound []string) Check {
	auto := p.Request.Storage == cluster.AutoStorage && p.file.Storage.ClassRWO != ""
	switch {
	case check.Verdict == OK:
	case len(bound) == 2:
		check.Verdict, check.Seen = OK, "claims "+listed(bound, 2)+" are there and bound; of their class: "+check.Seen
		check.Fix = ""
	case auto && check.Verdict == Blocked:
		check.Verdict, check.Seen = Warning, check.Seen+"; storage auto takes volumeClaimTemplates then"
	default:
		return check
	}
	check.Reason = ""
	return check
}

// Provisioners by what is known of their filesystems: those that many nodes can
// mount, and those that give a disk to one node.
var (
	manyNodes = []string{"nfs", "cephfs", "efs.csi", "filestore", "file.csi.azure", "glusterfs", "lustre", "weka", "gpfs", "spectrumscale", "beegfs", "juicefs", "manila"}
	oneNode   = []string{"rbd", "ebs", "pd.csi", "gce-pd", "disk.csi", "azure-disk", "cinder", "topolvm", "local-path", "hostpath", "no-provisioner", "vsphere"}
)

// SharesFilesystems says whether many nodes can mount a provisioner's filesystems at
// once, as far as that is known of it.
func SharesFilesystems(provisioner string) (shares, known bool) {
	about := func(signs []string) bool {
		return slices.ContainsFunc(signs, func(sign string) bool { return strings.Contains(strings.ToLower(provisioner), sign) })
	}
	shares = about(manyNodes)
	return shares, shares || about(oneNode)
}

// gives says whether the class's provisioner can give the claims' mode.
func (p *probe) gives(class *storagev1.StorageClass, check Check) Check {
	shares, known := SharesFilesystems(class.Provisioner)
	access := corev1.ReadWriteOnce
	if p.shared() {
		access = corev1.ReadWriteMany
	}
	text := fmt.Sprintf("class %s, %s filesystems by %s", class.Name, access, class.Provisioner)
	switch {
	case !p.shared(), shares:
		check.Verdict, check.Reason, check.Seen = OK, "", text
	case known && p.Request.Nodes > 1:
		check.Seen = fmt.Sprintf("class %s (storage.class_rwx): %s gives no ReadWriteMany filesystems", class.Name, class.Provisioner)
		check.Fix = "correct storage.class_rwx in the cluster file, or use --storage=volumeClaimTemplates"
	default:
		check.Verdict, check.Reason, check.Seen = Unknown, "", text+": whether it can is not known of this provisioner"
		check.Fix = "--storage=auto tries it"
	}
	return check
}

// served finds a storage server within the cluster that waits for a claim of its own,
// as the NFS server of a class whose claim has no storage class.
func (p *probe) served(ctx context.Context, class *storagev1.StorageClass, classes []storagev1.StorageClass) []Check {
	namespace := diagnose.ServerNamespace(class)
	if namespace == "" {
		return nil
	}
	check := Check{Name: "storage server", Verdict: OK, Seen: fmt.Sprintf("%s has no claim that waits", class.Parameters["server"])}
	claims, err := p.Clients.Kube.CoreV1().PersistentVolumeClaims(namespace).List(ctx, metav1.ListOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return []Check{unread(check.Name, "the claims in namespace "+namespace, err)}
	}
	if f, waits := diagnose.StorageServerWaits(class, classes, claims.Items, p.Request.Namespace); waits {
		check = Check{Name: check.Name, Verdict: Blocked, Seen: f.Seen, Fix: f.Next, Reason: f.Reason}
	}
	return []Check{check}
}
