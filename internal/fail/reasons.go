// SPDX-License-Identifier: Apache-2.0

package fail

// Reason is one word that names the cause of a failure. The list is closed; each
// reason has a row in docs/reference/reasons.md.
type Reason string

// The reasons.
const (
	// InvalidInput: a param, flag or cluster file is invalid; nothing was changed.
	InvalidInput Reason = "InvalidInput"
	// WrongCluster: the cluster file names another cluster than the one the run is in.
	WrongCluster Reason = "WrongCluster"
	// TimeoutTooShort: the PipelineRun would end before the work does.
	TimeoutTooShort Reason = "TimeoutTooShort"
	// PermissionDenied: the API server refused a request; the message names the missing right.
	PermissionDenied Reason = "PermissionDenied"
	// APIServerUnreachable: the cluster's API server cannot be reached, or does not answer.
	APIServerUnreachable Reason = "APIServerUnreachable"
	// EnvironmentBusy: another run or person holds the environment.
	EnvironmentBusy Reason = "EnvironmentBusy"
	// EnvironmentDiffers: the existing environment differs from the request, and changing it would end its pods.
	EnvironmentDiffers Reason = "EnvironmentDiffers"
	// EnvironmentMissing: the environment does not exist, or no longer belongs to this run.
	EnvironmentMissing Reason = "EnvironmentMissing"

	// BuildUnavailable: the cluster has no build API, no registry or no account for builds, so the run must name a finished image.
	BuildUnavailable Reason = "BuildUnavailable"
	// DockerfileInvalid: the Dockerfile is invalid.
	DockerfileInvalid Reason = "DockerfileInvalid"
	// PackageNotFound: a package or a version of it does not exist in the indexes that the build uses.
	PackageNotFound Reason = "PackageNotFound"
	// DependencyConflict: packages need versions of each other that exclude each other.
	DependencyConflict Reason = "DependencyConflict"
	// CertificateUntrusted: an authority that the build does not trust signed a server's certificate.
	CertificateUntrusted Reason = "CertificateUntrusted"
	// NetworkFailed: the build cannot reach a server.
	NetworkFailed Reason = "NetworkFailed"
	// DiskFull: the disk that a build or a node may use is full.
	DiskFull Reason = "DiskFull"
	// BuildStepFailed: a RUN of the Dockerfile failed.
	BuildStepFailed Reason = "BuildStepFailed"
	// PushRefused: the registry refused the image, or the push secret is missing.
	PushRefused Reason = "PushRefused"
	// BuildPodLost: the build's pod was deleted or evicted.
	BuildPodLost Reason = "BuildPodLost"
	// BuildTimeout: the build did not end in time.
	BuildTimeout Reason = "BuildTimeout"
	// BuildFailed: the build failed, and its log shows no known cause.
	BuildFailed Reason = "BuildFailed"

	// GPUsUnavailable: not enough GPUs are free on the allowed nodes.
	GPUsUnavailable Reason = "GPUsUnavailable"
	// NodesUnavailable: no node fits, for another cause than GPUs: labels, names, processors, memory, not ready.
	NodesUnavailable Reason = "NodesUnavailable"
	// NodeTainted: the nodes have a taint that the cluster file does not tolerate.
	NodeTainted Reason = "NodeTainted"
	// QueueUnavailable: Kueue, the LocalQueue or the WorkloadPriorityClass is missing, or Kueue does not manage the
	// environment's pods.
	QueueUnavailable Reason = "QueueUnavailable"
	// QuotaExceeded: a ResourceQuota or LimitRange of the namespace refuses the pods.
	QuotaExceeded Reason = "QuotaExceeded"
	// SecurityRefused: no security context constraint or pod security level admits the pods.
	SecurityRefused Reason = "SecurityRefused"
	// ClaimUnbound: a volume claim is not bound or not mounted.
	ClaimUnbound Reason = "ClaimUnbound"
	// ImageUnavailable: an image cannot be pulled.
	ImageUnavailable Reason = "ImageUnavailable"
	// ContainerFailed: a container cannot start or exits at once.
	ContainerFailed Reason = "ContainerFailed"
	// PodsNotReady: the pods were not ready in time, and no cause was found.
	PodsNotReady Reason = "PodsNotReady"
	// AgentUnreachable: a node's agent does not answer.
	AgentUnreachable Reason = "AgentUnreachable"
	// AgentVersion: a node's agent speaks another protocol version.
	AgentVersion Reason = "AgentVersion"
	// GPUMissing: a node has fewer usable GPUs than requested, another model, or a faulty GPU.
	GPUMissing Reason = "GPUMissing"
	// StorageNotShared: nodes do not see each other's files although they should, or do although they should not.
	StorageNotShared Reason = "StorageNotShared"
	// NameResolution: a node cannot resolve another node's name.
	NameResolution Reason = "NameResolution"

	// RDMAUnavailable: the mode is rdma, and the cluster, the permissions or the devices do not support RDMA.
	RDMAUnavailable Reason = "RDMAUnavailable"
	// NetworkBroken: a node or a rail does not deliver what ranks send over it.
	NetworkBroken Reason = "NetworkBroken"
	// TransportWrong: ranks use sockets although the run is in mode rdma.
	TransportWrong Reason = "TransportWrong"
	// NetworkSlow: the bandwidth is below what the rails should deliver, and fabric-bandwidth is fail.
	NetworkSlow Reason = "NetworkSlow"
	// DeviceSlow: a rank's GPU or processor is slower than others of its kind, and fabric-bandwidth is fail.
	DeviceSlow Reason = "DeviceSlow"

	// RepositoryUnavailable: the repository cannot be reached, or refuses this user.
	RepositoryUnavailable Reason = "RepositoryUnavailable"
	// HostKeyUnknown: known_hosts does not have the git server's host key.
	HostKeyUnknown Reason = "HostKeyUnknown"
	// RevisionNotFound: the repository has no such branch, tag or commit.
	RevisionNotFound Reason = "RevisionNotFound"
	// LFSPointers: the tree has Git LFS pointers, and their objects were not requested or could not be fetched.
	LFSPointers Reason = "LFSPointers"
	// UnsafeTree: an entry of the tree leads out of it, or cannot be stored.
	UnsafeTree Reason = "UnsafeTree"
	// SyncFailed: the tree did not arrive complete on every node.
	SyncFailed Reason = "SyncFailed"
	// RequirementsFailed: the Python requirements could not be installed.
	RequirementsFailed Reason = "RequirementsFailed"

	// ScriptNotFound: the script is not in the tree.
	ScriptNotFound Reason = "ScriptNotFound"
	// RankFailed: a rank exited with an error or by a signal.
	RankFailed Reason = "RankFailed"
	// OutOfMemory: a rank or a whole container was killed for memory, or a rank's GPU was full.
	OutOfMemory Reason = "OutOfMemory"
	// ContainerRestarted: a node's container restarted under a running job.
	ContainerRestarted Reason = "ContainerRestarted"
	// NodeLost: a node's pod disappeared under a running job.
	NodeLost Reason = "NodeLost"
	// Hang: no rank printed or measured anything for longer than hang-timeout.
	Hang Reason = "Hang"
	// StopCondition: a rule of stop-if or restart-if ended the training.
	StopCondition Reason = "StopCondition"
	// NoRendezvous: every rank exited with 0, none was ever connected to another one, and require-rendezvous is fail.
	NoRendezvous Reason = "NoRendezvous"
	// TrainingTimeout: the training did not end in time.
	TrainingTimeout Reason = "TrainingTimeout"
	// Cancelled: the run was cancelled, or stopped with Ctrl-C.
	Cancelled Reason = "Cancelled"

	// Regression: a scheduled run succeeded, and is worse than the runs before it.
	Regression Reason = "Regression"
	// TeardownIncomplete: pods, and so GPUs, were not released in time.
	TeardownIncomplete Reason = "TeardownIncomplete"
	// Internal: a failure without a known cause; its text is all there is.
	Internal Reason = "Internal"
)
