// SPDX-License-Identifier: Apache-2.0

package reaper

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// TestTheClockOfTheMachineDoesNotCount: a reaper whose clock is hours ahead or behind decides as the API server's clock does.
func TestTheClockOfTheMachineDoesNotCount(t *testing.T) {
	for name, tc := range map[string]struct {
		// ahead is the machine's clock less the API server's, ago when the Lease of ten minutes was renewed.
		ahead, ago time.Duration
		abandoned  bool
	}{
		"ahead, and the lease is live":     {5 * time.Hour, time.Minute, false},
		"behind, and the lease is live":    {-5 * time.Hour, time.Minute, false},
		"behind, and the lease is expired": {-5 * time.Hour, time.Hour, true},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				now := time.Now().Add(-tc.ahead)
				w.Header().Set("Date", now.UTC().Format(http.TimeFormat))
				w.Header().Set("Content-Type", "application/json")
				held := leaseOf("env", "h-kim", 0)
				held.ManagedFields = []metav1.ManagedFieldsEntry{{Time: &metav1.Time{Time: now.Add(-tc.ago)}}}
				held.Spec.RenewTime = &metav1.MicroTime{Time: now.Add(-tc.ago)}
				held.TypeMeta = metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"}
				if err := json.NewEncoder(w).Encode(held); err != nil {
					t.Error(err)
				}
			}))
			defer server.Close()
			clients, err := kube.NewClients(&rest.Config{Host: server.URL}, "ns")
			if err != nil {
				t.Fatal(err)
			}
			held, err := clients.Kube.CoordinationV1().Leases("ns").Get(t.Context(), "env", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			s, err := (&reaper{clients: clients, now: clients.Now}).look(t.Context(), held)
			if err != nil || (s.why != "") != tc.abandoned {
				t.Errorf("abandoned: %q, %v; want %t", s.why, err, tc.abandoned)
			}
		})
	}
}
