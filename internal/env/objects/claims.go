// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"cmp"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
)

// Keys of the cluster file that name claims.
const (
	WorkspaceKey = "storage.workspace_claim"
	DatasetsKey  = "storage.datasets_claim"
)

// Mount is one of the two folders of a node that are on claims.
type Mount struct {
	// Path is the folder, Key the cluster file's key that names its claim.
	Path, Key string
	// Claim is the claim that all nodes share, Volume the name of the pods' volume and of the template of each node's own claim.
	Claim, Volume string
	// Named reports whether the cluster file names Claim.
	Named bool
	// Size is the size of a new claim. Asked reports whether a param or the cluster file has it, so that an existing claim grows to it.
	Size  resource.Quantity
	Asked bool
}

// Mounts returns the workspace and the datasets. The request has the cluster file's defaults.
func (r Request) Mounts() []Mount {
	storage, names := r.Cluster.Storage, r.Names()
	mount := func(path, key, named, volume, asked string, size cluster.Quantity) Mount {
		m := Mount{Path: path, Key: key, Claim: cmp.Or(named, volume), Volume: volume, Named: named != "", Size: size.Quantity}
		if parsed, err := cluster.ParseQuantity(asked); err == nil {
			m.Size, m.Asked = parsed, true
		}
		return m
	}
	return []Mount{
		mount(agent.Workspace, WorkspaceKey, storage.WorkspaceClaim, names.Workspace, r.WorkspaceSize, storage.WorkspaceSize),
		mount(agent.Datasets, DatasetsKey, storage.DatasetsClaim, names.Datasets, r.DatasetsSize, storage.DatasetsSize),
	}
}

// Claims returns the names of a mount's claims: the shared one, or one of each node.
func (r Request) Claims(m Mount) (claims []string) {
	if r.Storage != cluster.NodeStorage {
		return []string{m.Claim}
	}
	for node := range r.Nodes {
		claims = append(claims, r.Names().NodeClaim(m.Volume, node))
	}
	return claims
}

// AllClaims returns the names of the claims of all mounts.
func (r Request) AllClaims() (claims []string) {
	for _, m := range r.Mounts() {
		claims = append(claims, r.Claims(m)...)
	}
	return claims
}

// KeepClaimSizes gives the claim templates the sizes of the live ones. A StatefulSet's templates are immutable, and a claim that
// exists follows none: provision expands each claim by itself.
func KeepClaimSizes(live, want *appsv1.StatefulSet) {
	for i := range want.Spec.VolumeClaimTemplates {
		template := &want.Spec.VolumeClaimTemplates[i]
		at := slices.IndexFunc(live.Spec.VolumeClaimTemplates, func(c corev1.PersistentVolumeClaim) bool { return c.Name == template.Name })
		if at >= 0 {
			template.Spec.Resources.Requests = live.Spec.VolumeClaimTemplates[at].Spec.Resources.Requests.DeepCopy()
		}
	}
}

// IsShared reports whether the nodes of an environment can mount the same claim.
func IsShared(claim *corev1.PersistentVolumeClaim) bool {
	return slices.Contains(claim.Spec.AccessModes, corev1.ReadWriteMany)
}

// IsBlock reports whether a claim is a disk without a file system, which no folder can be on.
func IsBlock(claim *corev1.PersistentVolumeClaim) bool {
	return claim.Spec.VolumeMode != nil && *claim.Spec.VolumeMode == corev1.PersistentVolumeBlock
}

// MayHaveFiles reports whether a claim may have files that trainings want: it has a volume, nodes could share it, and no other object
// owns it. The API server shows no files.
func MayHaveFiles(claim *corev1.PersistentVolumeClaim) bool {
	return claim.Status.Phase == corev1.ClaimBound && claim.DeletionTimestamp == nil && len(claim.OwnerReferences) == 0 &&
		IsShared(claim) && !IsBlock(claim)
}

// KeyFor guesses from a claim's name which key would name it, "" if the name does not show it.
func KeyFor(claim string) string {
	switch {
	case strings.Contains(claim, "data"):
		return DatasetsKey
	case strings.Contains(claim, "work"):
		return WorkspaceKey
	}
	return ""
}
