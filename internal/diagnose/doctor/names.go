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

// symptom is the usual meaning of a finding's reason.
type symptom struct {
	name fail.Reason
	flow Flow
	// level is the usual one; the code that finds it may choose another.
	level fail.Level
}

// symptoms are all reasons, the most likely first. The report sorts findings of one level by this order, which is how
// certain the evidence is, and how often it was the cause on the clusters that this project comes from:
//
//  1. Answers of the API server, the scheduler and the kubelet are certain, and everything else follows from them:
//     first permissions (IPC_LOCK, SCCs), then misnamed resources of attachments, GPUs that others hold, claims, images.
//  2. A silent node, a restarted container and an ended rank are certain too, and make all other ranks hang.
//  3. NCCL's errors are certain, but may be a consequence of 2. Causes that have occurred come before those that have not.
//  4. Measurements in the nodes (ports, rails, addresses, names, GPUs) explain failures that nothing printed.
//  5. Signs without a cause, such as silence, come last.
//
// For a slow training the wrong transport (two to ten times slower) comes before slower links, rates and clocks (tens of
// percent), and those before limits that are near.
func symptoms() []symptom {
	var all []symptom
	add := func(flow Flow, level fail.Level, names ...fail.Reason) {
		for _, name := range names {
			all = append(all, symptom{name, flow, level})
		}
	}
	add(Start, fail.Broken, fail.EnvironmentMissing, BeingDeleted,
		fail.SecurityRefused, fail.GPUsUnavailable, fail.NodesUnavailable, fail.NodeTainted, fail.QuotaExceeded, fail.ClaimUnbound, fail.ImageUnavailable,
		fail.ContainerFailed, fail.OutOfMemory, fail.GPUMissing, fail.InvalidInput, fail.PermissionDenied, fail.PodsNotReady, AttachmentMissing)

	add(Hang, fail.Broken, fail.RankFailed, fail.ContainerRestarted, fail.AgentUnreachable, fail.AgentVersion, AgentStuck, JobMissing, GPUFaulty)
	add(Hang, fail.Broken, nccl.MemoryLockLimit, nccl.DMARefused, nccl.PeerDMARefused, nccl.NoSocketInterface, nccl.GIDUnusable, nccl.NameUnresolved,
		nccl.RailsCrossed, nccl.RailUnreachable, nccl.RetryExceeded, nccl.PortDown, nccl.DeviceFatal, nccl.GPUMemoryRefused)
	add(Hang, fail.Broken, nccl.GIDChanged, nccl.LinkTypesMixed, nccl.DevicesMismatched, nccl.DeviceUnavailable, nccl.NetworkMissing, nccl.VerbsFailed,
		nccl.SharedMemoryFull, nccl.VersionMismatch, nccl.DuplicateGPU, nccl.CollectiveMismatch, nccl.CUDAFailed, nccl.TooManyFiles,
		nccl.PeerUnreachable, nccl.ConnectionRefused, nccl.ForeignConnection, nccl.ReceiverNotReady, nccl.TransferFailed)
	add(Hang, fail.Broken, fail.NameResolution, fail.StorageNotShared,
		rdma.MemoryLimited, rdma.NoDevice, rdma.NoRail, rdma.NoCommonRail, rdma.AddressTwice, VolumeUnusable)
	add(Hang, fail.Suspicious, TrafficBarred, nccl.MTUMismatch, nccl.ConnectionRetried, nccl.GPUPeerAccessOff)
	add(Hang, fail.Suspicious, rdma.RailMissing, rdma.RailDiffers, rdma.NoGID, rdma.HostGID, rdma.DeviceMissing, rdma.DeviceFileMissing, rdma.IOMMUTranslates, rdma.RailOrder,
		rdma.SubnetShared, rdma.LinkLayersMixed, rdma.GIDChoice)
	add(Hang, fail.Suspicious, CrossNIC, SettingsStale, RankEnded, NoProgress)
	add(Start, fail.Suspicious, NotReadable, HolderGone)

	add(Slow, fail.Suspicious, nccl.SocketsInsteadOfRDMA, nccl.NoRDMADevice, nccl.VerbsLibraryMissing, nccl.HostMemoryInsteadOfGPU, nccl.DeviceNotUsed)
	add(Slow, fail.Suspicious, rdma.NoGPUDirect, GPUThrottled, RankSlow, rdma.PCIeBelowMaximum, rdma.RatesMixed, rdma.PCIeBelowPort)
	add(Slow, fail.Suspicious, nccl.SettingChanged, VolumeFull, MemoryNearLimit, CPUThrottled, GPUsDiffer, RacksInterleaved)
	add(Slow, fail.Note, RDMAUnused, GPUsIdle)
	add(Slow, fail.Note, rdma.DeviceRenamed, rdma.VariableUnreadable, rdma.InterfacesUnknown, rdma.DevicesDiffer, rdma.InterfacesDiffer, rdma.SettingDiffers)
	add(Start, fail.Note, PodsStarting)
	add(Hang, fail.Note, nccl.TransferFlushed, nccl.PeerGone, nccl.CollectiveTimeout, nccl.SystemError, nccl.RemoteError)
	return all
}

// likelihoodOf is the position of a reason, 0 for the most likely one.
func likelihoodOf(name fail.Reason) int {
	all := symptoms()
	if i := slices.IndexFunc(all, func(s symptom) bool { return s.name == name }); i >= 0 {
		return i
	}
	return len(all)
}

// newFinding is a finding with the usual level and flow of its reason.
func newFinding(name fail.Reason, object, evidence, next string) Finding {
	f := Finding{fail.Finding{Reason: name, Level: fail.Suspicious, Object: object, Seen: evidence, Next: next}, Hang}
	if all := symptoms(); likelihoodOf(name) < len(all) {
		s := all[likelihoodOf(name)]
		f.Level, f.Flow = s.level, s.flow
	}
	return f
}

func (f Finding) as(l fail.Level) Finding {
	f.Level = l
	return f
}
