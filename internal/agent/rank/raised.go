// SPDX-License-Identifier: Apache-2.0

package rank

import (
	"cmp"
	"fmt"
	"iter"
	"path/filepath"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/pyerror"
	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
)

// late is how long before the rank an error that ended it may have ended its own process. It is a guess: torchrun stops the other ranks
// within 30 s.
const late = time.Minute

// raised returns the error that ended the rank, as the hook of its Python recorded it: the rank's own, or for a failed program the last one
// that it has logged, or that ended a process which it started. It is nil if there is none, or if the log has a better one: the error is
// about the end of another process, or an older one, which the program may have handled.
func (s *shim) raised() *agent.PythonError {
	if s.status.Exit == (agent.Exit{}) {
		return nil
	}
	printed := s.output.tracebackSeen()
	if p := s.status.Python; p == nil || pyerror.OfParent(p) { // the log shows no error of the program's own
		printed = time.Time{}
	}
	own := s.readError(filepath.Join(s.dir.Errors(s.status.Rank), fmt.Sprintf("%d.json", s.status.PID)))
	switch {
	case own != nil && !pyerror.OfParent(own):
		return own
	case s.status.Exit.Signal != "":
		return nil
	}
	var last *agent.PythonError
	for p := range s.errors("*.json") {
		if !pyerror.OfParent(p) && p.Seen.After(printed) && (last == nil || p.Seen.After(last.Seen)) {
			last = p
		}
	}
	return last
}

// isPython reports whether the rank is a Python, not a program that starts one.
func (s *shim) isPython() bool { return strings.HasPrefix(filepath.Base(s.program), "python") }

// below returns the error that ended a process which the rank had started, if the rank exited with 0 at once, else nil: after it had run on
// it may have handled the error. Python itself ends by what it does not handle.
func (s *shim) below() (last *agent.PythonError) {
	const atOnce = 5 * time.Second // a guess
	if s.status.Exit != (agent.Exit{}) || s.isPython() {
		return nil
	}
	failed := false
	for p := range s.errors("*[0-9].json") { // without those that were logged
		failed = failed || s.status.Ended.Sub(p.Seen) < atOnce
		if last == nil || pyerror.OfParent(last) && !pyerror.OfParent(p) ||
			pyerror.OfParent(last) == pyerror.OfParent(p) && p.Seen.After(last.Seen) {
			last = p
		}
	}
	if !failed {
		return nil
	}
	return last
}

// errors yields the late errors of the rank's processes, from the records that match the pattern.
func (s *shim) errors(pattern string) iter.Seq[*agent.PythonError] {
	const mostFiles = 200
	paths, _ := filepath.Glob(filepath.Join(s.dir.Errors(s.status.Rank), pattern))
	return func(yield func(*agent.PythonError) bool) {
		for _, path := range paths[:min(len(paths), mostFiles)] {
			if p := s.readError(path); p != nil && s.status.Ended.Sub(p.Seen) < late && !yield(p) {
				return
			}
		}
	}
}

// readError reads the record of an error, nil for none.
func (s *shim) readError(path string) *agent.PythonError {
	const most = 1 << 20
	var raised pyerror.Raised
	if claimfile.ReadJSON(path, most, &raised) != nil {
		return nil
	}
	p := raised.Error()
	if p == nil {
		return nil
	}
	p.Handled = strings.HasSuffix(path, "-logged.json")
	if raised.Time == 0 { // it was found when Python exited
		p.Seen = cmp.Or(s.output.tracebackSeen(), s.status.Ended)
	}
	return p
}
