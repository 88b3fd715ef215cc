// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// gdrLevels are NCCL_NET_GDR_LEVEL's levels between a GPU and a NIC, and what a cluster file may have for them: the
// numbers are NCCL's old ones. nvidia-smi's NODE is NCCL's PHB.
var gdrLevels = [...]struct{ level, words string }{{"LOC", "0 LOC NVL"}, {"PIX", "1 PIX"}, {"PXB", "2 PXB"}, {"PHB", "3 PHB"},
	{"SYS", "4 5 SYS"}}

func gdrLevel(word string) int {
	return slices.IndexFunc(gdrLevels[:], func(l struct{ level, words string }) bool {
		return slices.Contains(strings.Fields(l.words), word)
	})
}

// ncclDefaultLevel is the largest distance at which NCCL uses GPUDirect by default.
const ncclDefaultLevel = "PXB"

// gpuDirect sets how far GPUs may be from the NICs, and DMA-BUF.
func (p *planner) gpuDirect() {
	const name = "NCCL_NET_GDR_LEVEL"
	needed, expected := p.neededLevel(), gdrLevel(p.expected.GDRLevel)
	if expected > needed && needed >= 0 && p.own.NVLink != Yes {
		// By NVLink, data of every GPU reaches the NIC that is near to another one. Without, GPUs would use far NICs directly.
		p.differs("gdr_level", p.expected.GDRLevel, p.own.withoutNVLink()+", and the nearest NICs need "+gdrLevels[needed].level)
		expected = -1
	}
	switch {
	case needed < 0 && expected >= 0:
		p.fromFile(name, gdrLevels[expected].level)
	case needed < 0:
		p.setEnv(name, "", "the distances of GPUs and NICs are not known")
	case expected >= needed:
		p.Variables = append(p.Variables, Variable{Name: name, Value: gdrLevels[expected].level, Source: ClusterFile,
			Reason: fmt.Sprintf("the cluster file's %s allows %s, which GPUs and their nearest NICs need", p.expected.GDRLevel,
				gdrLevels[needed].level)})
	default:
		if expected >= 0 {
			p.differs("gdr_level", p.expected.GDRLevel, "GPUs and their nearest NICs need "+gdrLevels[needed].level)
		}
		if needed <= gdrLevel(ncclDefaultLevel) {
			p.setEnv(name, "", "GPUs and their nearest NICs need %s, NCCL's default is %s", gdrLevels[needed].level, ncclDefaultLevel)
		} else {
			p.setEnv(name, gdrLevels[needed].level, "GPUs and their nearest NICs need it; NCCL's default is %s", ncclDefaultLevel)
		}
	}
	switch {
	case len(p.own.GPUs) == 0:
		p.setEnv("NCCL_DMABUF_ENABLE", "", "no GPU was seen")
	case p.own.GPUDirect.Peermem:
		p.setEnv("NCCL_DMABUF_ENABLE", "", "nvidia_peermem is loaded: NCCL's default does")
	default:
		p.setEnv("NCCL_DMABUF_ENABLE", "1", "nvidia_peermem is not loaded: without DMA-BUF all goes through the host's memory")
	}
}

// withoutNVLink describes what is known of NVLink if no link is seen.
func (f Facts) withoutNVLink() string {
	switch {
	case f.NVLink == No:
		return "NVLink does not join the GPUs"
	case len(f.GPUs) == 1:
		return "the only GPU has no peer on NVLink"
	}
	return "nvidia-smi topo -m does not show whether NVLink joins the GPUs"
}

// neededLevel returns the widest of the distances between a rail and its nearest GPU, as an index of gdrLevels, -1 if none is known.
func (p *planner) neededLevel() int {
	needed := -1
	for _, rail := range p.ports {
		nearest := slices.MinFunc(append(slices.Collect(maps.Values(rail.Device.GPUs)), ""), Distance.Compare)
		if nearest == NODE {
			nearest = PHB
		}
		needed = max(needed, gdrLevel(string(nearest)))
	}
	return needed
}
