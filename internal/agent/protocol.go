// SPDX-License-Identifier: Apache-2.0

// Package agent is the protocol between the steps and the process that is PID 1
// of every node, and its client. The server is in internal/agent/server.
package agent

import (
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// Protocol is the version of the protocol. A client refuses an agent of any other version, which Health and Facts report.
const Protocol = 1

// Port is where an agent listens, on the pod's address and on loopback.
const Port = 7443

// MetricsPath is where Prometheus reads the metrics of an agent, on Port.
const MetricsPath = "/metrics"

// MasterPort is the port of the ranks' rendezvous.
const MasterPort = 29500

// ResumeVariable is set for the ranks of a run that resumes another one. It names the first run of the series, which owns
// the folder of checkpoints.
const ResumeVariable = "MLENV_RESUME_FROM"

// CUDADevices is CUDA's variable for the GPUs that a process may use. The agent sets it, by UUIDs, in a pod that sees more GPUs
// than it was given.
const CUDADevices = "CUDA_VISIBLE_DEVICES"

// OwnGPUs has the UUIDs of the pod's GPUs for SMI, even where a rank may use only some of them.
const OwnGPUs = "MLENV_GPUS"

// SMI is the name of NVIDIA's program, and by which mlenv-agent takes its place in a pod that sees more GPUs than it was given.
const SMI = "nvidia-smi"

// DebugPort is where a rank waits for its debugger, on loopback alone, because debugpy accepts every connection.
const DebugPort = 5678

// DefaultName is the environment of a request that names none.
const DefaultName = "ml-dev-env"

// SharesClaims reports whether an environment mounts the claims of the default environment: NAME of ml-dev-env-NAME has
// nodes of its own, and the checkpoints and datasets of all.
func SharesClaims(name string) bool { return strings.HasPrefix(name, DefaultName+"-") }

// SharesWorkspaceVariable is "true" in nodes of an environment that mounts the workspace of others because the cluster file names it.
const SharesWorkspaceVariable = "MLENV_SHARES_WORKSPACE"

// NodeCachesVariable is "true" in nodes whose caches are on their own disks, as storage.caches of the cluster file decides.
const NodeCachesVariable = "MLENV_NODE_CACHES"

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
	// StepsProgram is the program of the steps image, where ko puts it. With the argument agent it becomes the agent.
	StepsProgram = "/ko-app/steps"
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
	// Work is where the working directory of each job lies, under the job's id.
	Work = Workspace + "/" + WorkFolder
	// Runs is where the record of each job lies, under the job's id.
	Runs = State + "/runs"
	// Current is the stable path of the synced tree: a link that sync switches.
	Current = Workspace + "/repo"
)

// Bytes is an amount of memory or storage.
type Bytes int64

// Problem is the body of every answer other than 2xx.
type Problem struct {
	Reason  fail.Reason `json:"reason"`
	Message string      `json:"message"`
	Next    string      `json:"next,omitempty"`
}
