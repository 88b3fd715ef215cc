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
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

// output is the training's output as text: whole lines of all ranks, each line with its node and rank and without what
// steers a terminal. The record on the claim has every byte.
type output struct {
	mu  sync.Mutex
	out io.Writer
	log *slog.Logger // instead of out, for a log in JSON
}

func (o *output) writer(node int, rank string) *rankOutput {
	return &rankOutput{to: o, prefix: fmt.Appendf(nil, "[%d %s] ", node, rank), node: node, rank: rank}
}

type rankOutput struct {
	to      *output
	prefix  []byte
	node    int
	rank    string
	partial []byte
	buffer  []byte
}

// maxLine bounds the memory for a line that does not end.
const maxLine = 64 << 10

func (l *rankOutput) Write(p []byte) (int, error) {
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

func (l *rankOutput) line(last []byte) {
	l.partial = append(l.partial, last...)
	text := string(l.partial)
	l.partial = l.partial[:0]
	if l.to.log != nil {
		l.to.log.Info(text, slog.Int("node", l.node), slog.String("rank", l.rank))
	} else {
		l.buffer = append(l.buffer, l.prefix...)
		l.buffer = append(l.buffer, humanize.PlainLine(text)...)
		l.buffer = append(l.buffer, '\n')
	}
}

// Close writes a last line without a newline.
func (l *rankOutput) Close() error {
	if len(l.partial) == 0 {
		return nil
	}
	_, err := l.Write([]byte{'\n'})
	return err
}

// rankName is the rank in the output. With launcher command a node has one process, which is not a rank.
func rankName(launcher agent.Launcher, rank int) string {
	if launcher == agent.Command {
		return "-"
	}
	return strconv.Itoa(rank)
}

// lost is the error for a node that will not come back.
func lost(pods Pods, client *agent.Client, why string, args ...any) error {
	where := ""
	if host := pods.Host(client); host != "" {
		where = ", on Kubernetes node " + host + ","
	}
	return fail.Advise(fail.Becausef(fail.NodeLost, "training: node %d%s is gone: %s", client.Node(), where, fmt.Sprintf(why, args...)),
		"look at the node's events: oc get events --sort-by=.lastTimestamp; then start the run again, with the last checkpoint if there is one")
}
