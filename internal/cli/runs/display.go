package runs

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/run"
)

// progressWord is before the lines in which the train step says how far it is.
const progressWord = "progress: "

// display shows a run as it goes on: a line for what happened, and on a terminal
// a last line, written again and again, for what is going on.
type display struct {
	out io.Writer
	// width of the terminal, nil without one.
	width func() int
	color bool
	now   func() time.Time
	// phases is how many tasks there are.
	phases int

	mu sync.Mutex
	// question stands where the last line does, while it is asked.
	question string
	over     bool
	shown    bool
	began    map[string]time.Time
	order    []string
	ended    int
	progress string
}

// newDisplay looks whether out is a terminal.
func newDisplay(out io.Writer, phases int) *display {
	d := &display{out: out, now: time.Now, phases: phases, began: map[string]time.Time{}}
	if file, ok := out.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		d.width = func() int {
			width, _, err := term.GetSize(int(file.Fd()))
			if err != nil || width < 20 {
				return 80
			}
			return width
		}
		d.color = os.Getenv("NO_COLOR") == ""
	}
	return d
}

// observe is a launch.Observer.
func (d *display) observe(e launch.Event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch e.Kind {
	case launch.TaskStarted:
		if d.began[e.Task].IsZero() {
			d.order = append(d.order, e.Task)
		}
		d.began[e.Task] = e.Time
		text := e.Task + " started"
		if e.Retry > 0 {
			text = fmt.Sprintf("%s started again, for the %d. time", e.Task, e.Retry)
		}
		d.print(d.bold("== " + text))
	case launch.TaskWaiting:
		d.print(fmt.Sprintf("== %s waits: %s", e.Task, humanize.OneLine(e.Text, 300)))
	case launch.LogLost:
		d.print(fmt.Sprintf("== the log of %s cannot be read any more: %s", e.Task, e.Text))
	case launch.TaskEnded:
		d.ended++
		d.order = removed(d.order, e.Task)
		d.print(d.bold("== " + endOf(e.Ended)))
	case launch.Line:
		if progress, ok := strings.CutPrefix(e.Text, progressWord); ok && d.width != nil {
			d.progress = progress
			d.status()
			return
		}
		d.print("[" + e.Task + "] " + e.Text)
	}
}

func removed(names []string, name string) []string {
	var left []string
	for _, other := range names {
		if other != name {
			left = append(left, other)
		}
	}
	return left
}

func endOf(t *run.TaskRun) string {
	took := ""
	if !t.Started.IsZero() && !t.Ended.IsZero() {
		took = " after " + humanize.Duration(t.Ended.Sub(t.Started))
	}
	if t.Status == run.Succeeded {
		return t.Task + " done" + took
	}
	return fmt.Sprintf("%s failed%s: %s", t.Task, took, t.Reason)
}

// say prints a line of our own.
func (d *display) say(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.print(fmt.Sprintf(format, args...))
}

// ask explains a question and puts it in the place of the last line, until resume: what is
// printed meanwhile comes above it.
func (d *display) ask(explanation, question string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.question = ""
	d.print(explanation)
	d.clear()
	d.question = question
	d.status()
}

func (d *display) resume() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.clear()
	d.question = ""
	d.status()
}

// tick shows that time passes.
func (d *display) tick() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.status()
}

// end takes the last line away.
func (d *display) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.clear()
	d.over = true
}

func (d *display) print(line string) {
	d.clear()
	fmt.Fprintln(d.out, line)
	d.status()
}

func (d *display) clear() {
	if d.shown {
		fmt.Fprint(d.out, "\r\x1b[K")
		d.shown = false
	}
}

func (d *display) status() {
	switch {
	case d.over, d.width == nil && d.question == "":
		return
	case d.question != "":
		if !d.shown { // else what is being typed would go
			fmt.Fprint(d.out, d.question)
			d.shown = true
		}
		return
	case len(d.order) == 0:
		return
	}
	current := d.order[len(d.order)-1]
	text := fmt.Sprintf("%d of %d done; %s for %s", d.ended, d.phases, strings.Join(d.order, " and "), humanize.Duration(d.now().Sub(d.began[current])))
	if d.progress != "" && current == "train" {
		text += ": " + d.progress
	}
	d.clear()
	fmt.Fprint(d.out, humanize.OneLine(text, d.width()-4))
	d.shown = true
}

func (d *display) bold(text string) string {
	if !d.color {
		return text
	}
	return "\x1b[1m" + text + "\x1b[0m"
}
