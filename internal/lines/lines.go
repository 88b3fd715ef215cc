// SPDX-License-Identifier: Apache-2.0

// Package lines splits a stream into lines.
package lines

import (
	"bytes"
	"cmp"
)

// Most bounds the memory for a line that does not end, in bytes: a longer one comes in pieces.
const Most = 64 << 10

// Splitter calls Each for every line that is written to it, with the byte that ends it. Each must not keep the line.
type Splitter struct {
	// Ends are the bytes that end a line, "\n" if it is empty.
	Ends    string
	Each    func(line []byte)
	partial []byte
}

// Write implements io.Writer and does not fail.
func (s *Splitter) Write(p []byte) (int, error) {
	ends := cmp.Or(s.Ends, "\n")
	for rest := p; len(rest) > 0; {
		end := bytes.IndexAny(rest, ends)
		whole := end >= 0
		if !whole {
			end = len(rest) - 1
		}
		s.partial = append(s.partial, rest[:end+1]...)
		if whole || len(s.partial) >= Most {
			s.Flush()
		}
		rest = rest[end+1:]
	}
	return len(p), nil
}

// Flush passes on a line that has not ended, if there is one.
func (s *Splitter) Flush() {
	if len(s.partial) > 0 {
		s.Each(s.partial)
		s.partial = s.partial[:0]
	}
}
