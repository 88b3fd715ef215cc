// SPDX-License-Identifier: Apache-2.0

package env

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/clusterfile"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// NamedClaims returns the claims that cluster files installed in the clients' namespace name, by the key that names them. Files that
// cannot be read, or that the caller may not read, name none.
func NamedClaims(ctx context.Context, clients *kube.Clients) map[string][]string {
	named := map[string][]string{}
	for _, file := range clusterfile.InstalledFiles(ctx, clients) {
		for key, claim := range map[string]string{
			objects.WorkspaceKey: file.Storage.WorkspaceClaim, objects.DatasetsKey: file.Storage.DatasetsClaim,
		} {
			if claim != "" && !slices.Contains(named[key], claim) {
				named[key] = append(named[key], claim)
			}
		}
	}
	for _, claims := range named {
		slices.Sort(claims)
	}
	return named
}

// WorkspaceClaims returns the workspace claims that exist: one that the nodes share, or one of each node. They are those that the
// environment mounts; without nodes it is the one that an installed cluster file names, or those that the environment's name gives.
// Without a claim the reason is InvalidInput.
func (e Environment) WorkspaceClaims(ctx context.Context) ([]string, error) {
	var shared []string
	if set, err := e.StatefulSet(ctx); err == nil && len(set.Spec.VolumeClaimTemplates) == 0 {
		shared = e.MountedClaims(set, e.Workspace, 0)
	}
	for _, claim := range append(shared, NamedClaims(ctx, e.clients)[objects.WorkspaceKey]...) {
		if found, err := e.claimExists(ctx, claim); found || err != nil {
			return []string{claim}, err
		}
	}
	var claims []string
	for node := 0; ; node++ {
		own := e.NodeClaim(e.Workspace, node)
		found, err := e.claimExists(ctx, own)
		if err != nil {
			return nil, err
		}
		if !found {
			break
		}
		claims = append(claims, own)
	}
	found, err := e.claimExists(ctx, e.Workspace)
	switch {
	case err != nil:
		return nil, err
	case found && (len(claims) == 0 || e.shares(ctx)): // those of each node may be of an earlier storage mode
		return []string{e.Workspace}, nil
	case len(claims) > 0:
		return claims, nil
	}
	return nil, fail.Becausef(fail.InvalidInput, "looking for the claims of environment %s: there is neither %s nor %s",
		e, e.Workspace, e.NodeClaim(e.Workspace, 0))
}

// shares reports whether the installed cluster files let the nodes share claims.
func (e Environment) shares(ctx context.Context) bool {
	files := clusterfile.InstalledFiles(ctx, e.clients)
	for _, file := range files {
		if file.Storage.Mode != cluster.SharedStorage {
			return false
		}
	}
	return len(files) > 0
}

func (e Environment) claimExists(ctx context.Context, name string) (bool, error) {
	_, err := e.clients.Kube.CoreV1().PersistentVolumeClaims(e.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	} else if err != nil {
		return false, kube.Problem(fmt.Errorf("looking for claim %s/%s: %w", e.Namespace, name, err))
	}
	return true, nil
}
