// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
)

func TestTurn(t *testing.T) {
	node := agenttest.Start(t, 1)[0]
	set := Set{node.Client}
	log := &strings.Builder{}
	const timeForAFreeNetwork = time.Minute
	turn := func(limit time.Duration) func() {
		return set.WaitForTurn(t.Context(), slog.New(slog.NewTextHandler(log, nil)), limit)
	}
	release := turn(timeForAFreeNetwork)
	if strings.Contains(log.String(), "level=WARN") {
		t.Errorf("the first turn logs %s", log)
	}
	turn(10 * time.Millisecond)()
	if !strings.Contains(log.String(), "level=WARN") || !strings.Contains(log.String(), "it is not free after") {
		t.Errorf("a turn that does not come logs %q, want a line that it continues without", log)
	}
	release()
	log.Reset()
	node.End()
	turn(timeForAFreeNetwork)()
	if log.Len() > 0 {
		t.Errorf("without an agent it logs %s", log)
	}
}
