// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

// display prints the events of a run. On a terminal its last line is rewritten to show what is in progress.
type display struct {
	out io.Writer
	// width of the terminal, nil without one.
	width  func() int
	color  bool
	now    func() time.Time
	phases int

	mu sync.Mutex
	// question replaces the last line until resume.
	question string
	// takeKeys makes the terminal pass on each key at once until the returned function is called; nil without a terminal.
	takeKeys func() (release func())
	// release is not nil while a question is open. A terminal whose keys are taken does not return at the end of a line by itself.
	release func()
	over    bool
	// rewrites is true while the last line is on the terminal.
	rewrites bool
	began    map[string]time.Time
	order    []string
	ended    int
	// training is the progress of a training that has been restarted or is silent, "" for any other.
	training string
}

// newDisplay uses the last line and colors only on a terminal.
func newDisplay(out io.Writer, phases int) *display {
	d := &display{out: out, now: time.Now, phases: phases, began: map[string]time.Time{}}
	if terminal := command.RawTerminal(out); terminal != nil {
		d.out = terminal
		d.width = func() int {
			if width, _ := terminal.Size(); width >= 20 {
				return width
			}
			return 80
		}
		d.color = os.Getenv("NO_COLOR") == ""
	}
	return d
}

// outlive returns an output that may lose its reader, as in mlenv run ... | head -3, without an end of this program, which the run
// may need. gone is called then.
func outlive(out io.Writer, gone func()) io.Writer {
	if out = command.DroppingWriter(out); command.RawTerminal(out) != nil {
		return out
	}
	// If the signal has a receiver, a broken pipe is an error of a write, and does not end the program.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	return &piped{to: out, gone: gone}
}

// piped drops what comes after the first error.
type piped struct {
	to   io.Writer
	gone func()
	lost atomic.Bool
}

func (p *piped) Write(text []byte) (int, error) {
	if p.lost.Load() {
		return len(text), nil
	}
	n, err := p.to.Write(text)
	if err != nil && p.lost.CompareAndSwap(false, true) {
		p.gone()
	}
	return n, err
}

func (d *display) observe(e launch.Event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch e.Kind {
	case launch.TaskStarted:
		if d.began[e.Task].IsZero() {
			d.order = append(d.order, e.Task)
		}
		d.began[e.Task] = e.Time
		if e.Retry > 0 {
			d.writeHead(fmt.Sprintf("%s started again, attempt %d", e.Task, e.Retry+1))
		}
		d.status()
	case launch.TaskWaiting:
		d.writeLine(fmt.Sprintf("== %s waits: %s", e.Task, humanize.OneLine(e.Text, 500)))
		if e.Next != "" {
			d.writeLine(command.ForTerminal("   next: " + humanize.OneLine(e.Next, 300)))
		}
	case launch.LogLost:
		d.writeLine(fmt.Sprintf("== the rest of the log of %s cannot be read: %s", e.Task, humanize.PlainLine(e.Text)))
	case launch.TaskEnded:
		if e.Task == trainTask {
			d.training = ""
		}
		d.ended++
		d.order = slices.DeleteFunc(d.order, func(task string) bool { return task == e.Task })
		d.writeHead(endOf(e.Ended))
	case launch.Line:
		d.writeLine("[" + e.Task + "] " + humanize.PlainLine(e.Text))
	}
}

func endOf(t *run.TaskRun) string {
	took := ""
	if !t.Started.IsZero() && !t.Ended.IsZero() {
		took = " after " + humanize.Duration(t.Ended.Sub(t.Started))
	}
	if t.Status == run.Succeeded {
		return t.Task + " done" + took
	}
	return fmt.Sprintf("%s failed%s: %s", t.Task, took, humanize.OneLine(string(t.Reason), 100))
}

func (d *display) print(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.writeLine(command.ForTerminal(fmt.Sprintf(format, args...)))
}

// askQuestion prints an explanation, and the question as the last line until resume. Other lines come above the question.
func (d *display) askQuestion(explanation, question string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.question = ""
	d.writeLine(explanation)
	d.clear()
	d.question = question
	if d.takeKeys != nil && d.release == nil {
		d.release = d.takeKeys()
	}
	d.status()
}

func (d *display) resume() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closeQuestion()
	d.status()
}

func (d *display) closeQuestion() {
	d.clear()
	d.question = ""
	if d.release != nil {
		d.release()
		d.release = nil
	}
}

func (d *display) tick() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.status()
}

func (d *display) trains() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Contains(d.order, trainTask)
}

func (d *display) showProgress(p progress) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.training = ""; !slices.Contains(d.order, trainTask) {
		return
	}
	if attempt := p.attempt(); attempt != "" {
		d.training = ", attempt " + attempt
	}
	if silence := p.silence(); silence != "" {
		d.training += "; silent: " + silence
	}
	d.status()
}

func (d *display) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closeQuestion()
	d.over = true
}

// writeHead writes the line of an event.
func (d *display) writeHead(text string) {
	if text = "== " + humanize.PlainLine(text); d.color {
		text = "\x1b[1m" + text + "\x1b[0m"
	}
	d.write(text + "\n")
}

func (d *display) writeLine(line string) { d.write(humanize.Plain(line) + "\n") }

func (d *display) write(line string) {
	d.clear()
	if d.width != nil { // the terminal may have released or taken the keys when it gets the line
		line = strings.ReplaceAll(line, "\n", "\r\n")
	}
	fmt.Fprint(d.out, line)
	d.status()
}

func (d *display) clear() {
	if d.rewrites {
		fmt.Fprint(d.out, "\r\x1b[K")
		d.rewrites = false
	}
}

func (d *display) status() {
	switch {
	case d.over, d.width == nil && d.question == "":
		return
	case d.question != "":
		if !d.rewrites { // rewriting it would erase what is being typed
			fmt.Fprint(d.out, d.question)
			d.rewrites = true
		}
		return
	case len(d.order) == 0:
		return
	}
	current := d.order[len(d.order)-1]
	text := fmt.Sprintf("%d of %d done; %s for %s", d.ended, d.phases, strings.Join(d.order, " and "),
		humanize.Duration(d.now().Sub(d.began[current]))) + d.training
	d.clear()
	fmt.Fprint(d.out, humanize.OneLine(text, d.width()-4))
	d.rewrites = true
}
