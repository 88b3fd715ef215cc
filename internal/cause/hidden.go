// SPDX-License-Identifier: Apache-2.0

package cause

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

// HiddenNext is what lets a script fail with what it starts.
const HiddenNext = "let the script end with the exit code of what it starts: set -e and set -o pipefail at its top, or exec"

// Hidden describes a program that exited with 0 although its log, or a program that it started, ends in a failure, as in
// accelerate launch ... | tee LOG; "" for none.
// Python scripts end by their own errors.
func Hidden(statuses []agent.JobStatus) string {
	for _, status := range statuses {
		if agent.IsPython(status.Spec.Script) {
			return ""
		}
		for _, rank := range status.Ranks {
			if rank.Exit != (agent.Exit{}) || rank.Ended.IsZero() {
				continue
			}
			what, last := "the log of rank %d on node %d", ""
			if p := rank.Python; p != nil && slices.ContainsFunc(rank.Tail, func(line string) bool { return strings.Contains(line, p.Type) }) {
				last = errorText(p)
			} else if i := slices.IndexFunc(lastLines(rank), gaveUp[notFound].MatchString); i >= 0 {
				last = lastLines(rank)[i]
			} else if rank.Below != nil {
				what, last = "a program that rank %d on node %d started", errorText(rank.Below)
			}
			if last != "" {
				return fmt.Sprintf(what+" ends in a failure: %s", rank.Rank, rank.Node, InTree(plainly(last)))
			}
		}
	}
	return ""
}

// lastLines returns the last line of a rank's log, or the last few of a rank that ended too soon to have trained.
func lastLines(rank agent.RankStatus) []string {
	const soon, few = 10 * time.Second, 5 // guesses
	count := 1
	if rank.Ended.Sub(rank.Started) < soon {
		count = few
	}
	return rank.Tail[max(0, len(rank.Tail)-count):]
}
