// SPDX-License-Identifier: Apache-2.0

package cause

import (
	"fmt"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/nccl"
)

// UnprovenNext are the usual causes.
const UnprovenNext = "see whether the script, the image or nccl.env of the cluster file sets NCCL_DEBUG, NCCL_DEBUG_FILE, NCCL_NET or " +
	"NCCL_IB_DISABLE, and whether the ranks use NCCL: gloo and MPI have no RDMA here"

// Unproven reports that NCCL's logs do not prove RDMA, as a clause. It is "" if they do, if the transport that is wanted is not RDMA, and
// for ranks on sockets, which is another error. statuses has the status of each node.
func Unproven(statuses []agent.JobStatus, wanted nccl.Transport) string {
	if wanted != nccl.RDMAGPU && wanted != nccl.RDMAHost {
		return ""
	}
	first, nodes := "", 0
	for _, status := range statuses {
		why := "NCCL has no log"
		if status.NCCL != nil {
			why = status.NCCL.Unproven()
		}
		if why != "" && first == "" {
			first = why
		}
		if why != "" {
			nodes++
		}
	}
	switch nodes {
	case 0:
		return ""
	case len(statuses):
		return "RDMA between the nodes is not proven: " + first
	}
	return fmt.Sprintf("RDMA is not proven for %d of %d nodes: %s", nodes, len(statuses), first)
}
