// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/test/apitest"
)

// Each verb has the same effect and the same answer, whichever request fails once, and however.
func TestEveryRequestIsRepeated(t *testing.T) {
	apitest.EachFault(t, func(t *testing.T, wrap func(http.RoundTripper) http.RoundTripper) string {
		server := apitest.Start(t)
		clients := server.Clients(wrap)
		if err := everyVerb(t.Context(), clients); err != nil {
			t.Error(err)
		}
		return strings.Join(server.Paths(), " ")
	})
}

func everyVerb(ctx context.Context, clients *kube.Clients) error {
	leases, configs := clients.Kube.CoordinationV1().Leases("ns"), clients.Kube.CoreV1().ConfigMaps("ns")
	about := metav1.ObjectMeta{Namespace: "ns", Name: "a"}
	made, err := leases.Create(ctx, &coordinationv1.Lease{ObjectMeta: about, Spec: coordinationv1.LeaseSpec{HolderIdentity: new("me")}},
		metav1.CreateOptions{FieldManager: kube.FieldManager})
	if err != nil || made.UID == "" {
		return fmt.Errorf("create: %w, UID %q", err, made.UID)
	}
	err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
		found, err := leases.Get(ctx, "a", metav1.GetOptions{})
		if err != nil {
			return err
		}
		found.Spec.HolderIdentity = new("you")
		_, err = leases.Update(ctx, found, metav1.UpdateOptions{FieldManager: kube.FieldManager})
		return err
	})
	if err != nil {
		return fmt.Errorf("update: %w", err)
	}
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "b"}, Data: map[string]string{"x": "1"}}
	if err := kube.Apply(ctx, clients.Kube, config); err != nil {
		return fmt.Errorf("apply: %w", err)
	}
	if _, err := configs.Patch(ctx, "b", types.MergePatchType, []byte(`{"data":{"y":"2"}}`), metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("patch: %w", err)
	}
	seen, err := configs.Get(ctx, "b", metav1.GetOptions{})
	if err != nil || seen.Data["x"]+seen.Data["y"] != "12" {
		return fmt.Errorf("get: %w, %v", err, seen.Data)
	}
	if all, err := configs.List(ctx, metav1.ListOptions{}); err != nil || len(all.Items) != 1 {
		return fmt.Errorf("list: %w, %d", err, len(all.Items))
	}
	// Nobody else deletes one by its version if it was changed since.
	live, err := leases.Get(ctx, "a", metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get: %w", err)
	}
	err = leases.Delete(ctx, "a", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &live.UID, ResourceVersion: new("1000000")}})
	if !apierrors.IsConflict(err) {
		return fmt.Errorf("delete of another version: %w, want a conflict", err)
	}
	if err := leases.Delete(ctx, "a",
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &live.UID, ResourceVersion: &live.ResourceVersion}}); err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	return nil
}

// What may have been carried out is not sent again if that could do anything twice.
func TestUnsafeRequestsAreNotRepeated(t *testing.T) {
	for name, request := range map[string]func(context.Context, *kube.Clients) error{
		"a name that the API server invents": func(ctx context.Context, c *kube.Clients) error {
			_, err := c.Kube.CoreV1().ConfigMaps("ns").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "a-"}},
				metav1.CreateOptions{})
			return err
		},
		"a deletion by name": func(ctx context.Context, c *kube.Clients) error {
			return c.Kube.CoreV1().ConfigMaps("ns").Delete(ctx, "b", metav1.DeleteOptions{})
		},
		"a patch by operations": func(ctx context.Context, c *kube.Clients) error {
			_, err := c.Kube.CoreV1().ConfigMaps("ns").Patch(ctx, "b", types.JSONPatchType, []byte(`[]`), metav1.PatchOptions{})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sent := 0
			server := apitest.Start(t)
			clients := server.Clients(func(http.RoundTripper) http.RoundTripper {
				return transport(func(r *http.Request) (*http.Response, error) {
					sent++
					injector := apitest.NewInjector(r.Method+" "+r.URL.Path+" #1", apitest.Reset)
					return injector.Wrap(http.DefaultTransport).RoundTrip(r)
				})
			})
			if err := request(t.Context(), clients); !errors.Is(err, syscall.ECONNRESET) || sent != 1 {
				t.Errorf("sent %d times: %v; want once, and the reset connection", sent, err)
			}
		})
	}
}

type transport func(*http.Request) (*http.Response, error)

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

// An object that another caller has created is not adopted after a lost answer.
func TestOnlyTheOwnObjectIsAdopted(t *testing.T) {
	server := apitest.Start(t, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: new("you")}})
	clients := server.Clients(apitest.NewInjector("POST /apis/coordination.k8s.io/v1/namespaces/ns/leases #1", apitest.Lost).Wrap)
	_, err := clients.Kube.CoordinationV1().Leases("ns").Create(t.Context(),
		&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: coordinationv1.LeaseSpec{HolderIdentity: new("me")}},
		metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		t.Errorf("got %v, want AlreadyExists", err)
	}
}
