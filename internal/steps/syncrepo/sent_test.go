package syncrepo

import (
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/agenttest"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
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
	hash, err := sendDir(t.Context(), log, set, dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := await(t.Context(), log, set, sent{tree: hash}, time.Minute); err != nil {
		t.Errorf("a tree that is there: %v", err)
	}
	// An earlier run had other requirements.
	requirements := tree.Digest(strings.Repeat("b", 64))
	switchAll := func(venv string) {
		for _, client := range set {
			if _, err := client.SwitchTree(t.Context(), hash, agent.Switch{Venv: agent.State + "/venvs/" + venv}); err != nil {
				t.Fatal(err)
			}
		}
	}
	switchAll(strings.Repeat("a", 64))
	for len(asked) > 0 {
		<-asked
	}
	came := make(chan error, 1)
	go func() { came <- await(t.Context(), log, set, sent{hash, requirements}, time.Minute) }()
	<-asked // a node has said that it has the tree, with another virtual environment
	select {
	case err := <-came:
		t.Fatalf("await ended with %v before the virtual environment was there", err)
	default:
	}
	switchAll(string(requirements))
	if err := <-came; err != nil {
		t.Errorf("a tree that has come: %v", err)
	}
	if err := await(t.Context(), log, set, sent{tree: "0"}, time.Nanosecond); fail.ReasonOf(err) != fail.SyncFailed {
		t.Errorf("a tree that does not come: %v, want reason SyncFailed", err)
	}
}

func TestSentURL(t *testing.T) {
	a, b := tree.Digest(strings.Repeat("a", 64)), tree.Digest(strings.Repeat("b", 64))
	for _, want := range []sent{{tree: a}, {a, b}} {
		if got, err := readSentURL(SentURL(want.tree, want.requirements)); err != nil || got != want {
			t.Errorf("got %v, %v; want %v", got, err, want)
		}
	}
	for _, url := range []string{"folder:", "folder:" + string(a) + "/", "folder:" + string(a) + "/../x", "folder:abc"} {
		if got, err := readSentURL(url); err == nil {
			t.Errorf("%s: got %v, want an error", url, got)
		}
	}
}
