// SPDX-License-Identifier: Apache-2.0

package checkfabric

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
	"github.com/ml-dev-env/ml-dev-env/test/apitest"
	"github.com/ml-dev-env/ml-dev-env/test/envtest"
)

// Whichever request to the API server fails once, and however, the verdict is the same, and the step notes the same of it. Each step
// measures with processes of its own, so each request fails in some of the ways only.
func TestEveryRequestMayFail(t *testing.T) {
	environ := append(os.Environ(), "PATH="+benchmark(t, measured)+":"+os.Getenv("PATH"))
	pool := envtest.NewPool(t, 4, func(node *agenttest.Node) {
		node.End()
		node.Config.Environ = environ
		node.Restart()
	})
	apitest.SomeFaults(t, 2, func(t *testing.T, wrap func(http.RoundTripper) http.RoundTripper) string {
		server := pool.Server(t)
		d := Deps{Clients: envtest.InPod(server.Clients(wrap)), Log: slog.New(slog.DiscardHandler), Out: io.Discard}
		report, err := Run(t.Context(), d, Options{
			Run: envtest.Run("check-fabric"), Name: "env", Bandwidth: warn, Timeout: timeForACheckThatEnds,
		})
		memory, notRead := receipt.ReadJournal(t.Context(), server.Clients(nil).Kube, "ns", "train-1")
		text := fmt.Sprint(fail.ReasonOf(err), " ", err, notRead, " ", report.Verdict, report.Message, report.Bandwidth)
		if part := memory.EntryOf("check-fabric"); part != nil {
			text += fmt.Sprint(" ", part.Status, part.Reason)
		}
		return text + "\n" + strings.Join(server.Paths(), " ")
	})
}
