// SPDX-License-Identifier: Apache-2.0

package syncrepo

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/source/git"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
	"github.com/ml-dev-env/ml-dev-env/test/apitest"
	"github.com/ml-dev-env/ml-dev-env/test/envtest"
)

// Whichever request to the API server fails once, and however, the nodes get the tree, or the step fails for the same reason, and it
// notes the same of it.
func TestEveryRequestMayFail(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"train.py": "print()"})
	manifest, err := tree.Scan(t.Context(), dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	pool := envtest.NewPool(t, 4, func(node *agenttest.Node) {
		if err := Upload(t.Context(), quiet(), nodes.Set{node.Client}, dir, manifest); err != nil {
			t.Fatal(err)
		}
	})
	for name, url := range map[string]string{"succeeded": SentURL(manifest.Hash(), ""), "failed": git.FolderScheme + "no-hash"} {
		t.Run(name, func(t *testing.T) {
			apitest.EachFault(t, func(t *testing.T, wrap func(http.RoundTripper) http.RoundTripper) string {
				server := pool.Server(t)
				result, err := Run(t.Context(), Deps{Clients: envtest.InPod(server.Clients(wrap)), Log: quiet()}, Options{
					Run: envtest.Run("sync-repo"), Name: "env", Source: git.Source{URL: url, Revision: "c0ffee"}, Scratch: t.TempDir(),
				})
				memory, notRead := receipt.ReadJournal(t.Context(), server.Clients(nil).Kube, "ns", "train-1")
				text := fmt.Sprint(fail.ReasonOf(err), notRead, " ", result)
				if part := memory.EntryOf("sync-repo"); part != nil {
					text += fmt.Sprint(" ", part.Status, part.Reason, part.Commit, part.Tree)
				}
				return text + "\n" + strings.Join(server.Paths(), " ")
			})
		})
	}
}
