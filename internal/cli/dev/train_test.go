// SPDX-License-Identifier: Apache-2.0

package dev

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

// A training gets its receipt even if its environment is gone meanwhile.
func TestReceiptOfATraining(t *testing.T) {
	clients := &kube.Clients{Kube: fake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}), Namespace: "ns"}
	start := receipt.Start{Run: "by-hand-x", RunUID: "by-hand-x", Namespace: "ns", Environment: "env", Started: time.Now(), Kept: true}
	log := slog.New(slog.DiscardHandler)
	start.Writer(clients, log, "train").Update(t.Context(), func(*receipt.Entry) {})
	if err := keepReceipt(t.Context(), clients, log, start); err != nil {
		t.Fatal(err)
	}
	r, err := receipt.Read(t.Context(), clients.Kube, "ns", "by-hand-x")
	if err != nil || !strings.Contains(r.Teardown, "looking for environment ns/env: there is none") {
		t.Errorf("teardown %q, %v; want that there is no environment", r.Teardown, err)
	}
}
