// SPDX-License-Identifier: Apache-2.0

package cause

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

// HiddenNext is what lets a script fail with what it starts.
const HiddenNext = "let the script end with the exit code of what it starts: set -e and set -o pipefail at its top, or exec"

// Hidden describes a program that exited with 0 although its log ends in a failure, as in accelerate launch ... | tee LOG; "" for none.
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
			last := ""
			if p := rank.Python; p != nil && slices.ContainsFunc(rank.Tail, func(line string) bool { return strings.Contains(line, p.Type) }) {
				last = errorText(p)
			} else if n := len(rank.Tail); n > 0 && gaveUp[notFound].MatchString(rank.Tail[n-1]) {
				last = rank.Tail[n-1]
			}
			if last != "" {
				return fmt.Sprintf("the log of rank %d on node %d ends in a failure: %s", rank.Rank, rank.Node, InTree(plainly(last)))
			}
		}
	}
	return ""
}
