// SPDX-License-Identifier: Apache-2.0

package builder

import (
	"strings"
	"sync"
)

// tailLines is the maximum number of log lines in a report.
const tailLines = 40

// tail keeps the last lines that are written to it.
type tail struct {
	mu    sync.Mutex
	lines []string
	// rest is a line that has not ended yet.
	rest string
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := strings.Split(t.rest+string(p), "\n")
	t.rest = lines[len(lines)-1]
	t.lines = append(t.lines, lines[:len(lines)-1]...)
	t.lines = t.lines[max(0, len(t.lines)-tailLines):]
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := t.lines
	if t.rest != "" {
		lines = append(append([]string{}, lines...), t.rest)
	}
	return strings.Join(lines, "\n")
}
