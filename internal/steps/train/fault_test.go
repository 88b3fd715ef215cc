// SPDX-License-Identifier: Apache-2.0

package train

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/param"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
	"github.com/ml-dev-env/ml-dev-env/test/apitest"
	"github.com/ml-dev-env/ml-dev-env/test/envtest"
)

// Whichever request to the API server fails once, and however, the training ends in the same way, and the Lease and the receipt have
// the same of it. The ranks run once on each node: later steps of the same run find their job, as a retried step does.
func TestEveryRequestMayFail(t *testing.T) {
	for name, script := range map[string]string{
		"succeeded": `echo '{"step":1,"steps":2,"loss":3.5}' >> "$MLENV_METRICS_FILE"`, "failed": "exit 3",
	} {
		t.Run(name, func(t *testing.T) {
			pool := envtest.NewPool(t, 4, func(node *agenttest.Node) {
				if err := os.WriteFile(filepath.Join(node.Config.Paths.Workspace, "train.sh"), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
					t.Fatal(err)
				}
			})
			apitest.EachFault(t, func(t *testing.T, wrap func(http.RoundTripper) http.RoundTripper) string {
				server := pool.Server(t)
				d := Deps{Clients: envtest.InPod(server.Clients(wrap)), Log: command.TextLog(io.Discard), Out: io.Discard}
				result, err := Run(t.Context(), d, Options{
					Run: envtest.Run("train"), Name: "env", Script: "train.sh", Launcher: agent.Command, RanksPerNode: 1, Timeout: time.Hour,
					ProgressEvery: time.Hour, Rendezvous: param.Warn, DebugRank: -1,
				})
				reading := server.Clients(nil).Kube
				memory, notRead := receipt.ReadJournal(t.Context(), reading, "ns", "train-1")
				text := fmt.Sprint(fail.ReasonOf(err), notRead, " ", result.Metrics)
				if part := memory.EntryOf("train"); part != nil {
					text += fmt.Sprint(" ", part.Status, part.Reason, part.Final, string(part.Metrics), part.Record)
				}
				_, notHeld := reading.CoordinationV1().Leases("ns").Get(t.Context(), "env", metav1.GetOptions{})
				return fmt.Sprint(text, "\n", notHeld, "\n", strings.Join(server.Paths(), " "))
			})
		})
	}
}
