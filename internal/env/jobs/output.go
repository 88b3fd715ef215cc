// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/lines"
)

// Output is what the ranks of a job print as text: whole lines of all ranks, each line with its node and rank and without what
// steers a terminal. The record on the claim has every byte.
type Output struct {
	// Out gets the lines; without it each line is a record of Log.
	Out io.Writer
	Log *slog.Logger
	mu  sync.Mutex
}

// MostLogs is how many ranks may show their output. Nobody reads more, and Kubernetes keeps only the end of a large log.
const MostLogs = 64

// Shown returns the ranks of a node whose output is shown: all, or rank 0 alone if there are more than MostLogs.
func Shown(spec agent.JobSpec, node int) []int {
	ranks := spec.Ranks(node)
	if spec.Nodes*spec.RanksOfNode() > MostLogs {
		return slices.DeleteFunc(ranks, func(rank int) bool { return rank != 0 })
	}
	return ranks
}

// Follow shows the output of the ranks, and reconnects until the context of their node ends. of has the contexts in the members' order.
func (o *Output) Follow(j Job, spec agent.JobSpec, of []context.Context, group *sync.WaitGroup) {
	for place, client := range j.Members {
		for _, rank := range Shown(spec, client.Node()) {
			group.Go(func() {
				lines := o.writer(client.Node(), rankName(spec.Launcher, rank))
				_ = nodes.FollowLog(of[place], client, j.ID, agent.RankLog+strconv.Itoa(rank), lines, nodes.RetryUntilDone(of[place]))
				_ = lines.Close()
			})
		}
	}
}

func (o *Output) writer(node int, rank string) *rankOutput {
	l := &rankOutput{to: o}
	prefix := fmt.Sprintf("[%d %s] ", node, rank)
	l.split.Each = func(line []byte) {
		if o.Out == nil {
			o.Log.Info(strings.TrimRight(string(line), "\r\n"), "event", "output", slog.Int("node", node), slog.String("rank", rank))
			return
		}
		l.buffer = append(l.buffer, prefix+humanize.PlainLine(string(line))+"\n"...)
	}
	return l
}

type rankOutput struct {
	to     *Output
	split  lines.Splitter
	buffer []byte
}

func (l *rankOutput) Write(p []byte) (int, error) {
	_, _ = l.split.Write(p) // it does not fail
	return len(p), l.flush()
}

// flush writes the lines of the buffer at once, so that no other rank's line gets between the parts of one.
func (l *rankOutput) flush() error {
	if len(l.buffer) == 0 {
		return nil
	}
	l.to.mu.Lock()
	defer l.to.mu.Unlock()
	_, err := l.to.Out.Write(l.buffer)
	l.buffer = l.buffer[:0]
	return err
}

// Close writes a last line without a newline.
func (l *rankOutput) Close() error {
	l.split.Flush()
	return l.flush()
}

// rankName returns the rank in the output. With launcher command a node has one process, which is not a rank.
func rankName(launcher agent.Launcher, rank int) string {
	if launcher == agent.Command {
		return "-"
	}
	return strconv.Itoa(rank)
}
