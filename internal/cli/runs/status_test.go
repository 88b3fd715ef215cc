package runs

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
)

func TestProgress(t *testing.T) {
	part := func(state agent.JobState, attempt int, quiet time.Duration, ranks ...agent.RankStatus) agent.JobStatus {
		return agent.JobStatus{State: state, Spec: agent.JobSpec{Attempts: make([]agent.Attempt, attempt-1)}, Quiet: quiet, Ranks: ranks}
	}
	rank := func(number int, quiet time.Duration) agent.RankStatus {
		return agent.RankStatus{Rank: number, Quiet: quiet}
	}
	over := rank(0, time.Hour)
	over.Ended = time.Unix(1, 0)
	last := json.RawMessage(`{"step":812,"loss":2}`)
	for _, tc := range []struct {
		name             string
		jobs             []agent.JobStatus
		most             int
		attempt, silence string
	}{
		{"nodes without a job", make([]agent.JobStatus, 2), 4, "", ""},
		{"never restarted", []agent.JobStatus{part(agent.Running, 1, 0)}, 1, "", ""},
		{"a node that does not know the newest attempt", []agent.JobStatus{part(agent.Exited, 1, 0), part(agent.Running, 2, 0)}, 4, "2 of 4", ""},
		{"the run was deleted", []agent.JobStatus{part(agent.Exited, 3, 0)}, 0, "3", ""},
		{"one rank prints", []agent.JobStatus{part(agent.Running, 1, time.Second, rank(0, time.Second)), part(agent.Running, 1, time.Hour, rank(1, time.Hour))}, 4, "1 of 4", ""},
		{"all are silent", []agent.JobStatus{part(agent.Running, 1, 4*time.Minute, over, rank(1, 4*time.Minute)), part(agent.Running, 1, 5*time.Minute, rank(2, 5*time.Minute), rank(3, 6*time.Minute))}, 4,
			"1 of 4", "all ranks for 4m0s, rank 3 for 6m0s, last in step 812"},
		{"no rank has started", []agent.JobStatus{part(agent.Running, 1, 2*time.Minute)}, 1, "", "all ranks for 2m0s, last in step 812"},
	} {
		p := progressOf(tc.jobs, last)
		p.MaxAttempts = tc.most
		if p.attempt() != tc.attempt || p.silence() != tc.silence {
			t.Errorf("%s: got %q, %q; want %q, %q", tc.name, p.attempt(), p.silence(), tc.attempt, tc.silence)
		}
	}

	p := progressOf([]agent.JobStatus{part(agent.Running, 2, 4*time.Minute, rank(3, 4*time.Minute))}, nil)
	p.MaxAttempts = 3
	s := status{progress: p}
	var out bytes.Buffer
	if err := s.print(&out, time.Now()); err != nil || !strings.Contains(out.String(), "attempt  2 of 3\nsilent   all ranks for 4m0s, rank 3 for 4m0s\n") {
		t.Errorf("mlenv status prints %q, %v", out.String(), err)
	}
	now := time.Unix(100, 0)
	d := newDisplay(&out, 7)
	d.width, d.now = func() int { return 200 }, func() time.Time { return now }
	d.observe(launch.Event{Kind: launch.TaskStarted, Task: "train", Time: now})
	out.Reset()
	d.show(p)
	if want := "\r\x1b[K0 of 7 done; train for 0.0 s, attempt 2 of 3; silent: all ranks for 4m0s, rank 3 for 4m0s"; out.String() != want || !d.trains() {
		t.Errorf("mlenv run shows %q, want %q", out.String(), want)
	}
}
