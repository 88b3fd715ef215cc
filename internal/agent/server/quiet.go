// SPDX-License-Identifier: Apache-2.0

package server

import (
	"os"
	"slices"
	"sync"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

// growth notes when files grew, by this node's clock: the clock of shared storage may be wrong. The time of a change lies between
// two looks, and is the file's own if that does too.
type growth struct {
	mu     sync.Mutex
	looked time.Time
	files  map[string]fileSize
}

type fileSize struct {
	size           int64
	modified, last time.Time
}

// look returns when each of the files last grew, from since on.
func (g *growth) look(files []string, since, now time.Time) (last []time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.files == nil {
		g.files, g.looked = map[string]fileSize{}, since
	}
	for _, file := range files {
		seen := g.files[file]
		if info, err := os.Stat(file); err == nil && (info.Size() != seen.size || !info.ModTime().Equal(seen.modified)) {
			// In terms of now, whose difference to later looks does not change with the clock.
			at := now.Add(-min(max(now.Sub(info.ModTime()), 0), now.Sub(g.looked)))
			seen = fileSize{info.Size(), info.ModTime(), at}
			g.files[file] = seen
		}
		if seen.last.Before(since) {
			seen.last = since
		}
		last = append(last, seen.last)
	}
	g.looked = now
	return last
}

// quietTime returns how long no log of the node's ranks has grown, nor the metrics, and the same for each rank's own log.
//
// Nothing else counts as progress. A rank that waits in NCCL uses a whole processor, so processor time is none; what a rank
// uses and where it is (Server.stacks) only distinguishes a rank that works in silence from one that waits.
func (j *job) quietTime(now time.Time) (least time.Duration, ofRank []time.Duration) {
	files := []string{j.dir.LauncherLog(j.status.Node), j.dir.Metrics()} // neither name changes
	for _, rank := range j.ranks {
		files = append(files, j.dir.RankLog(rank))
	}
	for _, at := range j.output.look(files, j.status.Started, now) {
		ofRank = append(ofRank, max(now.Sub(at), 0))
	}
	return slices.Min(ofRank), ofRank[2:]
}

// addQuiet adds to the status for how long the job and each live rank have been quiet.
func (j *job) addQuiet(status *agent.JobStatus) {
	var ofRank []time.Duration
	status.Quiet, ofRank = j.quietTime(time.Now())
	status.Ranks = slices.Clone(status.Ranks)
	for i := range status.Ranks {
		if r := &status.Ranks[i]; r.Ended.IsZero() && r.LocalRank < len(ofRank) {
			r.Quiet = ofRank[r.LocalRank]
		}
	}
}
