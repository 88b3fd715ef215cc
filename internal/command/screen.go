// SPDX-License-Identifier: Apache-2.0

package command

import (
	"io"
	"os"

	"golang.org/x/term"

	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

// screen is the only writer for terminals: it leaves out control characters, so that no text of others steers the terminal.
type screen struct{ file *os.File }

// onTerminal returns the writer for an output of a command: a screen if it is a terminal. Files and pipes get every byte.
func onTerminal(out io.Writer) io.Writer {
	if file, ok := out.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		return screen{file}
	}
	return out
}

// Write implements io.Writer.
func (s screen) Write(p []byte) (int, error) {
	if _, err := s.file.WriteString(humanize.Plain(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Raw returns the terminal of a command's output for a caller that steers it, and writes nobody else's text to it; nil if the
// output is no terminal.
func Raw(out io.Writer) *os.File {
	s, _ := out.(screen)
	return s.file
}

// Unfiltered returns the output as it is, for a program of the user's own choice.
func Unfiltered(out io.Writer) io.Writer {
	if file := Raw(out); file != nil {
		return file
	}
	return out
}
