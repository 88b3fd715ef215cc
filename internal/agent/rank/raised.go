// SPDX-License-Identifier: Apache-2.0

package rank

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/pyerror"
	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
)

// raised returns the error that ended the rank, as the hook of its Python recorded it: the rank's own, or for a failed program the last one
// that it has logged, or that ended a process which it started. It is nil if there is none, or if the error is about the end of another
// process, whose words are in the log.
func (s *shim) raised() *agent.PythonError {
	const (
		most = 1 << 20
		// late is how long before the rank an error that ended it may have ended its own process. It is a guess: torchrun stops the other
		// ranks within 30 s.
		late = time.Minute
	)
	dir := s.dir.Errors(s.status.Rank)
	read := func(path string) *agent.PythonError {
		var raised pyerror.Raised
		if claimfile.ReadJSON(path, most, &raised) != nil {
			return nil
		}
		if p := raised.Error(); p != nil && !pyerror.OfParent(p) {
			return p
		}
		return nil
	}
	if own := read(filepath.Join(dir, fmt.Sprintf("%d.json", s.status.PID))); own != nil || s.status.Exit == (agent.Exit{}) {
		return own
	}
	var last *agent.PythonError
	paths, _ := filepath.Glob(filepath.Join(dir, "*.json"))
	for _, path := range paths {
		if p := read(path); p != nil && s.status.Ended.Sub(p.Seen) < late && (last == nil || p.Seen.After(last.Seen)) {
			last = p
		}
	}
	return last
}
