package doctor

import (
	"slices"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/nccl"
)

// Name is what a finding is called. The list is closed: docs/doctor.md has a row for each.
// Where another part of the product has a word for it, that word is used: a reason of
// internal/fail, a finding of internal/rdma/nccl, a kind of internal/rdma.
type Name string

// The names that no other part has.
const (
	// NotReadable: something could not be read.
	NotReadable Name = "NotReadable"
	// PodsStarting: pods are on their way.
	PodsStarting Name = "PodsStarting"
	// HolderGone: whose run the environment was made for does not need it any more.
	HolderGone Name = "HolderGone"
	// BeingDeleted: the environment is being taken down.
	BeingDeleted Name = "BeingDeleted"
	// AttachmentMissing: a pod has not the networks that it asks for.
	AttachmentMissing Name = "AttachmentMissing"
	// AgentStuck: an agent answers, but not when it must look at GPUs or volumes.
	AgentStuck Name = "AgentStuck"
	// JobMissing: a node knows nothing of a job that runs on others.
	JobMissing Name = "JobMissing"
	// RankEnded: a rank has ended well while others run.
	RankEnded Name = "RankEnded"
	// NoProgress: nothing has been printed for long.
	NoProgress Name = "NoProgress"
	// TrafficBarred: network policies do not let the nodes talk to each other.
	TrafficBarred Name = "TrafficBarred"
	// GPUFaulty: a GPU has a fault.
	GPUFaulty Name = "GPUFaulty"
	// GPUThrottled: a GPU is held back by heat, power or its board.
	GPUThrottled Name = "GPUThrottled"
	// RankSlow: a rank takes longer for its own part of a step than the others.
	RankSlow Name = "RankSlow"
	// GPUsDiffer: nodes have GPUs of different models or drivers.
	GPUsDiffer Name = "GPUsDiffer"
	// GPUsIdle: GPUs have little to do while a job runs.
	GPUsIdle Name = "GPUsIdle"
	// CrossNIC: NCCL may send from one rail to another that it cannot reach.
	CrossNIC Name = "CrossNIC"
	// SettingsStale: NCCL's settings do not follow from the devices that there are.
	SettingsStale Name = "SettingsStale"
	// RDMAUnused: there are rails, and the environment is of mode tcp.
	RDMAUnused Name = "RDMAUnused"
	// RacksInterleaved: neighbours in the order of ranks are in different racks.
	RacksInterleaved Name = "RacksInterleaved"
	// CPUThrottled: the container's limit of processor time holds it back.
	CPUThrottled Name = "CPUThrottled"
	// MemoryNearLimit: a container has nearly all the memory that it may have.
	MemoryNearLimit Name = "MemoryNearLimit"
	// VolumeFull: a claim's volume has hardly any room.
	VolumeFull Name = "VolumeFull"
	// VolumeUnusable: a claim's volume cannot be written or read.
	VolumeUnusable Name = "VolumeUnusable"
)

// symptom is what is known of a name.
type symptom struct {
	name Name
	flow Flow
	// severity is the usual one; what finds it may know better.
	severity Severity
}

// symptoms are all names by their likelihood. Of findings of one severity, the one that stands
// higher here is told first. A name's place is how certain its evidence is, times how often it
// was the cause on the clusters that this project comes from:
//
//  1. What the API server, the scheduler and the kubelet say of the pods is certain, and all
//     else follows from it. Among these, permissions (IPC_LOCK, SCCs) cost most days there, then
//     resources that attachments ask for by another name, GPUs that others hold, claims of a
//     class that makes no volumes, and then images.
//  2. A node that does not answer, a container that was restarted and a rank that ended are
//     certain as well, and the hanging of all other ranks follows from each.
//  3. What NCCL itself has printed as an error is certain, though it may be the consequence
//     of 2. Memory that cannot be locked, the IOMMU, interfaces that are not in the pod and
//     unset GIDs were the ones that happened; those nobody has met yet come after them.
//  4. What was measured in the nodes (ports, rails, addresses, names, GPUs) explains a
//     failure that nothing printed.
//  5. What says only that something is wrong, as silence does, comes behind all causes.
//
// For a slow training the same holds: transport that is not what was wanted (two to ten times
// slower) before what costs some tenths (links, rates, distances, throttling), and that
// before limits that are near.
func symptoms() []symptom {
	var all []symptom
	add := func(flow Flow, severity Severity, names ...Name) {
		for _, name := range names {
			all = append(all, symptom{name, flow, severity})
		}
	}
	add(Start, Broken, of(fail.EnvironmentMissing)...)
	add(Start, Broken, BeingDeleted)
	add(Start, Broken, of(fail.SecurityRefused, fail.GPUsUnavailable, fail.NodesUnavailable, fail.NodeTainted, fail.QuotaExceeded, fail.ClaimUnbound,
		fail.ImageUnavailable, fail.ContainerFailed, fail.OutOfMemory, fail.GPUMissing, fail.InvalidInput, fail.PermissionDenied, fail.PodsNotReady)...)
	add(Start, Broken, AttachmentMissing)

	add(Hang, Broken, of(fail.RankFailed, fail.ContainerRestarted, fail.AgentUnreachable, fail.AgentVersion)...)
	add(Hang, Broken, AgentStuck, JobMissing, GPUFaulty)
	add(Hang, Broken, of(nccl.MemoryLockLimit, nccl.DMARefused, nccl.PeerDMARefused, nccl.NoSocketInterface, nccl.GIDUnusable, nccl.NameUnresolved,
		nccl.RailsCrossed, nccl.RailUnreachable, nccl.RetryExceeded, nccl.PortDown, nccl.DeviceFatal, nccl.GPUMemoryRefused)...)
	add(Hang, Broken, of(nccl.GIDChanged, nccl.LinkTypesMixed, nccl.DevicesMismatched, nccl.DeviceUnavailable, nccl.NetworkMissing, nccl.VerbsFailed,
		nccl.SharedMemoryFull, nccl.VersionMismatch, nccl.DuplicateGPU, nccl.CollectiveMismatch, nccl.CUDAFailed, nccl.TooManyFiles,
		nccl.PeerUnreachable, nccl.ConnectionRefused, nccl.ForeignConnection, nccl.ReceiverNotReady, nccl.TransferFailed)...)
	add(Hang, Broken, of(fail.NameResolution, fail.StorageNotShared)...)
	add(Hang, Broken, of(rdma.MemoryLimited, rdma.NoDevice, rdma.NoRail, rdma.NoCommonRail, rdma.AddressTwice)...)
	add(Hang, Broken, VolumeUnusable)
	add(Hang, Suspicious, TrafficBarred)
	add(Hang, Suspicious, of(nccl.MTUMismatch, nccl.ConnectionRetried, nccl.GPUPeerAccessOff)...)
	add(Hang, Suspicious, of(rdma.RailMissing, rdma.RailDiffers, rdma.NoGID, rdma.DeviceMissing, rdma.DeviceFileMissing, rdma.IOMMUTranslates, rdma.RailOrder,
		rdma.SubnetShared, rdma.LinkLayersMixed, rdma.GIDChoice)...)
	add(Hang, Suspicious, CrossNIC, SettingsStale, RankEnded, NoProgress)
	add(Start, Suspicious, NotReadable, HolderGone)

	add(Slow, Suspicious, of(nccl.SocketsInsteadOfRDMA, nccl.NoRDMADevice, nccl.VerbsLibraryMissing, nccl.HostMemoryInsteadOfGPU, nccl.DeviceNotUsed)...)
	add(Slow, Suspicious, of(rdma.NoGPUDirect)...)
	add(Slow, Suspicious, GPUThrottled, RankSlow)
	add(Slow, Suspicious, of(rdma.PCIeBelowMaximum, rdma.RatesMixed, rdma.PCIeBelowPort)...)
	add(Slow, Suspicious, of(nccl.SettingChanged)...)
	add(Slow, Suspicious, VolumeFull, MemoryNearLimit, CPUThrottled, GPUsDiffer, RacksInterleaved)
	add(Slow, Note, RDMAUnused, GPUsIdle)
	add(Slow, Note, of(rdma.DeviceRenamed, rdma.VariableUnreadable, rdma.InterfacesUnknown, rdma.DevicesDiffer, rdma.InterfacesDiffer, rdma.SettingDiffers)...)
	add(Start, Note, PodsStarting)
	add(Hang, Note, of(nccl.TransferFlushed, nccl.PeerGone, nccl.CollectiveTimeout, nccl.SystemError, nccl.RemoteError)...)
	return all
}

// of are the words of other parts as names.
func of[T ~string](words ...T) []Name {
	var names []Name
	for _, word := range words {
		names = append(names, Name(word))
	}
	return names
}

// likelihoodOf is the place of a name, the most likely being 0.
func likelihoodOf(name Name) int {
	all := symptoms()
	if i := slices.IndexFunc(all, func(s symptom) bool { return s.name == name }); i >= 0 {
		return i
	}
	return len(all)
}

// newFinding is a finding as its name says that it is.
func newFinding(name Name, object, evidence, next string) Finding {
	f := Finding{Name: name, Severity: Suspicious, Flow: Hang, Object: object, Evidence: evidence, Next: next}
	if all := symptoms(); likelihoodOf(name) < len(all) {
		s := all[likelihoodOf(name)]
		f.Severity, f.Flow = s.severity, s.flow
	}
	return f
}

// as gives a finding another severity than its name has mostly.
func (f Finding) as(s Severity) Finding {
	f.Severity = s
	return f
}
