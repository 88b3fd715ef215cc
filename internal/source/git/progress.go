// SPDX-License-Identifier: Apache-2.0

package git

import (
	"fmt"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/lines"
)

// progressLine is a line of git's or git-lfs' progress: Receiving objects:  45% (450/1000), 1.20 MiB | 3.00 MiB/s.
var progressLine = regexp.MustCompile(`^([A-Z][A-Za-z ]+): +(\d+)% \((\d+)/(\d+)\)(?:, ([0-9.]+ [a-zA-Z]+) \| [^,]*)?(, done\.?)?$`)

// stacks matches the line after which a Go program such as git-lfs prints the stacks of its goroutines.
var stacks = regexp.MustCompile(`^(runtime stack|goroutine \d+.*):$`)

// report reads stderr of git: it logs progress and keeps the rest.
type report struct {
	log     *slog.Logger
	address address
	// onLine is called with each line that is not progress.
	onLine  func(line string)
	started time.Time
	last    time.Time
	split   lines.Splitter
	// said is the end of the output that is not progress, up to the stacks of git-lfs, if it has crashed.
	said    []byte
	crashed bool
}

func (r *report) Write(b []byte) (int, error) {
	if r.started.IsZero() {
		r.started = time.Now()
		r.last = r.started
	}
	r.split.Ends, r.split.Each = "\r\n", func(line []byte) { r.line(string(line)) }
	return r.split.Write(b)
}

// maxSaid bounds what is kept of the lines, in bytes.
const maxSaid = 4 << 10

func (r *report) line(text string) {
	text = strings.TrimSpace(text)
	if r.crashed = r.crashed || stacks.MatchString(text); r.crashed {
		return
	}
	m := progressLine.FindStringSubmatch(text)
	if m == nil {
		if text != "" && !progressLine.MatchString(strings.TrimPrefix(text, "remote: ")) {
			r.said = append(r.said, withoutQueries(text)+"\n"...)
			r.said = r.said[max(0, len(r.said)-maxSaid):]
			r.onLine(text)
		}
		return
	}
	what, percent, done, total, size := m[1], m[2], m[3], m[4], m[5]
	objects, _ := strconv.Atoi(total) // digits
	if what == "Receiving objects" && m[6] != "" {
		r.log.Info(fmt.Sprintf("Received %s, %s, in %s.", humanize.Count(objects, "object"), size, time.Since(r.started).Round(time.Millisecond)))
		return
	}
	if now := time.Now(); now.Sub(r.last) >= 5*time.Second {
		r.last = now
		sentence := fmt.Sprintf("%s of %s: %s%%, %s of %s", what, r.address, percent, done, total)
		if size != "" {
			sentence += ", " + size
		}
		r.log.Info(sentence + ".")
	}
}
