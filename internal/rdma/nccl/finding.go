// SPDX-License-Identifier: Apache-2.0

package nccl

import (
	"slices"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// The reasons of findings that a log may show by itself. The list is closed; each has a cause and a fix in
// docs/reference/nccl.md, and a meaning in docs/reference/findings.md.
const (
	MemoryLockLimit   fail.Reason = "MemoryLockLimit"
	RegistrationLimit fail.Reason = "RegistrationLimit"
	GPUMemoryRefused  fail.Reason = "GPUMemoryRefused"
	DMABUFRefused     fail.Reason = "DMABUFRefused"
	DMARefused        fail.Reason = "DMARefused"
	PeerDMARefused    fail.Reason = "PeerDMARefused"
	GPUPeerAccessOff  fail.Reason = "GPUPeerAccessOff"

	NoSocketInterface   fail.Reason = "NoSocketInterface"
	VerbsLibraryMissing fail.Reason = "VerbsLibraryMissing"
	DeviceUnavailable   fail.Reason = "DeviceUnavailable"
	NetworkMissing      fail.Reason = "NetworkMissing"
	GIDUnusable         fail.Reason = "GIDUnusable"
	GIDChanged          fail.Reason = "GIDChanged"
	MTUMismatch         fail.Reason = "MTUMismatch"
	LinkTypesMixed      fail.Reason = "LinkTypesMixed"
	DevicesMismatched   fail.Reason = "DevicesMismatched"
	PortDown            fail.Reason = "PortDown"
	DeviceFatal         fail.Reason = "DeviceFatal"
	VerbsFailed         fail.Reason = "VerbsFailed"

	RailUnreachable  fail.Reason = "RailUnreachable"
	RailsCrossed     fail.Reason = "RailsCrossed"
	RetryExceeded    fail.Reason = "RetryExceeded"
	ReceiverNotReady fail.Reason = "ReceiverNotReady"
	TransferFailed   fail.Reason = "TransferFailed"
	TransferFlushed  fail.Reason = "TransferFlushed"

	NameUnresolved    fail.Reason = "NameUnresolved"
	ConnectionRefused fail.Reason = "ConnectionRefused"
	PeerUnreachable   fail.Reason = "PeerUnreachable"
	ConnectionRetried fail.Reason = "ConnectionRetried"
	ForeignConnection fail.Reason = "ForeignConnection"
	PeerGone          fail.Reason = "PeerGone"

	SharedMemoryFull   fail.Reason = "SharedMemoryFull"
	TooManyFiles       fail.Reason = "TooManyFiles"
	VersionMismatch    fail.Reason = "VersionMismatch"
	DuplicateGPU       fail.Reason = "DuplicateGPU"
	CollectiveMismatch fail.Reason = "CollectiveMismatch"
	CollectiveTimeout  fail.Reason = "CollectiveTimeout"
	MulticastRefused   fail.Reason = "MulticastRefused"
	CUDAFailed         fail.Reason = "CUDAFailed"
	SystemError        fail.Reason = "SystemError"
	RemoteError        fail.Reason = "RemoteError"
)

// What is found by comparing with what was wanted.
const (
	SocketsInsteadOfRDMA   fail.Reason = "SocketsInsteadOfRDMA"
	HostMemoryInsteadOfGPU fail.Reason = "HostMemoryInsteadOfGPU"
	NoRDMADevice           fail.Reason = "NoRDMADevice"
	DeviceNotUsed          fail.Reason = "DeviceNotUsed"
	SettingChanged         fail.Reason = "SettingChanged"
)

// Finding is something in the log that explains a failure or a slow run.
type Finding struct {
	// Finding has the first line that shows it, without its header, and what to do next.
	fail.Finding
	// Host and PID identify the process that printed it.
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

// Explained returns the finding with its cause, and its host as its object.
func (f Finding) Explained() fail.Finding {
	explained := f.Finding
	explained.Object = f.Host
	explained.Seen = f.Cause + "; NCCL's log: " + f.Seen
	return explained
}

func newFinding(name fail.Reason, evidence string) Finding {
	e := explanations()[name]
	return Finding{Finding: fail.Finding{Reason: name, Seen: clipText(evidence), Next: e.fix}, Count: 1, Consequence: e.consequence,
		Cause: e.cause}
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
