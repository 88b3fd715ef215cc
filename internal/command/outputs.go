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
	// mostUnwritten is how many bytes may wait for the reader of an output, and mostAtOnce how many of them are one write.
	mostUnwritten = 1 << 20
	mostAtOnce    = 64 << 10
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
	stuck   bool
	streams map[*os.File]*stream
	// unreported is an error of which the command does not know.
	unreported error
}

// stream is one of the outputs.
type stream struct {
	file   *os.File
	failed error
	// lost are the lines that were not kept while its reader was stuck, and midLine is true if the last text that was kept ends within a line.
	lost    int
	midLine bool
	// json is true if the lost lines were JSON.
	json bool
}

type unwritten struct {
	to   *stream
	text []byte
	live bool
}

func newOutputs(ctx context.Context) *outputs {
	return &outputs{ended: ctx.Done(), taken: make(chan struct{}), streams: map[*os.File]*stream{}}
}

// writerFor returns the writer for an output of the program. It is a screen for a terminal; other files get every byte. What is not a file
// has no reader that may be stuck.
func (o *outputs) writerFor(out io.Writer) io.Writer {
	file, ok := out.(*os.File)
	if !ok {
		return out
	}
	if o.streams[file] == nil {
		o.streams[file] = &stream{file: file}
	}
	w := output{outputs: o, stream: o.streams[file]}
	if term.IsTerminal(int(file.Fd())) {
		return screen{w}
	}
	return w
}

// output is a writer for one of the outputs. It waits until there is room, or until the program is told to end.
type output struct {
	*outputs
	*stream
	// live is true for a writer that waits no longer than readerTime.
	live bool
	// lines is true for a writer of JSON, an object in each line.
	lines bool
}

// DroppingWriter returns a writer for what is also kept elsewhere, or is of no use later: if its reader is stuck, it drops lines, counts
// them, and never keeps the program from going on.
func DroppingWriter(out io.Writer) io.Writer {
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

// liveJSON is DroppingWriter for lines of JSON.
func liveJSON(out io.Writer) io.Writer {
	if w, ok := out.(output); ok {
		w.live, w.lines = true, true
		return w
	}
	return DroppingWriter(out)
}

// Write implements io.Writer. Its errors are those of earlier writes.
func (w output) Write(text []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.size > 0 && w.size+len(text) > mostUnwritten {
		if w.live && w.stuck {
			w.lost += bytes.Count(text, []byte("\n"))
			w.json = w.lines
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
	if w.failed != nil {
		return 0, w.failed
	}
	w.note(w.stream)
	w.add(unwritten{w.stream, bytes.Clone(text), w.live})
	return len(text), nil
}

// await returns false if the readers take nothing for too long.
func (w output) await(taken <-chan struct{}) bool {
	if !w.live {
		return w.reads(taken)
	}
	select {
	case <-taken:
		return true
	case <-time.After(readerTime):
		return false
	}
}

// note says how many lines of a stream were not kept.
func (o *outputs) note(to *stream) {
	if to.lost == 0 {
		return
	}
	text := fmt.Sprintf("... %s not shown: nothing read this output", humanize.Count(to.lost, "line"))
	if to.json {
		text = fmt.Sprintf(`{"level":"WARN","msg":%q}`, text)
	} else if to.midLine {
		text = "\n" + text
	}
	to.lost = 0
	o.add(unwritten{to, []byte(text + "\n"), true})
}

func (o *outputs) add(text unwritten) {
	if len(text.text) == 0 {
		return
	}
	o.waiting = append(o.waiting, text)
	o.size += len(text.text)
	text.to.midLine = text.text[len(text.text)-1] != '\n'
	if !o.writing {
		o.writing = true
		go o.write()
	}
}

// write writes until nothing waits.
func (o *outputs) write() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.waiting) > 0 {
		next := &o.waiting[0]
		to, live, part := next.to, next.live, next.text[:min(len(next.text), mostAtOnce)]
		o.mu.Unlock()
		_, err := to.file.Write(part)
		o.mu.Lock()
		if err != nil && to.failed == nil {
			to.failed = err
			if !live && !errors.Is(err, syscall.EPIPE) {
				o.unreported = err
			}
		}
		next = &o.waiting[0] // it may have moved
		if next.text = next.text[len(part):]; len(next.text) == 0 {
			o.waiting = o.waiting[1:]
		}
		o.size -= len(part)
		o.stuck = false
		close(o.taken)
		o.taken = make(chan struct{})
	}
	o.writing = false
}

// flush waits until all is written, and no longer than readerTime for a reader once the program was told to end. It returns an error of an
// output that drops no lines. A reader that left is not an error.
func (o *outputs) flush() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, each := range o.streams {
		o.note(each)
	}
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

// reads waits until a reader has taken something, and no longer than readerTime once the program was told to end.
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
