package fetch

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// Mounts reports whether a pod mounts a claim.
func Mounts(pod *corev1.Pod, claim string) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim
	})
}

// Claims returns the claims of an environment by the name Workspace or Datasets of names: one of each node, or one that
// they share. Without a claim the reason is InvalidInput.
func Claims(ctx context.Context, clients *kube.Clients, names objects.Names, name string) ([]string, error) {
	exists := func(name string) (bool, error) {
		_, err := clients.Kube.CoreV1().PersistentVolumeClaims(clients.Namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil
		} else if err != nil {
			return false, kube.Problem(fmt.Errorf("looking for claim %s/%s: %w", clients.Namespace, name, err))
		}
		return true, nil
	}
	var claims []string
	for node := 0; ; node++ {
		own := name + "-" + names.PodName(node)
		found, err := exists(own)
		if err != nil {
			return nil, err
		}
		if !found {
			break
		}
		claims = append(claims, own)
	}
	if len(claims) > 0 {
		return claims, nil
	}
	if found, err := exists(name); found || err != nil {
		return []string{name}, err
	}
	return nil, fail.Becausef(fail.InvalidInput, "looking for the claims of environment %s/%s: there is neither %s nor %s-%s", clients.Namespace, names.Environment, name, name, names.PodName(0))
}
