// SPDX-License-Identifier: Apache-2.0

package nccl

import (
	"bytes"
	"strings"
)

// maxLine is how much of a line is looked at. NCCL's own are at most 1024 bytes long (debug.cc).
const maxLine = 16 << 10

// Reader reads a log that is written to it in pieces of any size, as NCCL writes it with NCCL_DEBUG_FILE. Lines of other programs do not
// count. Its memory is bounded. Several files take a Reader each, and Merge.
type Reader struct {
	// partial is the line that has begun, long where more of it was thrown away.
	partial []byte
	long    bool
	lines   int64

	// LocksAny is true if the process may lock any amount of memory.
	LocksAny bool

	processes []*process
	// budget is how many more channels are remembered.
	budget  int
	leftOut int
}

// NewReader returns a reader of one log.
func NewReader() *Reader {
	return &Reader{budget: maxChannels}
}

// Write takes the next piece of the log. It takes all of it and never fails.
func (r *Reader) Write(piece []byte) (int, error) {
	rest := piece
	for {
		// A progress bar ends its lines by a carriage return.
		end := bytes.IndexAny(rest, "\r\n")
		if end < 0 {
			r.begin(rest)
			return len(piece), nil
		}
		r.begin(rest[:end])
		r.finish(r.long)
		rest = rest[end+1:]
	}
}

// Close takes the last line, even without a newline. It does not fail.
func (r *Reader) Close() error {
	if len(r.partial) > 0 {
		r.finish(true)
	}
	return nil
}

func (r *Reader) begin(piece []byte) {
	if room := maxLine - len(r.partial); len(piece) > room {
		piece, r.long = piece[:room], true
	}
	r.partial = append(r.partial, piece...)
}

func (r *Reader) finish(cut bool) {
	r.line(r.partial, cut)
	r.partial, r.long = r.partial[:0], false
}

func (r *Reader) line(line []byte, cut bool) {
	r.lines++
	for _, m := range messages(string(line), cut) {
		if p := r.process(m.host, m.pid); p != nil {
			p.takeMessage(m, r.lines, &r.budget)
		}
	}
}

// process returns the one of that name, nil beyond the bounds. If a line did not end before the next began, its text is before the host: if
// one of two names for a PID ends with the other, the shorter is right.
func (r *Reader) process(host string, pid int) *process {
	for _, p := range r.processes {
		switch {
		case p.PID != pid:
		case strings.HasSuffix(host, p.Host):
			return p
		case strings.HasSuffix(p.Host, host):
			p.Host = clipText(host)
			return p
		}
	}
	if len(r.processes) == maxProcesses {
		r.leftOut++
		return nil
	}
	p := newProcess(host, pid)
	r.processes = append(r.processes, p)
	return p
}

// Summary returns what the log shows up to now.
func (r *Reader) Summary() Summary {
	leftOut := r.leftOut
	var processes []Process
	for _, p := range r.processes {
		leftOut += p.leftOut
		processes = append(processes, p.snapshot(r.LocksAny))
	}
	return summarize(processes, leftOut)
}
