// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"slices"
	"strings"
	"sync"

	mldevenv "github.com/ml-dev-env/ml-dev-env"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// The reasons of findings that no other part has. The table of docs/reference/findings.md has their meanings.
const (
	NotReadable       fail.Reason = "NotReadable"
	PodsStarting      fail.Reason = "PodsStarting"
	HolderGone        fail.Reason = "HolderGone"
	BeingDeleted      fail.Reason = "BeingDeleted"
	AttachmentMissing fail.Reason = "AttachmentMissing"
	AgentStuck        fail.Reason = "AgentStuck"
	JobMissing        fail.Reason = "JobMissing"
	RankEnded         fail.Reason = "RankEnded"
	NoProgress        fail.Reason = "NoProgress"
	TrafficBarred     fail.Reason = "TrafficBarred"
	GPUFaulty         fail.Reason = "GPUFaulty"
	GPUThrottled      fail.Reason = "GPUThrottled"
	RankSlow          fail.Reason = "RankSlow"
	GPUsDiffer        fail.Reason = "GPUsDiffer"
	GPUsIdle          fail.Reason = "GPUsIdle"
	CrossNIC          fail.Reason = "CrossNIC"
	SettingsStale     fail.Reason = "SettingsStale"
	RDMAUnused        fail.Reason = "RDMAUnused"
	RacksInterleaved  fail.Reason = "RacksInterleaved"
	CPUThrottled      fail.Reason = "CPUThrottled"
	MemoryNearLimit   fail.Reason = "MemoryNearLimit"
	VolumeFull        fail.Reason = "VolumeFull"
	VolumeUnusable    fail.Reason = "VolumeUnusable"
)

// symptom is the usual meaning of a finding's reason.
type symptom struct {
	name fail.Reason
	flow Flow
	// level is the usual one; the code that finds it may choose another.
	level fail.Level
}

// symptoms are the rows of the table in docs/reference/findings.md. The report sorts findings of one level by their order, the most likely
// first: how certain the evidence is, and how often it was the cause on the clusters that this project comes from. Everything follows from
// the answers of the API server, the scheduler and the kubelet: first permissions, then misnamed resources, GPUs that others hold, claims,
// images. A silent node, a restarted container and an ended rank make all other ranks hang. NCCL's errors may be their consequence.
// Measurements in the nodes explain failures that nothing printed. Signs without a cause, such as silence, come last. For a slow training
// the wrong transport (two to ten times slower) comes before links, rates and clocks (tens of percent), and those before near limits.
var symptoms = sync.OnceValue(func() (all []symptom) {
	_, table, _ := strings.Cut(mldevenv.Findings, "| --- | --- | --- | --- |\n")
	for row := range strings.Lines(table) {
		if cells := strings.Split(strings.Trim(row, "| \n"), " | "); len(cells) == 4 {
			all = append(all, symptom{fail.Reason(cells[0]), Flow(cells[1]), fail.Level(cells[2])})
		}
	}
	return all
})

// likelihoodOf returns the position of a reason, 0 for the most likely one.
func likelihoodOf(name fail.Reason) int {
	all := symptoms()
	if i := slices.IndexFunc(all, func(s symptom) bool { return s.name == name }); i >= 0 {
		return i
	}
	return len(all)
}

// found adds a finding with the usual level and flow of its reason. The caller may change them until the next one is added.
func (e *examination) found(name fail.Reason, object, evidence, next string) *Finding {
	f := Finding{fail.Finding{Reason: name, Level: fail.Suspicious, Object: object, Seen: evidence, Next: next}, Hang}
	if all := symptoms(); likelihoodOf(name) < len(all) {
		s := all[likelihoodOf(name)]
		f.Level, f.Flow = s.level, s.flow
	}
	e.findings = append(e.findings, f)
	return &e.findings[len(e.findings)-1]
}
