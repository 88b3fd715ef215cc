// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/rdma/nccl"
)

// JobState is the state of a job.
type JobState string

// The job states.
const (
	// Running: a process of the job lives.
	Running JobState = "running"
	// Exited: all processes ended by themselves.
	Exited JobState = "exited"
	// Stopped: the agent ended it, for StopCause and StopReason.
	Stopped JobState = "stopped"
	// Restarted: the container restarted during the job. The agent does not start it again.
	Restarted JobState = "container-restarted"
)

// JobStatus is one node's part of a job: the answer of GET /v1/jobs/ID, and one
// line of GET /v1/jobs/ID/watch, which sends a line for every change and ends with the job.
type JobStatus struct {
	ID   string `json:"id"`
	Node int    `json:"node"`
	// Environment is the node's: several can share the workspace claim.
	Environment string   `json:"environment,omitempty"`
	State       JobState `json:"state"`
	Spec        JobSpec  `json:"spec"`
	// Record is the folder of logs, metrics and status.
	Record string `json:"record"`
	// Work is the job's working directory, "" for a job without a tree. After the job it has only what the job wrote, and Work is "" if that
	// is nothing.
	Work    string    `json:"work,omitempty"`
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended,omitzero"`
	// Launcher is how the launcher itself ended.
	Launcher Exit `json:"launcher"`
	// Stopping is when the agent was asked to stop the job.
	Stopping time.Time `json:"stopping,omitzero"`
	// Kill is when the agent kills the job's processes that have not ended by then.
	Kill time.Time `json:"kill,omitzero"`
	// StopCause and StopReason come from the request that stopped the job.
	StopCause  StopCause `json:"stopCause,omitempty"`
	StopReason string    `json:"stopReason,omitempty"`
	// NoHandler is true if the ranks were to save when they were stopped, and none of their processes handled SIGTERM.
	NoHandler bool         `json:"noHandler,omitempty"`
	Ranks     []RankStatus `json:"ranks"`
	// NCCL is what the logs of the node's ranks show, without channels; nil without logs, as with gloo.
	NCCL *nccl.Summary `json:"nccl,omitempty"`
	// Collectives are the last ones of ranks, by rank, by the dumps that torch wrote until the end of the job.
	Collectives map[int][]Collective `json:"collectives,omitempty"`
	// Alone is true if the job has several ranks and has ended, and none of this node was seen with a connection to another one.
	Alone bool `json:"alone,omitempty"`
	// Outside is what was written outside of the working directory, once the job has ended.
	Outside []Outside `json:"outside,omitempty"`
	// Full is true if the workspace had no room left when the job ended.
	Full bool `json:"full,omitempty"`
	// Quiet is how long neither a log of the node's ranks nor the metrics have grown. Only the answer to GET /v1/jobs/ID of a
	// running job has it, and a stopped job: then it is the time until the request to stop.
	Quiet time.Duration `json:"quiet,omitempty"`
	// RankSeconds is how long each rank took for its own part of a step, in their order, by the latest metrics that have it.
	// Only node 0 has it, in the same answer as Quiet, if the training writes it.
	RankSeconds []float64 `json:"rankSeconds,omitempty"`
	// New is true only in the answer to the request that started the job.
	New bool `json:"new,omitempty"`
}

// WorkOf returns the first working directory of the nodes, "" for none.
func WorkOf(statuses []JobStatus) string {
	for _, status := range statuses {
		if status.Work != "" {
			return status.Work
		}
	}
	return ""
}

// NCCLOf returns what the logs of all nodes show together, and whether there are any. Findings include ranks on a slower transport
// than wanted, and ranks whose NCCL shows other settings than their environment. environments has the variables of the nodes' ranks, by
// node; ranks of other nodes are not compared.
func NCCLOf(statuses []JobStatus, wanted nccl.Transport, environments map[int]map[string]string) (summary nccl.Summary, found bool) {
	var all []nccl.Summary
	var against []nccl.Finding
	for _, status := range statuses {
		if status.NCCL == nil {
			continue
		}
		all = append(all, *status.NCCL)
		var given map[string]string
		if environment, known := environments[status.Node]; known {
			given = maps.Clone(environment)
			maps.Copy(given, status.Spec.Env)
		}
		against = append(against, status.NCCL.Against(nccl.Wanted{Transport: wanted, Environment: given})...)
	}
	summary = nccl.Merge(all...)
	summary.Findings = append(summary.Findings, against...)
	return summary, len(all) > 0
}

// WantedTransport returns the slowest acceptable transport between nodes in a mode.
func WantedTransport(mode Mode, nodes int) nccl.Transport {
	if mode == RDMA && nodes > 1 {
		return nccl.RDMAGPU
	}
	return nccl.Unknown
}

// Exit is how a process ended.
type Exit struct {
	// Code is its exit code, -1 if a signal ended it, if it lives, or if it did not start.
	Code int `json:"code"`
	// Signal as in SIGKILL, "" for none.
	Signal string `json:"signal,omitempty"`
	// OutOfMemory is true if the kernel killed it for memory.
	OutOfMemory bool `json:"outOfMemory,omitempty"`
	// MemoryLimit is then the container's, 0 for none.
	MemoryLimit Bytes `json:"memoryLimit,omitempty"`
	// Error is why it did not start.
	Error string `json:"error,omitempty"`
}

// RankStatus is one training process, or the node's process with launcher command.
type RankStatus struct {
	// Rank is global, 0 to the world size less one.
	Rank      int       `json:"rank"`
	LocalRank int       `json:"localRank"`
	Node      int       `json:"node"`
	PID       int       `json:"pid"`
	Started   time.Time `json:"started"`
	// DebugPort is the port on which the rank waits for a debugger, 0 if it does not wait.
	DebugPort int `json:"debugPort,omitempty"`
	// Ended is zero while the rank lives.
	Ended time.Time `json:"ended,omitzero"`
	Exit  Exit      `json:"exit"`
	// Stopped is true if its shim got a signal before it ended, or if SIGTERM ended it: the agent or a launcher stopped it.
	Stopped bool `json:"stopped,omitempty"`
	// Quiet is how long the log of a live rank has not grown. It is set if the job's Quiet is.
	Quiet time.Duration `json:"quiet,omitempty"`
	// Rendezvous is how far a live rank is on its way to the job's rendezvous, or whether an ended one was seen there. It comes
	// in the same answers as Quiet.
	Rendezvous Rendezvous `json:"rendezvous,omitempty"`
	// Unhooked is the PYTHONPATH, or "nothing", of a Python with torch of a live rank that package pylib does not reach, because the
	// program has replaced the variable; "" if there is none. It comes in the same answers as Quiet.
	Unhooked string `json:"unhooked,omitempty"`
	// Tail are its last lines of output.
	Tail []string `json:"tail,omitempty"`
	// TailFile is the path in the job's working directory of the log that has these lines, for a rank that printed nothing; else "".
	TailFile string `json:"tailFile,omitempty"`
	// Python is the last uncaught error that it printed.
	Python *PythonError `json:"python,omitempty"`
	// Below is the error that ended a program which the rank had started, seconds before the rank itself exited with 0.
	Below *PythonError `json:"below,omitempty"`
}

// Rendezvous is how far a rank is on its way to the rendezvous, the port of node 0 where the ranks of torch.distributed meet.
type Rendezvous int

// The way. A rank that uses no torch.distributed, or another port, never comes.
const (
	// Absent: it has no connection to the port.
	Absent Rendezvous = iota
	// Connecting: node 0 has not answered.
	Connecting
	// Arrived: it is or was connected, or listens there.
	Arrived
)

// MaxOutside bounds how many files and folders JobStatus.Outside has.
const MaxOutside = 5

// Outside is a file or folder outside of a job's working directory that was written while the job ran.
type Outside struct {
	Path  string `json:"path"`
	Files int    `json:"files"`
	Bytes Bytes  `json:"bytes"`
	// Newest is the path of the file that was written last.
	Newest string `json:"newest"`
}

// PythonError is the end of a Python traceback.
type PythonError struct {
	// Seen is when its first line was printed.
	Seen    time.Time `json:"seen"`
	Type    string    `json:"type"`
	Message string    `json:"message"`
	// First is the type and message of the error with which the chain of exceptions began that this one ended, "" if it is the only one.
	First string `json:"first,omitempty"`
	// File and Line name the innermost frame in the tree, else the innermost one.
	File      string   `json:"file,omitempty"`
	Line      int      `json:"line,omitempty"`
	Traceback []string `json:"traceback,omitempty"`
	// Handled: the program may have handled it, because it logged or printed it, and package pylib did not see it end the program.
	Handled bool `json:"handled,omitempty"`
	// InTree is the folder of the tree that has the module of a ModuleNotFoundError, "." for its top folder, "" for none.
	InTree string `json:"inTree,omitempty"`
}

// StopCause is why the agent stopped a job, for programs: one of these or empty.
type StopCause string

// The causes.
const (
	// StopDeadline: the job's deadline passed, and the agent stopped it.
	StopDeadline StopCause = "deadline"
	// StopReplaced: another job replaced it.
	StopReplaced StopCause = "replaced"
	// StopContainer: the node's container received SIGTERM, as when its pod is deleted, evicted or preempted.
	StopContainer StopCause = "container"
	// StopCancelled: a user or the end of the run stopped it.
	StopCancelled StopCause = "cancelled"
	// StopNode: the container of another node received SIGTERM.
	StopNode StopCause = "node"
	// StopHang: it hung. Ranks whose stacks py-spy could not read end by SIGABRT, at which Python's faulthandler prints them.
	StopHang StopCause = "hang"
	// StopRule: it met a rule of stop-if or restart-if.
	StopRule StopCause = "rule"
)

// Saves reports whether ranks that are stopped for this cause have the time to save: SIGTERM goes only to the processes that handle it,
// and a rank that ends does not stop the others. The peers of a rank that failed cannot save.
func (c StopCause) Saves() bool {
	switch c {
	case StopDeadline, StopContainer, StopCancelled, StopNode, StopRule:
		return true
	case StopReplaced, StopHang:
	}
	return false
}

// Stop is the body of POST /v1/jobs/ID/stop.
type Stop struct {
	Cause StopCause `json:"cause,omitempty"`
	// Reason is a sentence for users.
	Reason string `json:"reason"`
	// Grace is the time between SIGTERM and SIGKILL; 0 means the job's.
	Grace time.Duration `json:"grace,omitempty"`
	// Hasten makes the grace count from now also for a job that is being stopped, if SIGKILL comes earlier by that.
	Hasten bool `json:"hasten,omitempty"`
}

// DefaultStopGrace is how long ranks have to save unless the environment or the job has another time.
const DefaultStopGrace = 30 * time.Second

// MaxStopGrace bounds the time that ranks have to save.
const MaxStopGrace = time.Hour

// StopGraceVariable is the time that an environment's ranks have to save, a duration.
const StopGraceVariable = "MLENV_STOP_GRACE"

// StopFileVariable is the path of a file that appears when the job is stopped, before SIGTERM. It contains a StopNotice.
const StopFileVariable = "MLENV_STOP_FILE"

// StopNotice tells a rank why it is stopped, and until when it can save.
type StopNotice struct {
	Cause  StopCause `json:"cause"`
	Reason string    `json:"reason"`
	// Until is the time of SIGKILL in seconds since 1970, by the node's clock.
	Until float64 `json:"until"`
}

// Saving describes the ranks of a job that is being stopped and that have not ended, for example "rank 3 on node 1, for at most 25s";
// "" for none.
func Saving(statuses []JobStatus, now time.Time) string {
	var ranks []string
	var until time.Time
	const most = 8
	more := 0
	for _, status := range statuses {
		if status.State != Running || status.Stopping.IsZero() {
			continue
		}
		for _, rank := range status.Ranks {
			switch {
			case !rank.Ended.IsZero():
				continue
			case len(ranks) < most:
				ranks = append(ranks, fmt.Sprintf("rank %d on node %d", rank.Rank, rank.Node))
			default:
				more++
			}
			if status.Kill.After(until) {
				until = status.Kill
			}
		}
	}
	if len(ranks) == 0 {
		return ""
	}
	text := strings.Join(ranks, ", ")
	if more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	if !until.IsZero() {
		text += fmt.Sprintf(", for at most %s", max(0, until.Sub(now)).Round(time.Second))
	}
	return text
}

// The logs of a job, for GET /v1/jobs/ID/logs/NAME?offset=N&follow=true. With end=N the answer begins N bytes before the end.
const (
	// LauncherLog is the launcher's own output.
	LauncherLog = "launcher"
	// MetricsLog has the metrics of the training, JSON lines, on node 0.
	MetricsLog = "metrics"
	// RankLog is the prefix of a rank, as in rank-3.
	RankLog = "rank-"
)

// Files that a step may add to the record of a run, for GET and PUT /v1/records/ID/NAME. The
// folder belongs to the job of the same id, before or after its start.
const (
	// FabricReport is the report of check-fabric, JSON.
	FabricReport = "fabric.json"
	// MaxRecordFile bounds a file, in bytes.
	MaxRecordFile = 1 << 20
)
