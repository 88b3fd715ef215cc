package fetch

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// Claims are those of an environment that have the name, Workspace or Datasets of names: one
// of each node, or one that they share. Errors: InvalidInput where there is none.
func Claims(ctx context.Context, clients *kube.Clients, names objects.Names, name string) ([]string, error) {
	there := func(name string) (bool, error) {
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
		switch found, err := there(own); {
		case err != nil:
			return nil, err
		case found:
			claims = append(claims, own)
			continue
		case len(claims) > 0:
			return claims, nil
		}
		if found, err := there(name); err != nil {
			return nil, err
		} else if found {
			return []string{name}, nil
		}
		return nil, fail.Becausef(fail.InvalidInput, "looking for the claims of environment %s/%s: there is neither %s nor %s", clients.Namespace, names.Environment, name, own)
	}
}
