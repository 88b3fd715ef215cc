package initcluster

import (
	"cmp"
	"slices"
	"strings"

	storagev1 "k8s.io/api/storage/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/diagnose"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/preflight"
)

const toChange = "change-me"

func (w *writer) storage(f Facts) {
	w.section("storage")
	shared, own := "", ""
	if err := f.Unknown[classesSubject]; err != nil {
		w.unknown(1, "storage.class_rwo: you may not read the storage classes (%s); a name is required", firstLine(err))
	} else {
		shared, own = w.classes(f.Classes)
	}
	if shared != "" {
		w.set(1, "class_rwx", shared)
	}
	mode := cluster.SharedStorage
	if own != "" {
		w.set(1, "class_rwo", own)
	}
	if shared == "" {
		if mode = cluster.NodeStorage; own == "" {
			w.set(1, "class_rwo", toChange)
		}
		w.guess(1, "storage.mode: no class is known to give shared filesystems, so each node gets its own")
	}
	w.set(1, "mode", string(mode))
	w.guess(1, "storage.workspace_size, storage.datasets_size: the defaults")
	d := cluster.Default().Storage
	w.set(1, "workspace_size", d.WorkspaceSize.String())
	w.set(1, "datasets_size", d.DatasetsSize.String())
}

// classes lists all classes, and chooses one for shared filesystems and one for filesystems of one node: the cluster's
// default if possible, else the first by name.
func (w *writer) classes(classes []storagev1.StorageClass) (shared, own string) {
	if len(classes) == 0 {
		w.unknown(1, "storage.class_rwo: the cluster has no storage class; one is required")
		return "", ""
	}
	classes = slices.Clone(classes)
	slices.SortFunc(classes, func(a, b storagev1.StorageClass) int {
		if diagnose.IsDefault(a) != diagnose.IsDefault(b) {
			return map[bool]int{true: -1, false: 1}[diagnose.IsDefault(a)]
		}
		return cmp.Compare(a.Name, b.Name)
	})
	w.guess(1, "storage.class_rwx, storage.class_rwo: by the provisioners of the classes:")
	other := ""
	for _, class := range classes {
		text := "not known to give ReadWriteMany"
		shares, known := preflight.SharesFilesystems(class.Provisioner)
		switch {
		case noFilesystem(class.Provisioner):
			text = "no filesystems for claims"
		case shares:
			text, shared = "ReadWriteMany", cmp.Or(shared, class.Name)
		case known:
			text, own = "ReadWriteOnce", cmp.Or(own, class.Name)
		default:
			other = cmp.Or(other, class.Name)
		}
		if diagnose.IsDefault(class) {
			text += ", the default"
		}
		w.comment(1, "%s: %s (%s)", class.Name, text, class.Provisioner)
	}
	// A class for shared filesystems can give one node its own too.
	return shared, cmp.Or(own, other, shared)
}

// noFilesystem reports classes of buckets, and of volumes that are created by hand.
func noFilesystem(provisioner string) bool {
	return slices.ContainsFunc([]string{"bucket", "/obc", "no-provisioner"}, func(sign string) bool {
		return strings.Contains(provisioner, sign)
	})
}

func (w *writer) proxy(f Facts) {
	p := f.Proxy
	if p.HTTP == "" && p.HTTPS == "" {
		return
	}
	file := cluster.Default()
	file.Network.Proxy = p
	for _, problem := range file.Validate() {
		if problem.Field == "network.proxy.http" || problem.Field == "network.proxy.https" {
			w.unknown(1, "network.proxy: the address of the cluster's proxy is not allowed here: %s", problem.Detail)
			return
		}
	}
	w.comment(1, "From proxies.config.openshift.io cluster.")
	w.line(1, "proxy:")
	for _, one := range [][2]string{{"http", p.HTTP}, {"https", p.HTTPS}, {"no_proxy", strings.Join(p.NoProxy, ",")}} {
		if one[1] != "" {
			w.set(2, one[0], one[1])
		}
	}
}
