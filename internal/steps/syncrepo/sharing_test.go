// SPDX-License-Identifier: Apache-2.0

package syncrepo

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
)

// A node that shares a volume confirms the tree itself, because its mount may not show yet what another node wrote.
func TestSharingNodesConfirmTheTree(t *testing.T) {
	agents := agenttest.StartWith(t, 2, agenttest.Options{Shared: true})
	agents[1].Wrap(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost && strings.HasPrefix(r.URL.Path, "/v1/trees/") && !strings.HasSuffix(r.URL.Path, "/switch") {
				_ = json.NewEncoder(w).Encode(agent.TreePlan{Present: false})
				return
			}
			next.ServeHTTP(w, r)
		})
	})
	dir := t.TempDir()
	write(t, dir, map[string]string{"train.py": "print(1)"})
	_, err := sendDir(t.Context(), quiet(), setOf(agents), dir)
	if fail.ReasonOf(err) != fail.SyncFailed || !strings.Contains(err.Error(), "node 1 does not hold it") {
		t.Errorf("got %v, want SyncFailed because node 1 does not hold the tree", err)
	}
}
