// Package agent is the protocol between the steps and the process that is PID 1
// of every node, and its client. The server is in internal/agent/server.
package agent

import (
	"maps"
	"slices"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/rdma/nccl"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// Protocol is the version of what is said over the wire. Client and server of
// another major version do not talk.
const Protocol = 1

// Port is where an agent listens, on the pod's address and on loopback.
const Port = 7443

// MasterPort is where the ranks meet.
const MasterPort = 29500

// DebugPort is where a rank waits for its debugger, on loopback alone: debugpy lets
// everybody in who can connect.
const DebugPort = 5678

// Paths in a node.
const (
	// Workspace is where the workspace claim is mounted.
	Workspace = "/workspace"
	// Datasets is where the datasets claim is mounted.
	Datasets = "/datasets"
	// Home holds the agent's program, its socket and its certificates.
	Home = "/mlenv"
	// Program is the agent's program, copied there by the init container.
	Program = Home + "/bin/mlenv-agent"
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
	// Instance is another one after every start of the container.
	Instance string `json:"instance"`
}

// Arrival is the line that an agent prints which is a guest in somebody else's container.
type Arrival struct {
	// Port on loopback at which it answers.
	Port    int    `json:"port"`
	Version string `json:"version"`
}

// Facts is the answer of GET /v1/facts: what the node is and has.
type Facts struct {
	Health
	Started time.Time `json:"started"`
	// Node is the ordinal of the node in its environment.
	Node int `json:"node"`
	// Pod and KubernetesNode are names.
	Pod            string `json:"pod"`
	KubernetesNode string `json:"kubernetesNode"`
	GPUs           []GPU  `json:"gpus"`
	// GPUsExpected is how many GPUs the node was given.
	GPUsExpected int `json:"gpusExpected"`
	// GPUProblem says why GPUs could not be read, "" if they could.
	GPUProblem string `json:"gpuProblem,omitempty"`
	CPUs       int    `json:"cpus"`
	// MemoryLimit is the container's, 0 where there is none.
	MemoryLimit Bytes `json:"memoryLimit"`
	// MemoryUsed is what the container uses now.
	MemoryUsed Bytes `json:"memoryUsed"`
	// MemoryCache is what of MemoryUsed the kernel gives up first: contents of files that
	// nobody has read for a while.
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
	// MemlockLimit is the hard RLIMIT_MEMLOCK, -1 without limit.
	MemlockLimit Bytes `json:"memlockLimit"`
	// Environment is what the agent sets for every job and shell.
	Environment map[string]string `json:"environment"`
	// Network is what was last set by PUT /v1/network, nil where nothing was.
	Network *Network `json:"network,omitempty"`
	// Jobs that are not over.
	Running []string `json:"running,omitempty"`
	// Services are those that are asked for; node 0 alone has them.
	Services []ServiceStatus `json:"services,omitempty"`
}

// Volume is a mounted claim as a node sees it.
type Volume struct {
	// ID is the same on all nodes that share the volume, "" where it cannot be written.
	ID string `json:"id,omitempty"`
	// Problem says why ID is empty.
	Problem string `json:"problem,omitempty"`
	Size    Bytes  `json:"size"`
	Free    Bytes  `json:"free"`
}

// GPU is one that processes of the container can use.
type GPU struct {
	Index  int    `json:"index"`
	UUID   string `json:"uuid"`
	Model  string `json:"model"`
	Driver string `json:"driver"`
	// Memory and MemoryUsed of the GPU.
	Memory     Bytes `json:"memory"`
	MemoryUsed Bytes `json:"memoryUsed"`
	// Utilization in percent of time, 0 to 100.
	Utilization int `json:"utilization"`
	// Temperature in degrees Celsius.
	Temperature int `json:"temperature"`
	// Throttled lists the active slowdown reasons that are not idling or a set limit.
	Throttled []string `json:"throttled,omitempty"`
	// Fault says in words what is wrong with the GPU, "" if nothing is. The number of an
	// Xid is in the kernel's log alone, which no container may read; its consequences are here.
	Fault string `json:"fault,omitempty"`
}

// Resolution is the answer of POST /v1/resolve: what each name resolves to on
// the node, or why it does not.
type Resolution struct {
	Addresses map[string][]string `json:"addresses"`
	Problems  map[string]string   `json:"problems,omitempty"`
}

// TreePlan is the answer of POST /v1/trees/HASH with a tree.Manifest: what of
// the content the node does not have.
type TreePlan struct {
	// Present is true where the whole tree lies there already, verified.
	Present bool `json:"present"`
	// Missing lists contents by their SHA-256, each once, in the order in which PUT must send them.
	Missing []tree.Digest `json:"missing,omitempty"`
}

// TreeState is the answer of PUT /v1/trees/HASH/content and of the switch.
type TreeState struct {
	Hash  tree.Digest `json:"hash"`
	Files int         `json:"files"`
	Bytes Bytes       `json:"bytes"`
	// Path is where the tree lies on the node.
	Path string `json:"path"`
	// Previous is the tree that was current before a switch, "" for none.
	Previous tree.Digest `json:"previous,omitempty"`
	// Venv is the virtual environment of the current tree's jobs, "" for none.
	Venv string `json:"venv,omitempty"`
}

// Switch is the body of POST /v1/trees/HASH/switch.
type Switch struct {
	// Venv is the virtual environment that jobs of this tree use, "" for none.
	Venv string `json:"venv,omitempty"`
}

// Launcher starts the ranks of a node.
type Launcher string

// The launchers.
const (
	// DeepSpeed is python -m deepspeed.launcher.launch on every node.
	DeepSpeed Launcher = "deepspeed"
	// Torchrun is torchrun with a static rendezvous on every node.
	Torchrun Launcher = "torchrun"
	// Command runs the script once on every node.
	Command Launcher = "command"
)

// JobSpec is the body of PUT /v1/jobs/ID: the same for every node of the job.
type JobSpec struct {
	// Run names the job for people, as the PipelineRun's name does.
	Run      string   `json:"run"`
	Launcher Launcher `json:"launcher"`
	// Script is a path in the tree, or absolute. Of launcher command it may be a program in PATH.
	Script string   `json:"script"`
	Args   []string `json:"args,omitempty"`
	// Tree is what the job runs in: pinned, whatever is synced later. Empty is /workspace.
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
	// Deadline is when the agent stops the job by itself; zero for never.
	Deadline time.Time `json:"deadline,omitzero"`
	// DebugRank is the rank that waits for a debugger, none where it is nil.
	DebugRank *int `json:"debugRank,omitempty"`
	// Grace is what a rank has between SIGTERM and SIGKILL, in nanoseconds; 0 means 10 s.
	Grace time.Duration `json:"grace,omitempty"`
}

// Position is where the ranks of a node come among those of all nodes, from 0.
func (s JobSpec) Position(node int) int {
	if len(s.Order) == 0 {
		return node
	}
	return slices.Index(s.Order, node)
}

// Ranks are those of a node. They follow each other. Of launcher command there is one
// process a node, counted as its rank.
func (s JobSpec) Ranks(node int) (ranks []int) {
	perNode := s.RanksOfNode()
	for local := range perNode {
		ranks = append(ranks, s.Position(node)*perNode+local)
	}
	return ranks
}

// RanksOfNode is how many processes each node has.
func (s JobSpec) RanksOfNode() int {
	if s.Launcher == Command {
		return 1
	}
	return s.RanksPerNode
}

// JobState is where a job is.
type JobState string

// The job states.
const (
	// Running: some process of the job lives.
	Running JobState = "running"
	// Exited: all processes have ended by themselves.
	Exited JobState = "exited"
	// Stopped: ended by us; StopReason says why.
	Stopped JobState = "stopped"
	// Restarted: the container was restarted under the job. It is not started again.
	Restarted JobState = "container-restarted"
)

// JobStatus is one node's part of a job: the answer of GET /v1/jobs/ID, and one
// line of GET /v1/jobs/ID/watch, which sends another whenever something changed
// and ends with the job.
type JobStatus struct {
	ID    string   `json:"id"`
	Node  int      `json:"node"`
	State JobState `json:"state"`
	Spec  JobSpec  `json:"spec"`
	// Record is the folder of logs, metrics and status.
	Record  string    `json:"record"`
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended,omitzero"`
	// Launcher is how the launcher itself ended.
	Launcher Exit `json:"launcher"`
	// StopReason is of a stopped job: deadline, or the words of the stop request.
	StopReason string       `json:"stopReason,omitempty"`
	Ranks      []RankStatus `json:"ranks"`
	// NCCL is what the logs of the node's ranks show, without channels; nil where
	// there is none, as with gloo.
	NCCL *nccl.Summary `json:"nccl,omitempty"`
	// Quiet is for how long nothing has come to the logs of the node's ranks, nor to the
	// metrics. It is in the answer to GET /v1/jobs/ID of a job that runs, and nowhere else.
	Quiet time.Duration `json:"quiet,omitempty"`
	// RankSeconds is what each rank took for its own part of a step, in their order, as the last
	// metrics that have it say; nil on other nodes than 0 and where a training does not write
	// it. It is in the same answer as Quiet.
	RankSeconds []float64 `json:"rankSeconds,omitempty"`
	// New is true in the answer to the request that started the job, and nowhere else.
	New bool `json:"new,omitempty"`
}

// NCCLOf is what the logs of all nodes show together, and whether there are any. Ranks
// that are on a slower transport than the wanted one, or on which NCCL shows other
// settings than they were given, are among the findings. environments are what nodes
// give their ranks, by the node; those of a node that is missing are not compared.
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

// WantedTransport is the slowest that is right for the ranks of several nodes in a mode.
func WantedTransport(mode string, nodes int) nccl.Transport {
	if mode == RDMA && nodes > 1 {
		return nccl.RDMAGPU
	}
	return nccl.Unknown
}

// Exit is how a process ended.
type Exit struct {
	// Code is its exit code, -1 when a signal ended it or it lives.
	Code int `json:"code"`
	// Signal as in SIGKILL, "" for none.
	Signal string `json:"signal,omitempty"`
	// OutOfMemory is true where the kernel killed it for memory.
	OutOfMemory bool `json:"outOfMemory,omitempty"`
	// Error is why it could not be started.
	Error string `json:"error,omitempty"`
}

// RankStatus is one training process. Of launcher command it is the node's one.
type RankStatus struct {
	// Rank is global, 0 to the world size less one.
	Rank      int       `json:"rank"`
	LocalRank int       `json:"localRank"`
	Node      int       `json:"node"`
	PID       int       `json:"pid"`
	Started   time.Time `json:"started"`
	// DebugPort is where it waits for a debugger, 0 where it does not.
	DebugPort int `json:"debugPort,omitempty"`
	// Ended is zero while the rank lives.
	Ended time.Time `json:"ended,omitzero"`
	Exit  Exit      `json:"exit"`
	// Stopped is true where our own signal ended it.
	Stopped bool `json:"stopped,omitempty"`
	// Tail are its last lines of output.
	Tail []string `json:"tail,omitempty"`
	// Python is the last uncaught error that it printed.
	Python *PythonError `json:"python,omitempty"`
}

// PythonError is the end of a Python traceback.
type PythonError struct {
	// Seen is when its first line was printed.
	Seen    time.Time `json:"seen"`
	Type    string    `json:"type"`
	Message string    `json:"message"`
	// File and Line are of the innermost frame that is in the tree, else of the innermost.
	File      string   `json:"file,omitempty"`
	Line      int      `json:"line,omitempty"`
	Traceback []string `json:"traceback,omitempty"`
}

// Stop is the body of POST /v1/jobs/ID/stop.
type Stop struct {
	Reason string        `json:"reason"`
	Grace  time.Duration `json:"grace,omitempty"`
}

// The logs of a job, for GET /v1/jobs/ID/logs/NAME?offset=N&follow=true.
const (
	// LauncherLog is what the launcher itself printed.
	LauncherLog = "launcher"
	// MetricsLog is the training's own metrics, JSON lines; node 0 has it.
	MetricsLog = "metrics"
	// RankLog is followed by the rank, as in rank-3.
	RankLog = "rank-"
)

// What a step may add to the record of a run, for GET and PUT /v1/records/ID/NAME. The
// folder is that of the job of the same id, which need not have begun.
const (
	// FabricReport is what check-fabric found, JSON.
	FabricReport = "fabric.json"
	// MaxRecordFile is how large one may be, in bytes.
	MaxRecordFile = 1 << 20
)

// Problem is the body of every answer that is not 2xx.
type Problem struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
	Next    string `json:"next,omitempty"`
}
