// SPDX-License-Identifier: Apache-2.0

package train

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cause"
)

// meetingTime is how much later than the first rank the others may reach the rendezvous before the log names them. With
// the time between two looks it makes at most a minute.
const meetingTime = 30 * time.Second

// meeting follows the ranks' way to their rendezvous.
type meeting struct {
	// first is when the first rank was seen there.
	first time.Time
	// told is true after the warning, over after the end.
	told, over bool
}

// late returns the ranks that should have come by now, of a training whose nodes have these statuses. It returns them once.
func (m *meeting) late(statuses []agent.JobStatus, spec agent.JobSpec, now time.Time) []agent.RankStatus {
	absent, arrived := cause.Absent(spec, statuses)
	switch {
	case m.over || arrived == 0:
		return nil
	case m.first.IsZero():
		m.first = now
	}
	m.over = len(absent) == 0
	if m.told || m.over || now.Sub(m.first) < meetingTime {
		return nil
	}
	m.told = true
	return absent
}

// watchRendezvous warns about ranks for which the others wait at the rendezvous, and reports when all have come.
func (t *Training) watchRendezvous(ctx context.Context, m *meeting, statuses []agent.JobStatus, now time.Time) {
	over := m.over
	late := m.late(statuses, t.Spec, now)
	if m.told && m.over && !over {
		t.Log.Info(fmt.Sprintf("All ranks have reached the rendezvous, the last ones after %s.", now.Sub(m.first).Round(time.Second)))
	}
	if len(late) == 0 {
		return
	}
	doing := map[int]agent.RankActivity{}
	activities, _ := t.activities(ctx)
	for _, a := range activities {
		doing[a.Rank] = a
	}
	const most = 8
	var ranks []string
	for _, rank := range late[:min(len(late), most)] {
		text := fmt.Sprintf("rank %d on node %d ", rank.Rank, rank.Node)
		a, asked := doing[rank.Rank]
		switch {
		case rank.Started.IsZero():
			text += "has not started"
		case rank.Rendezvous == agent.Connecting:
			text += "gets no answer from node 0, so the network between them may be at fault"
		case asked:
			text += cause.DescribeActivity(a)
		default:
			text += "runs"
		}
		ranks = append(ranks, text)
	}
	if more := len(late) - most; more > 0 {
		ranks = append(ranks, fmt.Sprintf("and %d more", more))
	}
	t.Log.Warn(fmt.Sprintf("The other ranks wait at the rendezvous, port %d of node 0, for %s since the first came: %s.",
		cmp.Or(t.Spec.MasterPort, agent.MasterPort), now.Sub(m.first).Round(time.Second), strings.Join(ranks, "; ")))
}
