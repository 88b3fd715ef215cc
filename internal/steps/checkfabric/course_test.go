// SPDX-License-Identifier: Apache-2.0

package checkfabric

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/jobs"
	"github.com/ml-dev-env/ml-dev-env/internal/fabric"
)

// A job of two nodes may be silent for 10 s until its ranks have met, then for 4 s, and has 60 s in all.
func TestCourse(t *testing.T) {
	both := func(e fabric.Event) []event { return []event{says(0, e), says(1, e)} }
	exit := func(node, code int) event {
		return jobs.Event{Node: node, Status: agent.JobStatus{State: agent.Exited, Ranks: []agent.RankStatus{
			{Rank: node, Ended: time.Unix(1, 0), Exit: agent.Exit{Code: code}},
		}}}
	}
	for _, tc := range []struct {
		name    string
		backend fabric.Backend
		// course has the seconds that pass, and the events.
		course []any
		// want has the effects after the begin, and how the job ended.
		want string
	}{
		{
			"all is measured", fabric.NCCL,
			[]any{5, both(fabric.Ready), 3, both(fabric.Joined), 1, both(fabric.Done), exit(0, 0), exit(1, 0), logged(0), logged(1)},
			"silent after 10s, silent after 4s, settled after 2s; done, importing 5s, meeting 3s",
		},
		{
			"torch is slow to end", fabric.NCCL,
			[]any{both(fabric.Ready), both(fabric.Joined), both(fabric.Done), 2, settled, 4, giveUp},
			"silent after 10s, silent after 4s, settled after 2s, stop: all is measured, give up after 4s; done",
		},
		{
			"a rank fails, and its peer prints its own error", fabric.NCCL,
			[]any{both(fabric.Ready), exit(1, 1), 2, settled, exit(0, 1), logged(1), logged(0)},
			"silent after 10s, settled after 2s, stop: another rank failed, give up after 4s; failed",
		},
		{
			"both fail at once", fabric.NCCL, []any{exit(0, 1), exit(1, 1), logged(0), logged(1)}, "settled after 2s; failed",
		},
		{
			"a member never meets the other", fabric.NCCL,
			[]any{2, both(fabric.Ready), 6, says(0, fabric.Joined), 4, silent, 6, silent, 4, giveUp},
			"silent after 10s, silent after 6s, stop: no rank answers any more, give up after 4s; stalled, importing 2s, meeting 0s",
		},
		{
			"silence after they have met is shorter", fabric.NCCL,
			[]any{both(fabric.Ready), 1, both(fabric.Joined), 4, silent, 4, giveUp},
			"silent after 10s, silent after 4s, stop: no rank answers any more, give up after 4s; stalled, importing 0s, meeting 1s",
		},
		{
			"silence counts only from the last word", fabric.NCCL,
			[]any{both(fabric.Ready), both(fabric.Joined), 3, says(1, ""), 1, silent},
			"silent after 10s, silent after 4s, silent after 3s; running",
		},
		{
			"no time to measure all", fabric.NCCL,
			[]any{both(fabric.Ready), both(fabric.Joined), 59, says(0, ""), 1, outOfTime, exit(0, 0), exit(1, 0), logged(0), logged(1)},
			"silent after 10s, silent after 4s, stop: the time for the check is over, give up after 4s; done",
		},
		{
			"no time to import torch", fabric.Gloo, []any{says(0, fabric.Ready), 60, outOfTime, 4, giveUp},
			"stop: the time for the check is over, give up after 4s; ",
		},
		{
			"gloo that does not meet hangs", fabric.Gloo, []any{54, both(fabric.Ready), 6, outOfTime, 4, giveUp},
			"silent after 10s, stop: the time for the check is over, give up after 4s; stalled, importing 54s, meeting 0s",
		},
		{
			"NCCL that had no time to start shows nothing", fabric.NCCL, []any{54, both(fabric.Ready), 6, outOfTime, 4, giveUp},
			"silent after 10s, stop: the time for the check is over, give up after 4s; importing 54s, meeting 0s",
		},
		{
			"nothing counts after the order to stop", fabric.NCCL,
			[]any{both(fabric.Ready), 10, silent, exit(0, 1), outOfTime, settled, silent, both(fabric.Done), 4, giveUp},
			"silent after 10s, stop: no rank answers any more, give up after 4s; done, stalled",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			now := time.Unix(1000, 0)
			c := course{began: now, job: &job{bound: time.Minute, joining: 10 * time.Second, stall: 4 * time.Second}}
			for node := range 2 {
				c.Members = append(c.Members, agent.NewClient(node, "", agent.Credentials{}, nil))
			}
			c.input.Backend = tc.backend
			var effects []string
			if got := c.begin(); !cmp.Equal(got, []effect{alarm{outOfTime, time.Minute}}, cmp.AllowUnexported(alarm{})) {
				t.Errorf("begins with %v, want its time", got)
			}
			take := func(e event) {
				for _, effect := range c.on(e, now) {
					switch e := effect.(type) {
					case alarm:
						effects = append(effects, fmt.Sprintf("%s after %s", e.timer, e.after))
					case order:
						effects = append(effects, "stop: "+string(e))
					}
				}
			}
			for _, step := range tc.course {
				switch step := step.(type) {
				case int:
					now = now.Add(time.Duration(step) * time.Second)
				case []event:
					for _, e := range step {
						take(e)
					}
				default:
					take(step)
				}
			}
			if got := strings.Join(effects, ", ") + "; " + c.ending(); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}

func says(node int, e fabric.Event) event { return printed{node, fabric.Line{Event: e}} }

// ending says how the job ended, and what took a time.
func (c *course) ending() string {
	out := c.outcome()
	words := []string{string(c.phase)}
	if c.phase == ended {
		words = nil
	}
	for i, is := range []bool{out.done, out.failed, out.stalled} {
		if is {
			words = append(words, []string{"done", "failed", "stalled"}[i])
		}
	}
	if out.importing > 0 || out.meeting > 0 {
		words = append(words, fmt.Sprintf("importing %s, meeting %s", out.importing, out.meeting))
	}
	return strings.Join(words, ", ")
}
