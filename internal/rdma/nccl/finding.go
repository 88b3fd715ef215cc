package nccl

import (
	"encoding/json"
	"slices"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// The reasons of findings that a log may show by itself. The list is closed; each has a cause and a fix.
const (
	// MemoryLockLimit: a device could not lock the memory that it needs.
	MemoryLockLimit fail.Reason = "MemoryLockLimit"
	// GPUMemoryRefused: a device could not map the memory of a GPU.
	GPUMemoryRefused fail.Reason = "GPUMemoryRefused"
	// DMARefused: this node's device was denied access to its memory (completion status 4).
	DMARefused fail.Reason = "DMARefused"
	// PeerDMARefused: the peer's device was denied access to the peer's memory (status 10 and 11).
	PeerDMARefused fail.Reason = "PeerDMARefused"
	// GPUPeerAccessOff: GPUs of one node cannot reach each other over PCIe.
	GPUPeerAccessOff fail.Reason = "GPUPeerAccessOff"

	// NoSocketInterface: none of the interfaces in NCCL's settings exists.
	NoSocketInterface fail.Reason = "NoSocketInterface"
	// VerbsLibraryMissing: the image has no libibverbs.
	VerbsLibraryMissing fail.Reason = "VerbsLibraryMissing"
	// DeviceUnavailable: an RDMA device exists but cannot be opened or queried.
	DeviceUnavailable fail.Reason = "DeviceUnavailable"
	// NetworkMissing: NCCL's settings name a network that NCCL does not have.
	NetworkMissing fail.Reason = "NetworkMissing"
	// GIDUnusable: a port's GID at the chosen index is wrong or missing.
	GIDUnusable fail.Reason = "GIDUnusable"
	// GIDChanged: a port got another address during the run.
	GIDChanged fail.Reason = "GIDChanged"
	// MTUMismatch: ports of one link layer have different MTUs.
	MTUMismatch fail.Reason = "MTUMismatch"
	// LinkTypesMixed: InfiniBand and RoCE ports cannot be connected to each other.
	LinkTypesMixed fail.Reason = "LinkTypesMixed"
	// DevicesMismatched: nodes have different devices at the same position.
	DevicesMismatched fail.Reason = "DevicesMismatched"
	// PortDown: a port lost its link.
	PortDown fail.Reason = "PortDown"
	// DeviceFatal: a device reported an error that it does not recover from.
	DeviceFatal fail.Reason = "DeviceFatal"
	// VerbsFailed: another call to the RDMA library failed.
	VerbsFailed fail.Reason = "VerbsFailed"

	// RailUnreachable: the peer's port has no route.
	RailUnreachable fail.Reason = "RailUnreachable"
	// RailsCrossed: a port sends to a port of another subnet, and no answer comes.
	RailsCrossed fail.Reason = "RailsCrossed"
	// RetryExceeded: the peer's port does not answer (status 12).
	RetryExceeded fail.Reason = "RetryExceeded"
	// ReceiverNotReady: the peer's port answers, but its process does not receive (status 13).
	ReceiverNotReady fail.Reason = "ReceiverNotReady"
	// TransferFailed: a transfer ended with another completion status.
	TransferFailed fail.Reason = "TransferFailed"
	// TransferFlushed: a transfer was discarded because an earlier one failed (status 5).
	TransferFlushed fail.Reason = "TransferFlushed"

	// NameUnresolved: a host's name could not be resolved.
	NameUnresolved fail.Reason = "NameUnresolved"
	// ConnectionRefused: no process listens at a peer's address.
	ConnectionRefused fail.Reason = "ConnectionRefused"
	// PeerUnreachable: packets to a peer's address get lost.
	PeerUnreachable fail.Reason = "PeerUnreachable"
	// ConnectionRetried: NCCL retries a connection.
	ConnectionRetried fail.Reason = "ConnectionRetried"
	// ForeignConnection: a program that is not a rank of this run connected to NCCL.
	ForeignConnection fail.Reason = "ForeignConnection"
	// PeerGone: a peer closed its connection.
	PeerGone fail.Reason = "PeerGone"

	// SharedMemoryFull: /dev/shm is full.
	SharedMemoryFull fail.Reason = "SharedMemoryFull"
	// TooManyFiles: the limit of open files is reached.
	TooManyFiles fail.Reason = "TooManyFiles"
	// VersionMismatch: ranks have different versions of NCCL.
	VersionMismatch fail.Reason = "VersionMismatch"
	// DuplicateGPU: two ranks use one GPU.
	DuplicateGPU fail.Reason = "DuplicateGPU"
	// CollectiveMismatch: ranks called different collectives, or with different sizes.
	CollectiveMismatch fail.Reason = "CollectiveMismatch"
	// CollectiveTimeout: torch's timeout for a collective expired.
	CollectiveTimeout fail.Reason = "CollectiveTimeout"
	// CUDAFailed: a call to CUDA failed.
	CUDAFailed fail.Reason = "CUDAFailed"
	// SystemError: NCCL's error for any failed call to the system or a library.
	SystemError fail.Reason = "SystemError"
	// RemoteError: NCCL's error for any failure on another rank.
	RemoteError fail.Reason = "RemoteError"
)

// What is found by comparing with what was wanted.
const (
	// SocketsInsteadOfRDMA: ranks use TCP although the mode is RDMA.
	SocketsInsteadOfRDMA fail.Reason = "SocketsInsteadOfRDMA"
	// HostMemoryInsteadOfGPU: RDMA goes through host memory although GPUDirect was expected.
	HostMemoryInsteadOfGPU fail.Reason = "HostMemoryInsteadOfGPU"
	// NoRDMADevice: NCCL found no RDMA device although one was expected.
	NoRDMADevice fail.Reason = "NoRDMADevice"
	// DeviceNotUsed: NCCL does not use a device that it should.
	DeviceNotUsed fail.Reason = "DeviceNotUsed"
	// SettingChanged: a rank's NCCL_* variable differs from the value that the agent set.
	SettingChanged fail.Reason = "SettingChanged"
)

// Finding is something in the log that explains a failure or a slow run.
type Finding struct {
	// Finding has the first line that shows it, without its header, and what to do next.
	fail.Finding
	// Host and PID identify the process that printed it; Host is empty if the line does not name it.
	Host string `json:"host,omitempty"`
	PID  int    `json:"pid,omitempty"`
	// Device is the RDMA device or interface, if the line names one.
	Device string `json:"device,omitempty"`
	// Peer is the other end's address, if the line names one.
	Peer string `json:"peer,omitempty"`
	// Line is the number of that line in its log.
	Line int64 `json:"line,omitempty"`
	// Count is how many lines show it.
	Count int `json:"count"`
	// Consequence: it follows from another failure, here or on another rank.
	Consequence bool   `json:"consequence,omitempty"`
	Cause       string `json:"cause"`
}

// MarshalJSON writes Next as fix, its name in receipts and in the agents' protocol.
func (f Finding) MarshalJSON() ([]byte, error) {
	type plain Finding
	next := f.Next
	f.Next = ""
	return json.Marshal(struct {
		plain
		Fix string `json:"fix"`
	}{plain(f), next})
}

// UnmarshalJSON implements json.Unmarshaler.
func (f *Finding) UnmarshalJSON(data []byte) error {
	type plain Finding
	read := struct {
		*plain
		Fix string `json:"fix"`
	}{plain: (*plain)(f)}
	if err := json.Unmarshal(data, &read); err != nil {
		return err
	}
	f.Next = read.Fix
	return nil
}

// Explained is the finding with its cause, and its host as its object.
func (f Finding) Explained() fail.Finding {
	explained := f.Finding
	explained.Object = f.Host
	explained.Seen = f.Cause + "; NCCL's log: " + f.Seen
	return explained
}

func newFinding(name fail.Reason, evidence string) Finding {
	e := explanations()[name]
	return Finding{Finding: fail.Finding{Reason: name, Seen: clip(evidence), Next: e.fix}, Count: 1, Consequence: e.consequence, Cause: e.cause}
}

// takePlain notes what a line without a header shows. isError is true for a line that is one of NCCL's warnings.
func (p *process) takePlain(text string, line int64, isError bool) {
	finding, ok := recognizePlain(plainRules, text)
	if !ok && isError {
		finding, ok = recognize(text, true)
	}
	if ok {
		p.note(finding, line)
	}
}

func (p *process) note(finding Finding, line int64) {
	known := func(f Finding) bool { return f.Reason == finding.Reason && f.Device == finding.Device }
	switch i := slices.IndexFunc(p.Findings, known); {
	case i >= 0:
		p.Findings[i].Count++
	case len(p.Findings) == maxFindings:
		p.leftOut++
	default:
		finding.Host, finding.PID, finding.Line = p.Host, p.PID, line
		p.Findings = append(p.Findings, finding)
	}
}
