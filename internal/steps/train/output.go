// SPDX-License-Identifier: Apache-2.0

package train

import (
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"sync"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/lines"
)

// output is the training's output as text: whole lines of all ranks, each line with its node and rank and without what
// steers a terminal. The record on the claim has every byte.
type output struct {
	mu  sync.Mutex
	out io.Writer
	log *slog.Logger // instead of out, for a log in JSON
}

func (o *output) writer(node int, rank string) *rankOutput {
	l := &rankOutput{to: o}
	prefix := fmt.Sprintf("[%d %s] ", node, rank)
	l.split.Each = func(line []byte) {
		if o.log != nil {
			o.log.Info(strings.TrimRight(string(line), "\r\n"), "event", "output", slog.Int("node", node), slog.String("rank", rank))
			return
		}
		l.buffer = append(l.buffer, prefix+humanize.PlainLine(string(line))+"\n"...)
	}
	return l
}

type rankOutput struct {
	to     *output
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
	_, err := l.to.out.Write(l.buffer)
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
