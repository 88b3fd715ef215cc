// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

const (
	// mostUnwritten is how many bytes may wait for the reader of an output.
	mostUnwritten = 1 << 20
	// readerTime is how long a reader may take nothing before a program that has more to do goes on without it.
	readerTime = time.Second
)

// outputs owns the standard output and the standard error: one goroutine writes what waits for them, in its order. So a paused terminal,
// less or tee stops no decision of this program.
type outputs struct {
	// ended is closed when the program is told to end.
	ended <-chan struct{}

	mu      sync.Mutex
	waiting []unwritten
	size    int
	// writing is true while the goroutine runs.
	writing bool
	// taken is closed when a reader has taken something, and replaced.
	taken chan struct{}
	// stuck is true from when a reader took nothing for readerTime until it takes something.
	stuck bool
	// lost are the lines that were not kept meanwhile, and midLine is true if the last text that was kept ends within a line.
	lost    int
	midLine bool
	failed  map[*os.File]error
	// unreported is an error of which the command does not know.
	unreported error
}

type unwritten struct {
	by   output
	text []byte
}

func newOutputs(ctx context.Context) *outputs {
	return &outputs{ended: ctx.Done(), taken: make(chan struct{}), failed: map[*os.File]error{}}
}

// of returns the writer for an output of the program. It is a screen for a terminal; other files get every byte. What is not a file has no
// reader that may be stuck.
func (o *outputs) of(out io.Writer) io.Writer {
	file, ok := out.(*os.File)
	if !ok {
		return out
	}
	w := output{o, file, false}
	if term.IsTerminal(int(file.Fd())) {
		return screen{w}
	}
	return w
}

// output is a writer for one of the outputs. It waits until there is room, or until the program is told to end.
type output struct {
	*outputs
	file *os.File
	// live is true for a writer that waits no longer than readerTime.
	live bool
}

// Live returns a writer for what is also kept elsewhere, or is of no use later: if its reader is stuck, it drops lines, counts them, and
// never keeps the program from going on.
func Live(out io.Writer) io.Writer {
	switch w := out.(type) {
	case output:
		w.live = true
		return w
	case screen:
		w.live = true
		return w
	}
	return out
}

// Write implements io.Writer. Its errors are those of earlier writes.
func (w output) Write(text []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.size > 0 && w.size+len(text) > mostUnwritten {
		if w.live && w.stuck {
			w.lost += bytes.Count(text, []byte("\n"))
			return len(text), nil
		}
		taken := w.taken
		w.mu.Unlock()
		hasRoom := w.await(taken)
		w.mu.Lock()
		switch {
		case hasRoom:
		case w.live:
			w.stuck = w.taken == taken
		default:
			return 0, context.Canceled
		}
	}
	if err := w.failed[w.file]; err != nil {
		w.unreported = nil
		return 0, err
	}
	if w.lost > 0 {
		w.add(w.missing())
	}
	w.add(bytes.Clone(text))
	return len(text), nil
}

// await returns false if the readers take nothing for too long.
func (w output) await(taken <-chan struct{}) bool {
	ended, late := w.ended, (<-chan time.Time)(nil)
	if w.live {
		ended, late = nil, time.After(readerTime)
	}
	select {
	case <-taken:
		return true
	case <-ended:
	case <-late:
	}
	return false
}

// missing says how many lines were not kept.
func (w output) missing() []byte {
	text := fmt.Sprintf("... %s not shown: nothing read this output\n", humanize.Count(w.lost, "line"))
	if w.midLine {
		text = "\n" + text
	}
	w.lost = 0
	return []byte(text)
}

func (w output) add(text []byte) {
	if len(text) == 0 {
		return
	}
	w.waiting = append(w.waiting, unwritten{w, text})
	w.size += len(text)
	w.midLine = text[len(text)-1] != '\n'
	if !w.writing {
		w.writing = true
		go w.write()
	}
}

// write writes until nothing waits.
func (o *outputs) write() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.waiting) > 0 {
		next := o.waiting[0]
		o.mu.Unlock()
		_, err := next.by.file.Write(next.text)
		o.mu.Lock()
		if err != nil && o.failed[next.by.file] == nil {
			o.failed[next.by.file] = err
			if !next.by.live && !errors.Is(err, syscall.EPIPE) {
				o.unreported = err
			}
		}
		o.waiting = o.waiting[1:]
		o.size -= len(next.text)
		o.stuck = false
		close(o.taken)
		o.taken = make(chan struct{})
	}
	o.writing = false
}

// flush waits until all is written, and no longer than readerTime for a reader once the program was told to end. It returns an error that
// no Write has returned. A reader that left is not an error.
func (o *outputs) flush() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.waiting) > 0 {
		taken := o.taken
		o.mu.Unlock()
		reads := o.reads(taken)
		o.mu.Lock()
		if !reads {
			break
		}
	}
	err := o.unreported
	o.unreported = nil
	if err != nil {
		err = fmt.Errorf("writing the output: %w", err)
	}
	return err
}

func (o *outputs) reads(taken <-chan struct{}) bool {
	select {
	case <-taken:
		return true
	case <-o.ended:
	}
	select {
	case <-taken:
		return true
	case <-time.After(readerTime):
		return false
	}
}
