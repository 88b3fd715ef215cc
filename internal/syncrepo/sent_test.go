package syncrepo

import (
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/agenttest"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/tree"
)

// The folder of somebody else has come when all nodes have its tree, with the virtual
// environment that this run wants and the one before did not.
func TestAwait(t *testing.T) {
	var set nodes.Set
	asked := make(chan struct{}, 100)
	for _, node := range agenttest.Start(t, 2) {
		node.Wrap(func(real http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				real.ServeHTTP(w, r)
				if r.Method == http.MethodGet {
					asked <- struct{}{}
				}
			})
		})
		set = append(set, node.Client)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "train.py"), []byte("print(1)\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	hash, err := Send(t.Context(), log, set, dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := await(t.Context(), log, set, hash, false, time.Minute); err != nil {
		t.Errorf("a tree that is there: %v", err)
	}
	for len(asked) > 0 {
		<-asked
	}
	came := make(chan error, 1)
	go func() { came <- await(t.Context(), log, set, hash, true, time.Minute) }()
	<-asked // a node has said that it has the tree, without the virtual environment
	select {
	case err := <-came:
		t.Fatalf("await ended with %v before the virtual environment was there", err)
	default:
	}
	for _, client := range set {
		if _, err := client.SwitchTree(t.Context(), hash, agent.Switch{Venv: "/workspace/.mlenv/venvs/1"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-came; err != nil {
		t.Errorf("a tree that has come: %v", err)
	}
	if err := await(t.Context(), log, set, tree.Digest("0"), false, time.Nanosecond); fail.ReasonOf(err) != fail.SyncFailed {
		t.Errorf("a tree that does not come: %v, want reason SyncFailed", err)
	}
}
