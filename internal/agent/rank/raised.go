// SPDX-License-Identifier: Apache-2.0

package rank

import (
	"cmp"
	"fmt"
	"path/filepath"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/pyerror"
	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
)

// raised returns the error that ended the rank, as the hook of its Python recorded it: the rank's own, or for a failed program the last one
// that it has logged, or that ended a process which it started. It is nil if there is none, or if the log has a better one: the error is
// about the end of another process, or an older one, which the program may have handled.
func (s *shim) raised() *agent.PythonError {
	const (
		most, mostFiles = 1 << 20, 200
		// late is how long before the rank an error that ended it may have ended its own process. It is a guess: torchrun stops the other
		// ranks within 30 s.
		late = time.Minute
	)
	if s.status.Exit == (agent.Exit{}) {
		return nil
	}
	printed := s.output.tracebackSeen()
	if p := s.status.Python; p == nil || pyerror.OfParent(p) { // the log shows no error of the program's own
		printed = time.Time{}
	}
	read := func(path string) *agent.PythonError {
		var raised pyerror.Raised
		if claimfile.ReadJSON(path, most, &raised) != nil {
			return nil
		}
		p := raised.Error()
		if p == nil || pyerror.OfParent(p) {
			return nil
		}
		if raised.Time == 0 { // it was found when Python exited
			p.Seen = cmp.Or(s.output.tracebackSeen(), s.status.Ended)
		}
		return p
	}
	dir := s.dir.Errors(s.status.Rank)
	if own := read(filepath.Join(dir, fmt.Sprintf("%d.json", s.status.PID))); own != nil || s.status.Exit.Signal != "" {
		return own
	}
	var last *agent.PythonError
	paths, _ := filepath.Glob(filepath.Join(dir, "*.json"))
	for _, path := range paths[:min(len(paths), mostFiles)] {
		p := read(path)
		if p != nil && p.Seen.After(printed) && s.status.Ended.Sub(p.Seen) < late && (last == nil || p.Seen.After(last.Seen)) {
			last = p
		}
	}
	return last
}
