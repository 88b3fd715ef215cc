// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"cmp"
	"os"
	"slices"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

// addUnhooked adds to the status which live ranks have a Python with torch that package pylib does not reach. It copies the ranks.
func addUnhooked(status *agent.JobStatus) {
	if status.Spec.NoHook {
		return
	}
	all := processTable()
	status.Ranks = slices.Clone(status.Ranks)
	for i := range status.Ranks {
		if rank := &status.Ranks[i]; rank.Ended.IsZero() && rank.PID != 0 {
			rank.Unhooked = unhookedOf(all, rank.PID)
		}
	}
}

// unhookedOf returns the PYTHONPATH, or "nothing", of a process of the rank that has torch and lacks the folder that its shim's begins
// with; "" if there is none. Scripts set PYTHONPATH=. for what they start, as they need it elsewhere.
func unhookedOf(all []process, rank int) string {
	at := slices.IndexFunc(all, func(p process) bool { return p.pid == rank })
	if at < 0 {
		return ""
	}
	shim := all[at].parent
	ours, _, _ := strings.Cut(pythonPath(shim), ":")
	for pid := range descendants(all, shim) {
		theirs := pythonPath(pid)
		if ours == "" || slices.Contains(strings.Split(theirs, ":"), ours) {
			continue
		}
		if mapped, _ := os.ReadFile(procPath(pid, "maps")); bytes.Contains(mapped, []byte("/libtorch_python.")) {
			return cmp.Or(theirs, "nothing")
		}
	}
	return ""
}

// pythonPath returns the PYTHONPATH with which a process began.
func pythonPath(pid int) string {
	_, after, _ := bytes.Cut(environOf(pid), []byte("\x00PYTHONPATH="))
	value, _, _ := bytes.Cut(after, []byte{0})
	return string(value)
}
