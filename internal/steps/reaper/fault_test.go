// SPDX-License-Identifier: Apache-2.0

package reaper

import (
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
	"github.com/ml-dev-env/ml-dev-env/test/apitest"
)

// Whichever request to the API server fails once, and however, a pass of the reaper releases the same, and writes the same receipts and
// one event.
func TestEveryRequestMayFail(t *testing.T) {
	apitest.EachFault(t, func(t *testing.T, wrap func(http.RoundTripper) http.RoundTripper) string {
		set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "env", Labels: objects.Labels("env"),
			OwnerReferences: []metav1.OwnerReference{objects.LeaseReference("env", "lease-env")}}}
		going := leaseOf("going", "run", time.Minute)
		*going.Spec.HolderIdentity, going.Annotations[lease.HolderName] = "uid-3", "going"
		held := pipelineRun("uid-3", func(r *v1.PipelineRun) { r.Name = "going" })
		server := apitest.Start(t, leaseOf("env", "run", time.Minute), set, leaseOf("live", "h-kim", time.Minute), going, held,
			taskOf(held, "pod"))
		reading := server.Clients(nil).Kube
		for name, uid := range map[string]string{"name-of-run": "run", "released": "uid-2"} {
			begun := receipt.Start{Run: name, Namespace: "ns", RunUID: uid, Environment: "env", Started: time.Unix(0, 0)}
			if err := receipt.Note(t.Context(), reading, begun, receipt.Entry{Task: "train", Status: run.Running}); err != nil {
				t.Fatal(err)
			}
		}
		err := Run(t.Context(), server.Clients(wrap), slog.New(slog.DiscardHandler), Options{})
		var left []string
		for _, path := range server.Paths() {
			left = append(left, strings.Split(path, "/env.")[0]) // an event is named after its time
		}
		task, readErr := server.Clients(nil).Tekton.TektonV1().TaskRuns("ns").Get(t.Context(), "train", metav1.GetOptions{})
		_, isWoken := task.Annotations[woken]
		text := fmt.Sprint(err, readErr, isWoken, "\n", strings.Join(left, " "))
		for _, name := range []string{"name-of-run", "released"} {
			r, err := receipt.Read(t.Context(), reading, "ns", name)
			text += fmt.Sprint("\n", err, r.Verdict, r.Reason, r.Message, r.Teardown)
		}
		return text
	})
}
