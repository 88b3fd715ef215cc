// SPDX-License-Identifier: Apache-2.0

package openshift

import (
	"context"
	"fmt"
	"log"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/openshift/scc"
)

// untilServed polls until the resources can be listed. up applies their definitions while this server starts, and
// before that a watch fails.
func untilServed(ctx context.Context, list func(context.Context, metav1.ListOptions) error) error {
	said := ""
	for {
		err := list(ctx, metav1.ListOptions{Limit: 1})
		if err == nil {
			return nil
		}
		if err.Error() != said {
			said = err.Error()
			log.Printf("waiting for OpenShift's own resources: %v", err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for OpenShift's own resources: %w (last answer: %w)", ctx.Err(), err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// makeStock creates the constraints that every cluster has, and removes those that this cluster lacks. It does not
// change existing constraints, because administrators may have changed them.
func makeStock(ctx context.Context, clients Clients, without []string) error {
	stock, err := scc.Stock()
	if err != nil {
		return err
	}
	for _, constraints := range stock {
		if slices.Contains(without, constraints.Name) {
			err := clients.Constraints.SecurityContextConstraints().Delete(ctx, constraints.Name, metav1.DeleteOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("removing the constraints %s: %w", constraints.Name, err)
			}
			continue
		}
		_, err := clients.Constraints.SecurityContextConstraints().Create(ctx, constraints, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("creating the constraints %s: %w", constraints.Name, err)
		}
	}
	return nil
}
