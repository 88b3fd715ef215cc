// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// setGIDIndex sets the index. There is one for all devices, so if the devices need different ones it cannot be set: then NCCL chooses,
// since 2.21 the first one of RoCE v2 with an IPv4 address (ncclIbGetGidIndex), and older versions 0, which is of RoCE v1.
func (p *planner) setGIDIndex() {
	const name = "NCCL_IB_GID_INDEX"
	wanted := map[int]bool{}
	chosen := true
	var indexes []string
	for _, rail := range p.ports {
		if rail.Port.LinkLayer == InfiniBand {
			p.setEnv(name, "", "InfiniBand has no such choice")
			return
		}
		wanted[rail.Port.GIDIndex] = true
		chosen = chosen && rail.Port.ncclGID() == rail.Port.GIDIndex
		indexes = append(indexes, fmt.Sprintf("%s %d", rail.Device.Name, rail.Port.GIDIndex))
	}
	all := strings.Join(indexes, ", ")
	if expected := p.expected.GIDIndex; expected != "" && (len(wanted) > 1 || strconv.Itoa(p.ports[0].Port.GIDIndex) != expected) {
		p.differs("gid_index", expected, "the GIDs of the rails are "+all)
	}
	switch {
	case len(wanted) == 1 && chosen:
		p.setEnv(name, strconv.Itoa(p.ports[0].Port.GIDIndex), "that of all rails, which versions of NCCL before 2.21 do not find themselves")
	case len(wanted) == 1:
		p.setEnv(name, strconv.Itoa(p.ports[0].Port.GIDIndex), "left to itself, NCCL would take a GID that is not the rails'")
	case chosen:
		p.setEnv(name, "", "the rails need different ones, which NCCL finds itself since 2.21: %s", all)
	default:
		p.setEnv(name, "", "the rails need different ones: %s", all)
		p.Findings = append(p.Findings, fail.Finding{Level: fail.Broken, Reason: GIDChoice,
			Seen: "choosing GIDs: NCCL would take some that are not the pod's, and one index for all does not fit: the rails need " + all})
	}
}

// ncclGID returns what NCCL itself would choose: the first GID of RoCE v2 with an IPv4 address, else the first with one, else 0.
func (p *Port) ncclGID() int {
	withIPv4 := slices.DeleteFunc(slices.Clone(p.GIDs), func(g GID) bool { return !g.IPv4().IsValid() })
	if len(withIPv4) == 0 {
		return 0
	}
	v2 := slices.IndexFunc(withIPv4, func(g GID) bool { return g.Type == RoCEv2 })
	return withIPv4[max(0, v2)].Index
}
