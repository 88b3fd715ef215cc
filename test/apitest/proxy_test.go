// SPDX-License-Identifier: Apache-2.0

package apitest_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/test/apitest"
)

// Through a proxy that fails every third request, each write is done once.
func TestWritesThroughAFaultyProxy(t *testing.T) {
	for seed := range uint64(3) {
		server := apitest.Start(t)
		address, failed := apitest.Proxy(t, server.Clients(nil).Config, seed, 3)
		clients, err := kube.NewClients(&rest.Config{Host: address}, "ns")
		if err != nil {
			t.Fatal(err)
		}
		configs := clients.Kube.CoreV1().ConfigMaps("ns")
		for i := range 10 {
			made, err := configs.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("c-", i)}},
				metav1.CreateOptions{})
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			if _, err := configs.Patch(t.Context(), made.Name, types.MergePatchType, []byte(`{"data":{"a":"b"}}`),
				metav1.PatchOptions{}); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			if i%2 == 0 {
				err := configs.Delete(t.Context(), made.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(made.UID))})
				if err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
			}
		}
		if left := server.Paths(); len(left) != 5 || failed() < 3 {
			t.Errorf("seed %d: left %v after %d faults, want five objects", seed, left, failed())
		}
	}
}
