package fail

// Reason is one word that says why something failed. The list is closed; each
// has a row in docs/reasons.md.
type Reason string

// The reasons.
const (
	// InvalidInput: a param, flag or cluster file cannot be; nothing was changed.
	InvalidInput Reason = "InvalidInput"
	// WrongCluster: the cluster file is about another cluster than the run is in.
	WrongCluster Reason = "WrongCluster"
	// TimeoutTooShort: the PipelineRun would be ended before the work can be.
	TimeoutTooShort Reason = "TimeoutTooShort"
	// PermissionDenied: the API server refused; the missing permission is named.
	PermissionDenied Reason = "PermissionDenied"
	// EnvironmentBusy: somebody else holds the environment.
	EnvironmentBusy Reason = "EnvironmentBusy"
	// EnvironmentDiffers: the live environment cannot become what was asked for without being made anew.
	EnvironmentDiffers Reason = "EnvironmentDiffers"
	// EnvironmentMissing: there is no such environment, or it is not this run's any more.
	EnvironmentMissing Reason = "EnvironmentMissing"

	// BuildUnavailable: the cluster has no build API, so an image must be named.
	BuildUnavailable Reason = "BuildUnavailable"
	// DockerfileInvalid: the Dockerfile cannot be read.
	DockerfileInvalid Reason = "DockerfileInvalid"
	// PackageNotFound: a package or a version of it does not exist where the build looks.
	PackageNotFound Reason = "PackageNotFound"
	// DependencyConflict: packages want versions of each other that do not go together.
	DependencyConflict Reason = "DependencyConflict"
	// CertificateUntrusted: a server's certificate is signed by an authority that is not trusted.
	CertificateUntrusted Reason = "CertificateUntrusted"
	// NetworkFailed: a server that is needed cannot be reached.
	NetworkFailed Reason = "NetworkFailed"
	// DiskFull: the disk that a build or a node may use is full.
	DiskFull Reason = "DiskFull"
	// BuildStepFailed: a RUN of the Dockerfile failed by itself.
	BuildStepFailed Reason = "BuildStepFailed"
	// PushRefused: the registry did not take the image.
	PushRefused Reason = "PushRefused"
	// BuildPodLost: the build's pod was deleted or evicted.
	BuildPodLost Reason = "BuildPodLost"
	// BuildTimeout: the build did not end in its time.
	BuildTimeout Reason = "BuildTimeout"
	// BuildFailed: the build failed and the log tells no more than that.
	BuildFailed Reason = "BuildFailed"

	// GPUsUnavailable: not enough GPUs are free on the nodes that may be used.
	GPUsUnavailable Reason = "GPUsUnavailable"
	// NodesUnavailable: no node fits for another cause than GPUs: labels, names, processors, memory, not ready.
	NodesUnavailable Reason = "NodesUnavailable"
	// NodeTainted: the nodes have a taint that the cluster file does not tolerate.
	NodeTainted Reason = "NodeTainted"
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
	// PodsNotReady: the pods did not get ready in time and no cause is known.
	PodsNotReady Reason = "PodsNotReady"
	// AgentUnreachable: a node's agent does not answer.
	AgentUnreachable Reason = "AgentUnreachable"
	// AgentVersion: a node's agent speaks another protocol version.
	AgentVersion Reason = "AgentVersion"
	// GPUMissing: a node has fewer usable GPUs than it was given.
	GPUMissing Reason = "GPUMissing"
	// StorageNotShared: the nodes do not see each other's files though they should.
	StorageNotShared Reason = "StorageNotShared"
	// NameResolution: a node cannot resolve another's name.
	NameResolution Reason = "NameResolution"

	// RDMAUnavailable: mode rdma was asked for, and the cluster, the permissions or the devices do not give it.
	RDMAUnavailable Reason = "RDMAUnavailable"
	// NetworkBroken: a node or rail does not carry what ranks send over it.
	NetworkBroken Reason = "NetworkBroken"
	// TransportWrong: ranks talk over sockets where RDMA was promised.
	TransportWrong Reason = "TransportWrong"
	// NetworkSlow: the bandwidth is below what the rails should give, and that was asked to count.
	NetworkSlow Reason = "NetworkSlow"

	// RepositoryUnavailable: the repository cannot be reached or does not let this user in.
	RepositoryUnavailable Reason = "RepositoryUnavailable"
	// HostKeyUnknown: the git server's host key is not among the known ones.
	HostKeyUnknown Reason = "HostKeyUnknown"
	// RevisionNotFound: the repository has no such branch, tag or commit.
	RevisionNotFound Reason = "RevisionNotFound"
	// LFSPointers: the tree has Git LFS pointers and fetching their objects was not asked for or failed.
	LFSPointers Reason = "LFSPointers"
	// UnsafeTree: an entry of the tree would lead out of it or cannot be stored.
	UnsafeTree Reason = "UnsafeTree"
	// SyncFailed: the tree did not arrive whole on every node.
	SyncFailed Reason = "SyncFailed"
	// RequirementsFailed: the Python requirements could not be installed.
	RequirementsFailed Reason = "RequirementsFailed"

	// ScriptNotFound: the script is not in the tree.
	ScriptNotFound Reason = "ScriptNotFound"
	// RankFailed: a rank exited with an error or by a signal.
	RankFailed Reason = "RankFailed"
	// OutOfMemory: a rank or a whole container was killed for memory.
	OutOfMemory Reason = "OutOfMemory"
	// ContainerRestarted: a node's container was restarted under a running job.
	ContainerRestarted Reason = "ContainerRestarted"
	// NodeLost: a node's pod went away under a running job.
	NodeLost Reason = "NodeLost"
	// TrainingTimeout: the training did not end in its time.
	TrainingTimeout Reason = "TrainingTimeout"
	// Cancelled: somebody cancelled the run.
	Cancelled Reason = "Cancelled"

	// Regression: a scheduled run succeeded, and is worse than those before it.
	Regression Reason = "Regression"
	// TeardownIncomplete: pods or GPUs were not given back in time.
	TeardownIncomplete Reason = "TeardownIncomplete"
	// Internal: a failure without a known cause; its text is all there is.
	Internal Reason = "Internal"
)
