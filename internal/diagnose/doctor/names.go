package doctor

import (
	"slices"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/nccl"
)

// The reasons of findings that no other part has. All reasons of findings are in docs/doctor.md.
const (
	// NotReadable: something could not be read.
	NotReadable fail.Reason = "NotReadable"
	// PodsStarting: pods are on their way.
	PodsStarting fail.Reason = "PodsStarting"
	// HolderGone: the run that the environment was created for no longer needs it.
	HolderGone fail.Reason = "HolderGone"
	// BeingDeleted: the environment is being deleted.
	BeingDeleted fail.Reason = "BeingDeleted"
	// AttachmentMissing: a pod lacks a network that it requests.
	AttachmentMissing fail.Reason = "AttachmentMissing"
	// AgentStuck: an agent answers, except to requests about GPUs or volumes.
	AgentStuck fail.Reason = "AgentStuck"
	// JobMissing: a node does not know a job that runs on others.
	JobMissing fail.Reason = "JobMissing"
	// RankEnded: a rank has exited with 0 while others run.
	RankEnded fail.Reason = "RankEnded"
	// NoProgress: no rank has printed anything for a long time.
	NoProgress fail.Reason = "NoProgress"
	// TrafficBarred: network policies block traffic between the nodes.
	TrafficBarred fail.Reason = "TrafficBarred"
	// GPUFaulty: a GPU has a fault.
	GPUFaulty fail.Reason = "GPUFaulty"
	// GPUThrottled: heat, power or its board slows a GPU down.
	GPUThrottled fail.Reason = "GPUThrottled"
	// RankSlow: a rank takes longer for its own part of a step than the others.
	RankSlow fail.Reason = "RankSlow"
	// GPUsDiffer: nodes have GPUs of different models or drivers.
	GPUsDiffer fail.Reason = "GPUsDiffer"
	// GPUsIdle: GPUs are mostly idle while a job runs.
	GPUsIdle fail.Reason = "GPUsIdle"
	// CrossNIC: NCCL may send from one rail to another that it cannot reach.
	CrossNIC fail.Reason = "CrossNIC"
	// SettingsStale: NCCL's settings do not match the current devices.
	SettingsStale fail.Reason = "SettingsStale"
	// RDMAUnused: the nodes have rails, but the environment's mode is tcp.
	RDMAUnused fail.Reason = "RDMAUnused"
	// RacksInterleaved: neighbours in the order of ranks are in different racks.
	RacksInterleaved fail.Reason = "RacksInterleaved"
	// CPUThrottled: the container's CPU limit slows it down.
	CPUThrottled fail.Reason = "CPUThrottled"
	// MemoryNearLimit: a container uses nearly all of its memory limit.
	MemoryNearLimit fail.Reason = "MemoryNearLimit"
	// VolumeFull: a claim's volume is almost full.
	VolumeFull fail.Reason = "VolumeFull"
	// VolumeUnusable: a claim's volume cannot be written or read.
	VolumeUnusable fail.Reason = "VolumeUnusable"
)

// symptom is what is known of a name.
type symptom struct {
	name fail.Reason
	flow Flow
	// level is the usual one; the code that finds it may know better.
	level fail.Level
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
	add := func(flow Flow, level fail.Level, names ...fail.Reason) {
		for _, name := range names {
			all = append(all, symptom{name, flow, level})
		}
	}
	add(Start, fail.Broken, fail.EnvironmentMissing)
	add(Start, fail.Broken, BeingDeleted)
	add(Start, fail.Broken, fail.SecurityRefused, fail.GPUsUnavailable, fail.NodesUnavailable, fail.NodeTainted, fail.QuotaExceeded, fail.ClaimUnbound,
		fail.ImageUnavailable, fail.ContainerFailed, fail.OutOfMemory, fail.GPUMissing, fail.InvalidInput, fail.PermissionDenied, fail.PodsNotReady)
	add(Start, fail.Broken, AttachmentMissing)

	add(Hang, fail.Broken, fail.RankFailed, fail.ContainerRestarted, fail.AgentUnreachable, fail.AgentVersion)
	add(Hang, fail.Broken, AgentStuck, JobMissing, GPUFaulty)
	add(Hang, fail.Broken, nccl.MemoryLockLimit, nccl.DMARefused, nccl.PeerDMARefused, nccl.NoSocketInterface, nccl.GIDUnusable, nccl.NameUnresolved,
		nccl.RailsCrossed, nccl.RailUnreachable, nccl.RetryExceeded, nccl.PortDown, nccl.DeviceFatal, nccl.GPUMemoryRefused)
	add(Hang, fail.Broken, nccl.GIDChanged, nccl.LinkTypesMixed, nccl.DevicesMismatched, nccl.DeviceUnavailable, nccl.NetworkMissing, nccl.VerbsFailed,
		nccl.SharedMemoryFull, nccl.VersionMismatch, nccl.DuplicateGPU, nccl.CollectiveMismatch, nccl.CUDAFailed, nccl.TooManyFiles,
		nccl.PeerUnreachable, nccl.ConnectionRefused, nccl.ForeignConnection, nccl.ReceiverNotReady, nccl.TransferFailed)
	add(Hang, fail.Broken, fail.NameResolution, fail.StorageNotShared)
	add(Hang, fail.Broken, rdma.MemoryLimited, rdma.NoDevice, rdma.NoRail, rdma.NoCommonRail, rdma.AddressTwice)
	add(Hang, fail.Broken, VolumeUnusable)
	add(Hang, fail.Suspicious, TrafficBarred)
	add(Hang, fail.Suspicious, nccl.MTUMismatch, nccl.ConnectionRetried, nccl.GPUPeerAccessOff)
	add(Hang, fail.Suspicious, rdma.RailMissing, rdma.RailDiffers, rdma.NoGID, rdma.DeviceMissing, rdma.DeviceFileMissing, rdma.IOMMUTranslates, rdma.RailOrder,
		rdma.SubnetShared, rdma.LinkLayersMixed, rdma.GIDChoice)
	add(Hang, fail.Suspicious, CrossNIC, SettingsStale, RankEnded, NoProgress)
	add(Start, fail.Suspicious, NotReadable, HolderGone)

	add(Slow, fail.Suspicious, nccl.SocketsInsteadOfRDMA, nccl.NoRDMADevice, nccl.VerbsLibraryMissing, nccl.HostMemoryInsteadOfGPU, nccl.DeviceNotUsed)
	add(Slow, fail.Suspicious, rdma.NoGPUDirect)
	add(Slow, fail.Suspicious, GPUThrottled, RankSlow)
	add(Slow, fail.Suspicious, rdma.PCIeBelowMaximum, rdma.RatesMixed, rdma.PCIeBelowPort)
	add(Slow, fail.Suspicious, nccl.SettingChanged)
	add(Slow, fail.Suspicious, VolumeFull, MemoryNearLimit, CPUThrottled, GPUsDiffer, RacksInterleaved)
	add(Slow, fail.Note, RDMAUnused, GPUsIdle)
	add(Slow, fail.Note, rdma.DeviceRenamed, rdma.VariableUnreadable, rdma.InterfacesUnknown, rdma.DevicesDiffer, rdma.InterfacesDiffer, rdma.SettingDiffers)
	add(Start, fail.Note, PodsStarting)
	add(Hang, fail.Note, nccl.TransferFlushed, nccl.PeerGone, nccl.CollectiveTimeout, nccl.SystemError, nccl.RemoteError)
	return all
}

// likelihoodOf is the place of a name, the most likely being 0.
func likelihoodOf(name fail.Reason) int {
	all := symptoms()
	if i := slices.IndexFunc(all, func(s symptom) bool { return s.name == name }); i >= 0 {
		return i
	}
	return len(all)
}

// newFinding is a finding as its name says that it is.
func newFinding(name fail.Reason, object, evidence, next string) Finding {
	f := Finding{fail.Finding{Reason: name, Level: fail.Suspicious, Object: object, Seen: evidence, Next: next}, Hang}
	if all := symptoms(); likelihoodOf(name) < len(all) {
		s := all[likelihoodOf(name)]
		f.Level, f.Flow = s.level, s.flow
	}
	return f
}

// as is the finding with another level than its reason has mostly.
func (f Finding) as(l fail.Level) Finding {
	f.Level = l
	return f
}
