// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
)

func TestMain(m *testing.M) { agenttest.Main(m) }

// scripted returns a job of two nodes, each of which runs the shell script.
func scripted(t *testing.T, script string) (Job, agent.JobSpec, []*agenttest.Node) {
	t.Helper()
	agents := agenttest.Start(t, 2)
	j := Job{ID: "job"}
	for _, node := range agents {
		if err := os.WriteFile(filepath.Join(node.Config.Paths.Workspace, "job.sh"), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		j.Members = append(j.Members, node.Client)
	}
	return j, agent.JobSpec{Launcher: agent.Command, Script: "job.sh", Nodes: 2, RanksPerNode: 1}, agents
}

// refusing returns a job of a node whose agent does not answer.
func refusing() Job {
	return Job{ID: "job", Members: []*agent.Client{agent.NewClient(3, "", agent.Credentials{}, func(context.Context, int) (net.Conn, error) {
		return nil, errors.New("no agent")
	})}}
}

func TestRunSurvivesABrokenConnection(t *testing.T) {
	j, spec, agents := scripted(t, `[ $NODE_RANK = 0 ] || exit 3`)
	for _, node := range agents {
		node.BreakWatch()()
	}
	last, err := j.Run(t.Context(), spec, agent.Stop{})
	if err != nil {
		t.Fatal(err)
	}
	for node, code := range []int{0, 3} {
		if s := last[node]; s.State != agent.Exited || len(s.Ranks) != 1 || s.Ranks[0].Exit.Code != code {
			t.Errorf("node %d: %+v, want it exited with %d", node, s, code)
		}
	}
	if attached, errs := j.Start(t.Context(), SameSpec(spec)); !attached || errors.Join(errs...) != nil {
		t.Errorf("started again: attached %t, %v; want it attached", attached, errs)
	}
}

// A member reports that it does not answer once for each time that it is silent, and its status again when it is back.
func TestFollowReportsSilence(t *testing.T) {
	j, spec, agents := scripted(t, `while [ ! -e go ]; do sleep 0.02; done`)
	breakWatch := agents[1].BreakWatch()
	breakWatch()
	if _, errs := j.Start(t.Context(), SameSpec(spec)); errors.Join(errs...) != nil {
		t.Fatal(errs)
	}
	events, kinds := make(chan Event), map[int][]Kind{}
	go func() {
		j.Follow(t.Context(), func(e Event) { events <- e })
		close(events)
	}()
	for e := range events {
		if known := kinds[e.Node]; len(known) == 0 || known[len(known)-1] != e.Kind {
			kinds[e.Node] = append(known, e.Kind)
		}
		if e.Node == 1 && e.Kind == Reported {
			for _, node := range agents {
				if err := os.WriteFile(filepath.Join(node.Config.Paths.Workspace, "go"), nil, 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if !slices.Equal(kinds[0], []Kind{Reported}) || !slices.Equal(kinds[1], []Kind{Silent, Reported}) {
		t.Errorf("events %v, want node 1 silent at first", kinds)
	}
}

func TestLost(t *testing.T) {
	gone := errors.New("its pod was deleted")
	for _, tc := range []struct {
		name  string
		gone  error
		want  string
		after time.Duration
	}{
		{"it never answers", nil, "the agent of node 3 has not answered for 2m0s: talking to the agent of node 3: no agent", Reachable},
		{"its pod is gone", gone, gone.Error(), 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j, began := refusing(), time.Now()
				j.Gone = func(_ context.Context, node int) error {
					if node != 3 {
						t.Errorf("asked about node %d, want 3", node)
					}
					return tc.gone
				}
				var kinds []Kind
				var last Event
				j.Follow(t.Context(), func(e Event) { kinds, last = append(kinds, e.Kind), e })
				if !slices.Equal(kinds, []Kind{Silent, Lost}) || last.Node != 3 || last.Err.Error() != tc.want {
					t.Errorf("events %v, the last is %v; want it silent, and lost by %q", kinds, last.Err, tc.want)
				}
				if took := time.Since(began).Truncate(time.Second); took != tc.after {
					t.Errorf("it was lost after %s, want %s", took, tc.after)
				}
				if _, err := j.Wait(t.Context()); err == nil || err.Error() != tc.want {
					t.Errorf("waiting for it: got %v, want %q", err, tc.want)
				}
			})
		})
	}
	j, _, _ := scripted(t, "")
	if _, err := j.Wait(t.Context()); !agent.IsNotFound(err) {
		t.Errorf("a job that no member knows: got %v, want NotFound", err)
	}
	if err := j.StopAndWait(t.Context(), agent.Stop{}); err != nil {
		t.Errorf("ending a job that no member knows: %v", err)
	}
	if statuses, err := j.Statuses(t.Context()); err != nil || len(statuses) != 2 || statuses[0].ID != "" {
		t.Errorf("statuses of a job that no member knows: %+v, %v", statuses, err)
	}
}

// If one member refuses, Start waits for none that does not answer.
func TestStartThatIsRefused(t *testing.T) {
	j, spec, agents := scripted(t, "exec sleep 1000")
	if err := os.Remove(filepath.Join(agents[0].Config.Paths.Workspace, "job.sh")); err != nil {
		t.Fatal(err)
	}
	j.Members = append(j.Members, refusing().Members...)
	_, errs := j.Start(t.Context(), SameSpec(spec))
	if fail.ReasonOf(errs[0]) != fail.ScriptNotFound || fail.ReasonOf(errs[2]) != fail.AgentUnreachable {
		t.Errorf("got %v, want ScriptNotFound, and AgentUnreachable for the third", errs)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	stopped := j.Stop(ended, agent.Stop{Reason: "enough"})
	if stopped[0] != nil || stopped[1] != nil || fail.ReasonOf(stopped[2]) != fail.AgentUnreachable {
		t.Errorf("stopping it: %v, want an error of the third member alone", stopped)
	}
	j.Members = j.Members[1:2]
	if last, err := j.Wait(t.Context()); err != nil || last[0].State != agent.Stopped {
		t.Errorf("the member that started: %+v, %v; want it stopped", last, err)
	}
}

func TestRunThatIsInterruptedStops(t *testing.T) {
	j, spec, _ := scripted(t, "exec sleep 1000")
	ctx, interrupt := context.WithCancel(t.Context())
	go func() {
		for t.Context().Err() == nil {
			if running, err := Running(t.Context(), j.Members); err != nil || len(running) == 2 {
				interrupt()
				return
			}
		}
	}()
	if _, err := j.Run(ctx, spec, agent.Stop{Reason: "nobody waits"}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want Canceled", err)
	}
	last, err := j.Wait(t.Context())
	if err != nil || last[0].State != agent.Stopped || !strings.Contains(last[1].StopReason, "nobody waits") {
		t.Errorf("%+v, %v; want it stopped", last, err)
	}
	if running, err := Running(t.Context(), j.Members); err != nil || len(running) != 0 {
		t.Errorf("running: %+v, %v; want nothing", running, err)
	}
}
