// SPDX-License-Identifier: Apache-2.0

package initcluster

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/diagnose"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
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
	w.claims(f, mode)
}

// claims proposes the claims that exist, with their sizes, so that no run creates an empty one next to them or expands them.
func (w *writer) claims(f Facts, mode cluster.StorageMode) {
	if err := f.Unknown[claimsSubject]; err != nil {
		w.unknown(1, "storage.workspace_claim, storage.datasets_claim: you may not read the claims of namespace %s (%s)",
			f.Namespace, firstLine(err))
	}
	d := cluster.Default()
	d.Storage.Mode = mode
	request := objects.Request{Cluster: d, Name: objects.DefaultName, Namespace: f.Namespace}.WithDefaults()
	var defaults []string
	sizes := map[string]string{} // by the key
	for _, m := range request.Mounts() {
		key, sizeKey := strings.TrimPrefix(m.Key, "storage."), sizeKeyOf(m)
		sizes[sizeKey] = m.Size.String()
		found, own := f.claimsFor(request, m)
		if own != nil {
			sizes[sizeKey] = kube.ClaimSize(own)
		}
		if len(found) > 1 {
			names := humanize.Each(found, func(c corev1.PersistentVolumeClaim) string { return c.Name + " (" + kube.ClaimSize(&c) + ")" })
			w.unknown(1, "%s: which of these claims has the files for %s: %s", m.Key, m.Path, humanize.First(names, 8))
		}
		switch {
		case len(found) == 1:
			sizes[sizeKey] = kube.ClaimSize(&found[0])
			w.guess(1, "%s: claim %s exists, with %s; whether it has files is not known", m.Key, found[0].Name, sizes[sizeKey])
			w.set(1, key, found[0].Name)
		case own != nil:
			w.guess(1, "storage.%s: the size of claim %s, which exists", sizeKey, own.Name)
		default:
			defaults = append(defaults, "storage."+sizeKey)
		}
	}
	if len(defaults) > 0 {
		w.guess(1, "%s: the default%s", strings.Join(defaults, ", "), map[bool]string{true: "s"}[len(defaults) > 1])
	}
	for _, m := range request.Mounts() {
		w.set(1, sizeKeyOf(m), sizes[sizeKeyOf(m)])
	}
}

// sizeKeyOf returns the key of the size of a mount's claim, without its section.
func sizeKeyOf(m objects.Mount) string {
	return strings.TrimSuffix(strings.TrimPrefix(m.Key, "storage."), "_claim") + "_size"
}

// claimsFor returns the claims of the namespace that may have the files of a mount, other than those that environments created for
// themselves, and the default environment's own claim, nil if it does not exist. A claim that is younger than that one is something else.
func (f Facts) claimsFor(r objects.Request, m objects.Mount) (found []corev1.PersistentVolumeClaim, own *corev1.PersistentVolumeClaim) {
	if i := slices.IndexFunc(f.Claims, func(c corev1.PersistentVolumeClaim) bool { return c.Name == r.Claims(m)[0] }); i >= 0 {
		own = &f.Claims[i]
	}
	for _, claim := range f.Claims {
		ours := claim.Labels[objects.EnvironmentLabel] != "" || own != nil && !claim.CreationTimestamp.Time.Before(own.CreationTimestamp.Time)
		if r.Storage == cluster.SharedStorage && !ours && objects.MayHaveFiles(&claim) && objects.KeyFor(claim.Name) == m.Key {
			found = append(found, claim)
		}
	}
	return found, own
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
