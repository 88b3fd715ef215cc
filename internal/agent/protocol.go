// Package agent is the protocol between the steps and the process that is PID 1
// of every node, and its client. The server is in internal/agent/server.
package agent

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/nccl"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// Protocol is the version of the protocol. Client and server of different versions refuse each other.
const Protocol = 2

// Port is where an agent listens, on the pod's address and on loopback.
const Port = 7443

// MasterPort is the port of the ranks' rendezvous.
const MasterPort = 29500

// ResumeVariable is set for the ranks of a run that resumes another one. It names the first run of the series, which owns
// the folder of checkpoints.
const ResumeVariable = "MLENV_RESUME_FROM"

// CUDADevices is CUDA's variable for the GPUs that a process may use. The agent sets it, by UUIDs, in a pod that sees more GPUs
// than it was given.
const CUDADevices = "CUDA_VISIBLE_DEVICES"

// OwnGPUs has the UUIDs of the pod's GPUs for SMI, also where a rank may use only some of them.
const OwnGPUs = "MLENV_GPUS"

// SMI is the name of NVIDIA's program, and by which mlenv-agent takes its place in a pod that sees more GPUs than it was given.
const SMI = "nvidia-smi"

// World is a group of ranks, as their environment describes it.
type World struct {
	// Master and Port are those of the rendezvous; 0 means MasterPort.
	Master string
	Port   int
	Nodes  int
	// RanksPerNode is the number of GPUs of a node unless the job sets another one.
	RanksPerNode int
}

// Variables are the same on all nodes. NODE_RANK is each node's own.
func (w World) Variables() map[string]string {
	return map[string]string{
		"MASTER_ADDR": w.Master,
		"MASTER_PORT": strconv.Itoa(cmp.Or(w.Port, MasterPort)),
		"NUM_NODES":   strconv.Itoa(w.Nodes),
		"WORLD_SIZE":  strconv.Itoa(w.Nodes * w.RanksPerNode),
	}
}

// DebugPort is where a rank waits for its debugger, on loopback alone, because debugpy accepts every connection.
const DebugPort = 5678

// DefaultName is the environment of a request that names none.
const DefaultName = "ml-dev-env"

// SharesClaims reports whether an environment mounts the claims of the default environment: NAME of ml-dev-env-NAME has
// nodes of its own, and the checkpoints and datasets of all.
func SharesClaims(name string) bool { return strings.HasPrefix(name, DefaultName+"-") }

// SharesWorkspaceVariable is "true" in nodes of an environment that mounts the workspace of others because the cluster file names it.
const SharesWorkspaceVariable = "MLENV_SHARES_WORKSPACE"

// Paths in a node.
const (
	// Workspace is where the workspace claim is mounted.
	Workspace = "/workspace"
	// Datasets is where the datasets claim is mounted.
	Datasets = "/datasets"
	// Home holds the agent's program, its socket and its certificates.
	Home = "/mlenv"
	// Program is the agent's program, copied there by the init container.
	Program = Home + "/bin/" + ProgramName
	// ProgramName is the base of Program: mlenv under this name is the agent's program too.
	ProgramName = "mlenv-agent"
	// PySpy is the name of a program that prints the stacks of Python. The init container copies one next to the agent, for
	// images that have none.
	PySpy = "py-spy"
	// Socket is where the container's own processes reach the agent.
	Socket = Home + "/run/agent.sock"
	// TLS holds ca.crt, tls.crt and tls.key of the node.
	TLS = Home + "/tls"
	// Hostfile is DeepSpeed's list of nodes.
	Hostfile = Workspace + "/.deepspeed/hostfile"
	// State is the agent's folder on the workspace claim.
	State = Workspace + "/.mlenv"
	// Trees is where synced trees lie, each under its hash.
	Trees = State + "/trees"
	// Work is where the working directory of each job lies, under the job's id.
	Work = Workspace + "/" + WorkFolder
	// Runs is where the record of each job lies, under the job's id.
	Runs = State + "/runs"
	// Current is the stable path of the synced tree: a link that sync switches.
	Current = Workspace + "/repo"
)

// Bytes is an amount of memory or storage.
type Bytes int64

// Health is the answer of GET /v1/health.
type Health struct {
	Protocol int    `json:"protocol"`
	Version  string `json:"version"`
}

// Facts is the answer of GET /v1/facts: the node and its resources.
type Facts struct {
	Health
	// Node is the ordinal of the node in its environment.
	Node           int    `json:"node"`
	Pod            string `json:"pod"`
	KubernetesNode string `json:"kubernetesNode"`
	GPUs           []GPU  `json:"gpus"`
	// GPUsExpected is how many GPUs the node was given.
	GPUsExpected int `json:"gpusExpected"`
	// GPUProblem is the error of reading the GPUs, "" for none.
	GPUProblem string `json:"gpuProblem,omitempty"`
	CPUs       int    `json:"cpus"`
	// MemoryLimit is the container's, 0 without a limit.
	MemoryLimit Bytes `json:"memoryLimit"`
	// MemoryUsed is what the container uses now.
	MemoryUsed Bytes `json:"memoryUsed"`
	// MemoryCache is the part of MemoryUsed that the kernel frees first: contents of files that were not read for a while.
	MemoryCache Bytes `json:"memoryCache,omitempty"`
	// CPUPeriods counts the periods, mostly of 100 ms, in which the container wanted to run
	// under a limit, and CPUThrottled those in which the limit held it back. Both are 0
	// without a limit.
	CPUPeriods   int `json:"cpuPeriods,omitempty"`
	CPUThrottled int `json:"cpuThrottled,omitempty"`
	// SharedMemory is /dev/shm.
	SharedMemory Volume `json:"sharedMemory,omitzero"`
	// Workspace and Datasets describe the mounted claims.
	Workspace Volume `json:"workspace"`
	Datasets  Volume `json:"datasets"`
	// Environment is what the agent sets for every job and shell.
	Environment map[string]string `json:"environment"`
	// Network is the last one of PUT /v1/network, nil for none.
	Network *Network `json:"network,omitempty"`
	// Jobs that are not over.
	Running []string `json:"running,omitempty"`
	// Services are the requested ones; only node 0 has them.
	Services []ServiceStatus `json:"services,omitempty"`
}

// GPUFault is what is wrong with the GPUs that the node was given, "" if all can be used.
func (f Facts) GPUFault() string {
	if f.GPUProblem != "" {
		return "they cannot be read: " + f.GPUProblem
	}
	if len(f.GPUs) < f.GPUsExpected {
		text, separator := fmt.Sprintf("%d can be used, want %d", len(f.GPUs), f.GPUsExpected), "; there are"
		for _, gpu := range f.GPUs {
			text += fmt.Sprintf("%s %d (%s)", separator, gpu.Index, gpu.UUID)
			separator = ","
		}
		return text
	}
	for _, gpu := range f.GPUs {
		if gpu.Fault != "" {
			return fmt.Sprintf("GPU %d (%s): %s", gpu.Index, gpu.UUID, gpu.Fault)
		}
	}
	return ""
}

// Volume is a mounted claim as a node sees it.
type Volume struct {
	// ID is the same on all nodes that share the volume, "" if it cannot be written.
	ID string `json:"id,omitempty"`
	// Problem is the reason for an empty ID.
	Problem string `json:"problem,omitempty"`
	Size    Bytes  `json:"size"`
	Free    Bytes  `json:"free"`
}

// GPU is one that the container was given, or a MIG device of one.
type GPU struct {
	// Index is nvidia-smi's, which counts all GPUs that the container sees.
	Index int    `json:"index"`
	UUID  string `json:"uuid"`
	// PCI is the address as sysfs has it, empty if it is unknown.
	PCI    string `json:"pci,omitempty"`
	Model  string `json:"model"`
	Driver string `json:"driver"`
	// Compute is CUDA's compute capability, such as 9.0; an older driver does not show it.
	Compute string `json:"compute,omitempty"`
	// Memory and MemoryUsed of the GPU.
	Memory     Bytes `json:"memory"`
	MemoryUsed Bytes `json:"memoryUsed"`
	// Utilization in percent of time, 0 to 100.
	Utilization int `json:"utilization"`
	// Temperature in degrees Celsius.
	Temperature int `json:"temperature"`
	// Throttled lists the active slowdown reasons that are not idling or a set limit.
	Throttled []string `json:"throttled,omitempty"`
	// Fault describes a fault of the GPU, "" for none. It shows the consequences of an Xid; its number is only in the kernel's
	// log, which no container may read.
	Fault string `json:"fault,omitempty"`
}

// Resolution is the answer of POST /v1/resolve: what each name resolves to on
// the node, or why it does not.
type Resolution struct {
	Addresses map[string][]string `json:"addresses"`
	Problems  map[string]string   `json:"problems,omitempty"`
}

// TreePlan is the answer of POST /v1/trees/HASH with a tree.Manifest: the contents that the node misses.
type TreePlan struct {
	// Present is true if the node has the whole tree, verified.
	Present bool `json:"present"`
	// Missing lists contents by their SHA-256, each once.
	Missing []tree.Digest `json:"missing,omitempty"`
}

// Pull is the body of POST /v1/trees/HASH/pull.
type Pull struct {
	// From is the ordinal of a node that holds the tree.
	From int `json:"from"`
}

// TreeState is the answer of GET /v1/trees/HASH, of PUT /v1/trees/HASH/content, of the pull and of the switch.
type TreeState struct {
	Hash tree.Digest `json:"hash"`
	// Venv is the virtual environment of the current tree's jobs, "" for none.
	Venv string `json:"venv,omitempty"`
}

// Switch is the body of POST /v1/trees/HASH/switch.
type Switch struct {
	// Venv is the virtual environment that jobs of this tree use, "" for none.
	Venv string `json:"venv,omitempty"`
}

// Launcher is what the processes of a node are, and what starts them.
type Launcher string

// The launchers.
const (
	// DeepSpeed and Torchrun are ranks that the agent starts as the program of that name would.
	DeepSpeed Launcher = "deepspeed"
	Torchrun  Launcher = "torchrun"
	// Command runs the script once on every node.
	Command Launcher = "command"
	// DeepSpeedLauncher is python -m deepspeed.launcher.launch on every node.
	DeepSpeedLauncher Launcher = "deepspeed-launcher"
	// TorchrunLauncher is torchrun with a static rendezvous on every node.
	TorchrunLauncher Launcher = "torchrun-launcher"
)

// Check returns an error unless the launcher is one of them.
func (l Launcher) Check() error {
	switch l {
	case DeepSpeed, Torchrun, Command, DeepSpeedLauncher, TorchrunLauncher:
		return nil
	}
	hint := ""
	switch l {
	case "accelerate", "lightning", "fabric":
		hint = fmt.Sprintf("; %s reads the variables of torchrun", l)
	case "python", "bash", "none":
		hint = "; command starts the script once on every node"
	}
	return fmt.Errorf("%q: want deepspeed, torchrun, command, deepspeed-launcher or torchrun-launcher%s", string(l), hint)
}

// JobSpec is the body of PUT /v1/jobs/ID: the same for every node of the job.
type JobSpec struct {
	// Run is the job's name for users, the PipelineRun's.
	Run      string   `json:"run"`
	Launcher Launcher `json:"launcher"`
	// Script is a path in the tree, or absolute, or -m PACKAGE.MODULE. With launcher command it may be a program in PATH.
	Script string   `json:"script"`
	Args   []string `json:"args,omitempty"`
	// Tree is what the job's working directory is a view of: pinned, whatever a later sync brings. Without a tree the job runs in
	// /workspace.
	Tree tree.Digest `json:"tree,omitempty"`
	// Nodes the job runs on: the first of the environment.
	Nodes        int `json:"nodes"`
	RanksPerNode int `json:"ranksPerNode"`
	// Order are the nodes in the order of their ranks, so that neighbours in a ring can
	// be neighbours on the network. Empty is the order of the ordinals; node 0, the
	// master, is always first.
	Order []int `json:"order,omitempty"`
	// MasterPort is MasterPort unless it is set.
	MasterPort int               `json:"masterPort,omitempty"`
	Env        map[string]string `json:"env,omitempty"`
	// SecretEnv is set for the ranks and never recorded.
	SecretEnv map[string]string `json:"secretEnv,omitempty"`
	// Deadline is when the agent stops the job; zero means never.
	Deadline time.Time `json:"deadline,omitzero"`
	// DebugRank is the rank that waits for a debugger, nil for none.
	DebugRank *int `json:"debugRank,omitempty"`
	// Grace is the time between SIGTERM and SIGKILL, in nanoseconds; 0 means 10 s.
	Grace time.Duration `json:"grace,omitempty"`
	// Attempts are the earlier attempts of the job, which have failed, oldest first.
	Attempts []Attempt `json:"attempts,omitempty"`
	// Checkpoint is the name of the one in CheckpointFolder to resume from, "" if none is complete, and nil if there is none or it is
	// not known. If CheckpointJob is set, it is in the working directory of that job instead.
	Checkpoint    *string `json:"checkpoint,omitempty"`
	CheckpointJob string  `json:"checkpointJob,omitempty"`
}

// Attempt is one start of a job on all its nodes, and how it ended.
type Attempt struct {
	// Attempt is its number, from 1.
	Attempt int       `json:"attempt"`
	Started time.Time `json:"started,omitzero"`
	Ended   time.Time `json:"ended,omitzero"`
	// Reason and Message are those that a training of this one attempt would have ended with; both are "" for success.
	Reason  fail.Reason `json:"reason,omitempty"`
	Message string      `json:"message,omitempty"`
	// Symptom is the error without the rank, the node and times: attempts that fail alike have the same one.
	Symptom string `json:"symptom,omitempty"`
	// Node and Rank are the culprits, nil if they are not known.
	Node *int `json:"node,omitempty"`
	Rank *int `json:"rank,omitempty"`
	// LeftOut are the Kubernetes nodes that later attempts do not use because of a fault that showed after this one.
	LeftOut []string `json:"leftOut,omitempty"`
	// First and Last are the first and the last step in its metrics, nil without metrics.
	First *float64 `json:"firstStep,omitempty"`
	Last  *float64 `json:"lastStep,omitempty"`
	// Checkpoint is the name of the one that it could resume from, "" for none.
	Checkpoint string `json:"checkpoint,omitempty"`
}

// AttemptOf is the attempt of a job from its first start to its last end on a node, without a reason.
func AttemptOf(spec JobSpec, statuses []JobStatus) Attempt {
	a := Attempt{Attempt: spec.Attempt()}
	if spec.Checkpoint != nil {
		a.Checkpoint = *spec.Checkpoint
	}
	for _, status := range statuses {
		if !status.Started.IsZero() && (a.Started.IsZero() || status.Started.Before(a.Started)) {
			a.Started = status.Started
		}
		if status.Ended.After(a.Ended) {
			a.Ended = status.Ended
		}
	}
	return a
}

// Attempt is the number of this attempt, from 1.
func (s JobSpec) Attempt() int { return len(s.Attempts) + 1 }

// AttemptFolder is the folder of an attempt's record in that of its job: "" for the first one, which most jobs have alone.
func AttemptFolder(attempt int) string {
	if attempt <= 1 {
		return ""
	}
	return fmt.Sprintf("attempt-%d", attempt)
}

// Position is the place of a node's ranks among those of all nodes, from 0.
func (s JobSpec) Position(node int) int {
	if len(s.Order) == 0 {
		return node
	}
	return slices.Index(s.Order, node)
}

// Ranks are the consecutive ranks of a node. With launcher command the one process of a node counts as its rank.
func (s JobSpec) Ranks(node int) (ranks []int) {
	perNode := s.RanksOfNode()
	for local := range perNode {
		ranks = append(ranks, s.Position(node)*perNode+local)
	}
	return ranks
}

// RanksOfNode is the number of processes of each node.
func (s JobSpec) RanksOfNode() int {
	if s.Launcher == Command {
		return 1
	}
	return s.RanksPerNode
}

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
	// Work is the job's working directory, "" for a job without a tree. After the job it has only what the job wrote.
	Work    string    `json:"work,omitempty"`
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended,omitzero"`
	// Launcher is how the launcher itself ended.
	Launcher Exit `json:"launcher"`
	// Stopping is when the agent was asked to stop the job.
	Stopping time.Time `json:"stopping,omitzero"`
	// StopCause and StopReason are those of the request that stopped the job.
	StopCause  StopCause    `json:"stopCause,omitempty"`
	StopReason string       `json:"stopReason,omitempty"`
	Ranks      []RankStatus `json:"ranks"`
	// NCCL is what the logs of the node's ranks show, without channels; nil without logs, as with gloo.
	NCCL *nccl.Summary `json:"nccl,omitempty"`
	// Collectives are the last ones of ranks, by rank, by the dumps that torch wrote until the end of the job.
	Collectives map[int][]Collective `json:"collectives,omitempty"`
	// Alone is true if the job has several ranks and has ended, and none of this node was seen with a connection to another one.
	Alone bool `json:"alone,omitempty"`
	// Quiet is how long neither a log of the node's ranks nor the metrics have grown. Only the answer to GET /v1/jobs/ID of a
	// running job has it, and a stopped job: then it is the time until the request to stop.
	Quiet time.Duration `json:"quiet,omitempty"`
	// RankSeconds is how long each rank took for its own part of a step, in their order, by the latest metrics that have it.
	// Only node 0 has it, in the same answer as Quiet, if the training writes it.
	RankSeconds []float64 `json:"rankSeconds,omitempty"`
	// New is true only in the answer to the request that started the job.
	New bool `json:"new,omitempty"`
}

// NCCLOf is what the logs of all nodes show together, and whether there are any. Findings include ranks on a slower transport
// than wanted, and ranks whose NCCL shows other settings than their environment. environments are those of the nodes' ranks, by
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

// WantedTransport is the slowest acceptable transport between nodes in a mode.
func WantedTransport(mode Mode, nodes int) nccl.Transport {
	if mode == RDMA && nodes > 1 {
		return nccl.RDMAGPU
	}
	return nccl.Unknown
}

// Exit is how a process ended.
type Exit struct {
	// Code is its exit code, -1 if a signal ended it or it lives.
	Code int `json:"code"`
	// Signal as in SIGKILL, "" for none.
	Signal string `json:"signal,omitempty"`
	// OutOfMemory is true if the kernel killed it for memory.
	OutOfMemory bool `json:"outOfMemory,omitempty"`
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
	// Stopped is true if a signal of the agent ended it.
	Stopped bool `json:"stopped,omitempty"`
	// Quiet is how long the log of a live rank has not grown. It comes with that of the job.
	Quiet time.Duration `json:"quiet,omitempty"`
	// Rendezvous is how far a live rank is on its way to the job's rendezvous, or whether an ended one was seen there. It comes
	// with the same.
	Rendezvous Rendezvous `json:"rendezvous,omitempty"`
	// Tail are its last lines of output.
	Tail []string `json:"tail,omitempty"`
	// Python is the last uncaught error that it printed.
	Python *PythonError `json:"python,omitempty"`
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

// PythonError is the end of a Python traceback.
type PythonError struct {
	// Seen is when its first line was printed.
	Seen    time.Time `json:"seen"`
	Type    string    `json:"type"`
	Message string    `json:"message"`
	// First is the type and message of the error with which the chain of exceptions began that this one ended, "" if it is the only one.
	First string `json:"first,omitempty"`
	// File and Line are those of the innermost frame in the tree, else of the innermost one.
	File      string   `json:"file,omitempty"`
	Line      int      `json:"line,omitempty"`
	Traceback []string `json:"traceback,omitempty"`
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
	// StopHang: it hung. Ranks whose stacks py-spy could not read end by SIGABRT, at which Python's faulthandler prints them.
	StopHang StopCause = "hang"
)

// Stop is the body of POST /v1/jobs/ID/stop.
type Stop struct {
	Cause StopCause `json:"cause,omitempty"`
	// Reason is a sentence for users.
	Reason string        `json:"reason"`
	Grace  time.Duration `json:"grace,omitempty"`
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
// folder is that of the job of the same id, before or after its start.
const (
	// FabricReport is the report of check-fabric, JSON.
	FabricReport = "fabric.json"
	// MaxRecordFile bounds a file, in bytes.
	MaxRecordFile = 1 << 20
)

// Problem is the body of every answer other than 2xx.
type Problem struct {
	Reason  fail.Reason `json:"reason"`
	Message string      `json:"message"`
	Next    string      `json:"next,omitempty"`
}

// Mode is how the nodes of an environment talk to each other.
type Mode string

// The modes.
const (
	// TCP works everywhere and needs no permission.
	TCP Mode = "tcp"
	// RDMA needs devices, and a security context that may pin memory.
	RDMA Mode = "rdma"
	// Auto is RDMA if the nodes can use it, else TCP. It is decided before any rank starts.
	Auto Mode = "auto"
)

// Network configures the network of a node's processes: the body of PUT /v1/network. It applies to everything that the agent
// starts from then on, shells too, and survives a restart of the container.
type Network struct {
	// Mode is TCP or RDMA.
	Mode Mode `json:"mode"`
	// Rack of the node, "" if unknown.
	Rack string `json:"rack,omitempty"`
	// Set are variables that overrule the container's own, because an image may have wrong ones; Unset are variables to remove.
	// A job's own variables overrule both.
	Set   map[string]string `json:"set,omitempty"`
	Unset []string          `json:"unset,omitempty"`
	// CPUs are the processors near each GPU of the node, as the kernel lists them; an unknown list is empty. The agent sets them.
	CPUs []string `json:"cpus,omitempty"`
	// Expected and Forced are the inputs from which Set was derived.
	Expected rdma.Expected     `json:"expected"`
	Forced   map[string]string `json:"forced,omitempty"`
}

var variableName = regexp.MustCompile(`^[A-Z_][A-Z0-9_]*$`)

// Validate returns the first problem of n, nil for none.
func (n Network) Validate() error {
	if n.Mode != TCP && n.Mode != RDMA {
		return fmt.Errorf("mode %q: want tcp or rdma", n.Mode)
	}
	for _, name := range slices.Concat(slices.Sorted(maps.Keys(n.Set)), n.Unset) {
		if !variableName.MatchString(name) {
			return fmt.Errorf("variable %q: want capital letters, digits and underscores", name)
		}
	}
	return nil
}

// FileListing is what mlenv-agent files list prints, JSON.
type FileListing struct {
	Manifest tree.Manifest `json:"manifest"`
	Looked
}

// Looked is what a listing has besides the files.
type Looked struct {
	// Absent are the paths that do not exist.
	Absent []string `json:"absent,omitempty"`
	// Near has the names in the innermost folder that exists on the way to an absent path, by that path. Their number is bounded.
	Near map[string]Near `json:"near,omitempty"`
	// LeftOut are special files, and links that lead out of the working directory of a job.
	LeftOut []string `json:"leftOut,omitempty"`
}

// Near is a folder, and the names in it.
type Near struct {
	Folder string   `json:"folder"`
	Names  []string `json:"names,omitempty"`
}

// PageRequest is the input of mlenv-agent files page, JSON.
type PageRequest struct {
	Paths []string    `json:"paths"`
	From  tree.Cursor `json:"from"`
	// Seconds is how long the answer may take, about.
	Seconds float64 `json:"seconds"`
}

// FilePage is what mlenv-agent files page prints, JSON.
type FilePage struct {
	tree.Page
	Looked
}

// FileRequest is the input of mlenv-agent files send, JSON. Its output is that of tree.WriteRest.
type FileRequest struct {
	Manifest tree.Manifest `json:"manifest"`
	Missing  []tree.Digest `json:"missing"`
	// From is how much of a content the reader has already, in bytes.
	From map[tree.Digest]int64 `json:"from,omitempty"`
}

// UploadRequest is the input of mlenv-agent files parts, JSON, and the first line of that of mlenv-agent files continue. In the latter
// the contents follow, as tree.WriteRest sends them.
type UploadRequest struct {
	// Manifest has missing files only. That of parts may lack small ones, that of continue also has links and empty folders.
	Manifest tree.Manifest `json:"manifest"`
	// Parts are what the folder is known to have of the contents.
	Parts map[tree.Digest]tree.Part `json:"parts,omitempty"`
	// Seconds is how long the answer of parts may take, about.
	Seconds float64 `json:"seconds,omitempty"`
}

// UploadParts is what mlenv-agent files parts prints, JSON.
type UploadParts struct {
	Parts map[tree.Digest]tree.Part `json:"parts"`
	// All is false if there is more to read of the parts.
	All bool `json:"all"`
}

// UploadResult is what mlenv-agent files continue prints, JSON.
type UploadResult struct {
	// Damaged is a content that came with another SHA-256, "" for none. Its part is deleted, and what follows it has not come.
	Damaged tree.Digest `json:"damaged,omitempty"`
}

// Download is one file for mlenv-agent files download, which reads a list of them, JSON.
type Download struct {
	URL string `json:"url"`
	// Path in the folder.
	Path string `json:"path"`
	// Content is the SHA-256 that it must have, "" for any.
	Content tree.Digest `json:"content,omitempty"`
}
