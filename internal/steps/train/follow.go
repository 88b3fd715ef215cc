package train

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"sync"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// merged is the training's output for people: whole lines of all ranks, each
// with where it comes from, each rank's in its order.
type merged struct {
	mu  sync.Mutex
	out io.Writer
	log *slog.Logger // instead of out, for machines
}

// writer is one source of lines.
func (m *merged) writer(node int, rank string) *lines {
	return &lines{to: m, prefix: fmt.Appendf(nil, "[%d %s] ", node, rank), node: node, rank: rank}
}

// lines cuts a stream into lines.
type lines struct {
	to      *merged
	prefix  []byte
	node    int
	rank    string
	partial []byte
	buffer  []byte
}

// maxLine bounds what is kept of a line that does not end.
const maxLine = 64 << 10

func (l *lines) Write(p []byte) (int, error) {
	l.buffer = l.buffer[:0]
	for rest := p; len(rest) > 0; {
		advance, line, _ := bufio.ScanLines(rest, false)
		if advance == 0 {
			l.partial = append(l.partial, rest...)
			if len(l.partial) >= maxLine {
				l.line(nil)
			}
			break
		}
		l.line(line)
		rest = rest[advance:]
	}
	if len(l.buffer) == 0 {
		return len(p), nil
	}
	l.to.mu.Lock()
	defer l.to.mu.Unlock()
	_, err := l.to.out.Write(l.buffer)
	return len(p), err
}

// line ends the current line with its last piece.
func (l *lines) line(last []byte) {
	if l.to.log != nil {
		text := string(l.partial) + string(last)
		l.to.log.Info(text, slog.Int("node", l.node), slog.String("rank", l.rank))
	} else {
		l.buffer = append(l.buffer, l.prefix...)
		l.buffer = append(l.buffer, l.partial...)
		l.buffer = append(l.buffer, last...)
		l.buffer = append(l.buffer, '\n')
	}
	l.partial = l.partial[:0]
}

// Close writes a last line that has no end.
func (l *lines) Close() error {
	if len(l.partial) == 0 {
		return nil
	}
	_, err := l.Write([]byte{'\n'})
	return err
}

// rankName is a rank as the log shows it; of launcher command a node has one
// process, which is no rank.
func rankName(launcher agent.Launcher, rank int) string {
	if launcher == agent.Command {
		return "-"
	}
	return strconv.Itoa(rank)
}

// gone is the error of a node that will not come back.
func gone(client *agent.Client, why string, args ...any) error {
	return fail.Advise(fail.Becausef(fail.NodeLost, "training: node %d is gone: %s", client.Node(), fmt.Sprintf(why, args...)),
		"look at the node's events: oc get events --sort-by=.lastTimestamp; then start the run again, with the last checkpoint if there is one")
}
