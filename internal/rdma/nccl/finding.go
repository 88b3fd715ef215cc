package nccl

// Name is what a finding is called. The list is closed; each has a cause and a fix.
type Name string

// What a log may show, by itself.
const (
	// MemoryLockLimit: a device could not lock the memory that it was to use.
	MemoryLockLimit Name = "MemoryLockLimit"
	// GPUMemoryRefused: a device could not be given the memory of a GPU.
	GPUMemoryRefused Name = "GPUMemoryRefused"
	// DMARefused: this node's device was not let into its own memory (completion status 4).
	DMARefused Name = "DMARefused"
	// PeerDMARefused: the peer's device was not let into the peer's memory (status 10 and 11).
	PeerDMARefused Name = "PeerDMARefused"
	// GPUPeerAccessOff: GPUs of one node cannot reach each other over PCIe.
	GPUPeerAccessOff Name = "GPUPeerAccessOff"

	// NoSocketInterface: none of the interfaces that NCCL was told to use exists.
	NoSocketInterface Name = "NoSocketInterface"
	// VerbsLibraryMissing: the image has no libibverbs.
	VerbsLibraryMissing Name = "VerbsLibraryMissing"
	// DeviceUnavailable: an RDMA device is there but cannot be opened or asked.
	DeviceUnavailable Name = "DeviceUnavailable"
	// NetworkMissing: NCCL was told to use a network that it does not have.
	NetworkMissing Name = "NetworkMissing"
	// GIDUnusable: a port's address of the chosen index is wrong or missing.
	GIDUnusable Name = "GIDUnusable"
	// GIDChanged: a port got another address during the run.
	GIDChanged Name = "GIDChanged"
	// MTUMismatch: ports of one link layer have different MTUs.
	MTUMismatch Name = "MTUMismatch"
	// LinkTypesMixed: InfiniBand and RoCE ports cannot be connected to each other.
	LinkTypesMixed Name = "LinkTypesMixed"
	// DevicesMismatched: nodes have different devices at the same place.
	DevicesMismatched Name = "DevicesMismatched"
	// PortDown: a port lost its link.
	PortDown Name = "PortDown"
	// DeviceFatal: a device reported an error that it does not recover from.
	DeviceFatal Name = "DeviceFatal"
	// VerbsFailed: another call to the RDMA library failed.
	VerbsFailed Name = "VerbsFailed"

	// RailUnreachable: there is no way to the peer's port.
	RailUnreachable Name = "RailUnreachable"
	// RailsCrossed: a port of one subnet sends to one of another, and no answer comes.
	RailsCrossed Name = "RailsCrossed"
	// RetryExceeded: the peer's port does not answer (status 12).
	RetryExceeded Name = "RetryExceeded"
	// ReceiverNotReady: the peer's port answers, its process does not take what comes (status 13).
	ReceiverNotReady Name = "ReceiverNotReady"
	// TransferFailed: a transfer ended with another completion status.
	TransferFailed Name = "TransferFailed"
	// TransferFlushed: a transfer was thrown away because one before it failed (status 5).
	TransferFlushed Name = "TransferFlushed"

	// NameUnresolved: a host's name could not be resolved.
	NameUnresolved Name = "NameUnresolved"
	// ConnectionRefused: nobody listens at a peer's address.
	ConnectionRefused Name = "ConnectionRefused"
	// PeerUnreachable: packets to a peer's address get lost.
	PeerUnreachable Name = "PeerUnreachable"
	// ConnectionRetried: a connection is being tried again.
	ConnectionRetried Name = "ConnectionRetried"
	// ForeignConnection: something that is no rank of this run connected to NCCL.
	ForeignConnection Name = "ForeignConnection"
	// PeerGone: a peer closed its connection.
	PeerGone Name = "PeerGone"

	// SharedMemoryFull: /dev/shm has no room.
	SharedMemoryFull Name = "SharedMemoryFull"
	// TooManyFiles: the limit of open files is reached.
	TooManyFiles Name = "TooManyFiles"
	// VersionMismatch: ranks have different versions of NCCL.
	VersionMismatch Name = "VersionMismatch"
	// DuplicateGPU: two ranks use one GPU.
	DuplicateGPU Name = "DuplicateGPU"
	// CollectiveMismatch: ranks called different collectives, or with different sizes.
	CollectiveMismatch Name = "CollectiveMismatch"
	// CollectiveTimeout: torch waited in vain for a collective to end.
	CollectiveTimeout Name = "CollectiveTimeout"
	// CUDAFailed: a call to CUDA failed.
	CUDAFailed Name = "CUDAFailed"
	// SystemError: NCCL's word for any failed call to the system or a library.
	SystemError Name = "SystemError"
	// RemoteError: NCCL's word for any failure elsewhere.
	RemoteError Name = "RemoteError"
)

// What is found by comparing with what was wanted.
const (
	// SocketsInsteadOfRDMA: ranks talk over TCP though RDMA was wanted.
	SocketsInsteadOfRDMA Name = "SocketsInsteadOfRDMA"
	// HostMemoryInsteadOfGPU: RDMA goes through host memory though GPUDirect was wanted.
	HostMemoryInsteadOfGPU Name = "HostMemoryInsteadOfGPU"
	// NoRDMADevice: NCCL found no RDMA device though one was wanted.
	NoRDMADevice Name = "NoRDMADevice"
	// DeviceNotUsed: NCCL does not use a device that it should.
	DeviceNotUsed Name = "DeviceNotUsed"
	// SettingChanged: a rank has another value of a NCCL_* variable than it was given.
	SettingChanged Name = "SettingChanged"
)

// Finding is something in the log that explains a failure or a slow run.
type Finding struct {
	Name Name `json:"name"`
	// Host and PID are the process's that printed it, Host empty where the line does not tell.
	Host string `json:"host,omitempty"`
	PID  int    `json:"pid,omitempty"`
	// Device is the RDMA device or interface that it is about, where the line names one.
	Device string `json:"device,omitempty"`
	// Peer is the other end's address, where the line names one.
	Peer string `json:"peer,omitempty"`
	// Evidence is the first line that shows it, without its header.
	Evidence string `json:"evidence"`
	// Line is the number of that line in its log.
	Line int64 `json:"line,omitempty"`
	// Count is how many lines show it.
	Count int `json:"count"`
	// Consequence: it follows from another failure, here or on another rank.
	Consequence bool   `json:"consequence,omitempty"`
	Cause       string `json:"cause"`
	// Fix is what to do, or to look at, next.
	Fix string `json:"fix"`
}

// findingKey tells findings of a process apart.
type findingKey struct {
	name   Name
	device string
}

// newFinding is a finding with its explanation.
func newFinding(name Name, evidence string) Finding {
	e := explanations[name]
	return Finding{Name: name, Evidence: clip(evidence), Count: 1, Consequence: e.consequence, Cause: e.cause, Fix: e.fix}
}

// takeFinding notes what a message shows.
func (p *process) takeFinding(m message, line int64) {
	if finding, ok := recognize(m.text, m.warning); ok {
		p.note(finding, line)
	}
}

// takePlain notes what a line without a header shows. All of NCCL's warnings are looked for
// only where isError says that it is one.
func (p *process) takePlain(text string, line int64, isError bool) {
	finding, ok := recognizePlain(text)
	if !ok && isError {
		finding, ok = recognize(text, true)
	}
	if ok {
		p.note(finding, line)
	}
}

// note adds a finding, or counts it where it is known.
func (p *process) note(finding Finding, line int64) {
	key := findingKey{finding.Name, finding.Device}
	if i, known := p.findings[key]; known {
		p.Findings[i].Count++
		return
	}
	if len(p.Findings) == maxFindings {
		p.leftOut++
		return
	}
	finding.Host, finding.PID, finding.Line = p.Host, p.PID, line
	p.findings[key] = len(p.Findings)
	p.Findings = append(p.Findings, finding)
}
