package checkfabric

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
)

// The step reports every mistake at once, before it contacts a cluster.
func TestFlagsOfPods(t *testing.T) {
	for _, test := range []struct {
		args string
		want []string
	}{
		{"--pods=a --name=other --idle=1s --run-uid=1 --timeout=1s", []string{`--pods "a": one pod`, `--name "other": it is of an environment`, `--run-uid "1": it is`, "--idle 1s: want at least 5s", `--timeout "1s"`}},
		{"--container=main --agent=x", []string{"--container: want --pods with it", "--agent: want --pods with it"}},
	} {
		var out bytes.Buffer
		if code := step.Run(t.Context(), Command(), strings.Fields(test.args), &out, &out); code != step.WrongUsage {
			t.Errorf("%s: exit code %d, want %d", test.args, code, step.WrongUsage)
		}
		for _, want := range test.want {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s: %q is missing in:\n%s", test.args, want, out.String())
			}
		}
	}
}

// A pod can be deleted while the command runs. Its agent does not come back.
func TestPrepareEndsIfAPodIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := agent.NewClient(0, "gone", agent.Credentials{}, func(context.Context, int) (net.Conn, error) { return nil, errors.New("pod not found") })
		defer gone.Close()
		began := time.Now()
		_, err := prepare(t.Context(), nodes.Set{gone}, "", slog.New(slog.DiscardHandler))
		if took := time.Since(began); fail.ReasonOf(err) != fail.AgentUnreachable || took > 2*time.Minute {
			t.Errorf("got %v after %s, want AgentUnreachable after a minute", err, took)
		}
	})
}
