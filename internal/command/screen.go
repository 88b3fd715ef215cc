// SPDX-License-Identifier: Apache-2.0

package command

import (
	"io"

	"golang.org/x/term"

	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

// screen is the only writer for terminals: it leaves out control characters, so that no text of others steers the terminal.
type screen struct{ output }

// Write implements io.Writer.
func (s screen) Write(p []byte) (int, error) {
	if _, err := s.output.Write([]byte(humanize.Plain(string(p)))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Terminal is a terminal that its caller steers.
type Terminal struct{ output }

// Size returns the number of columns and lines; both are 0 if they are unknown.
func (t *Terminal) Size() (width, height int) {
	width, height, err := term.GetSize(int(t.file.Fd()))
	if err != nil {
		return 0, 0
	}
	return width, height
}

// RawTerminal returns the terminal of a command's output for a caller that steers it, and writes nobody else's text to it; nil if the
// output is not a terminal.
func RawTerminal(out io.Writer) *Terminal {
	if s, ok := out.(screen); ok {
		return &Terminal{s.output}
	}
	return nil
}

// Unfiltered returns the output as it is, for a program of the user's own choice.
func Unfiltered(out io.Writer) io.Writer {
	if terminal := RawTerminal(out); terminal != nil {
		return terminal
	}
	return out
}
