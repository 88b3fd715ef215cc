package rdma

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// gid sets the index only where NCCL would choose another GID than the pod's: left to
// itself, since 2.21, it takes the first one of RoCE v2 with an IPv4 address
// (ncclIbGetGidIndex). There is one index for all devices, so where the devices need
// different ones nothing can be set.
func (p *planner) gid() {
	const name = "NCCL_IB_GID_INDEX"
	wanted := map[int]bool{}
	chosen := true
	var indexes []string
	for _, rail := range p.ports {
		if rail.Port.LinkLayer == InfiniBand {
			p.set(name, "", "InfiniBand has no such choice")
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
	case chosen:
		p.set(name, "", "NCCL finds the GIDs of the rails itself: %s", all)
	case len(wanted) == 1:
		p.set(name, strconv.Itoa(p.ports[0].Port.GIDIndex), "left to itself, NCCL would take a GID that is not the pod's")
	default:
		p.set(name, "", "the rails need different ones: %s", all)
		p.Findings = append(p.Findings, fail.Finding{Level: fail.Broken, Reason: GIDChoice,
			Seen: "choosing GIDs: NCCL would take some that are not the pod's, and one index for all does not fit: the rails need " + all})
	}
}

// ncclGID is the index that NCCL takes when it is not told: the first GID of RoCE v2
// with an IPv4 address, else the first with one, else 0.
func (p *Port) ncclGID() int {
	index := 0
	for i := len(p.GIDs) - 1; i >= 0; i-- {
		if p.GIDs[i].IPv4().IsValid() {
			index = p.GIDs[i].Index
		}
	}
	for i := len(p.GIDs) - 1; i >= 0; i-- {
		if p.GIDs[i].IPv4().IsValid() && p.GIDs[i].Type == RoCEv2 {
			index = p.GIDs[i].Index
		}
	}
	return index
}
