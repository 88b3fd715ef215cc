// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"bytes"
	"io"

	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/lines"
)

// plainLog writes a log to a terminal without the control characters that a training may have printed. It writes whole
// lines, and each state of a line that is rewritten, as progress bars are.
func plainLog(to io.Writer) *lines.Splitter {
	return &lines.Splitter{Ends: "\r\n", Each: func(line []byte) {
		text := bytes.TrimRight(line, "\r\n")
		_, _ = to.Write(append([]byte(humanize.Plain(string(text))), line[len(text):]...)) // the terminal may be gone
	}}
}
