// SPDX-License-Identifier: Apache-2.0

package cause

import (
	"fmt"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

// AloneNext are the usual causes.
const AloneNext = "see in a rank's log whether torch sees no GPU, or fewer than the script wants; whether the script reads RANK, " +
	"WORLD_SIZE and MASTER_ADDR, or starts processes by itself (launcher command); or whether it uses another backend, such as MPI"

// Alone describes a training whose ranks never met, "" if they did or if that is not known. statuses has each node's status at the end.
func Alone(statuses []agent.JobStatus) string {
	for _, status := range statuses {
		if !status.Alone || len(statuses) < status.Spec.Nodes {
			return ""
		}
	}
	if len(statuses) == 0 {
		return ""
	}
	spec := statuses[0].Spec
	return fmt.Sprintf("no rank was connected to another one: the %s may each have trained alone",
		humanize.Count(spec.Nodes*spec.RanksPerNode, "rank"))
}
