// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/metrics"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// World is a group of ranks, as their environment describes it.
type World struct {
	// Master and Port are where the ranks meet; port 0 means MasterPort.
	Master string
	Port   int
	Nodes  int
	// RanksPerNode is the number of GPUs of a node unless the job sets another one.
	RanksPerNode int
}

// Variables returns the variables that are the same on all nodes. NODE_RANK is each node's own.
func (w World) Variables() map[string]string {
	return map[string]string{
		"MASTER_ADDR": w.Master,
		"MASTER_PORT": strconv.Itoa(cmp.Or(w.Port, MasterPort)),
		"NUM_NODES":   strconv.Itoa(w.Nodes),
		"WORLD_SIZE":  strconv.Itoa(w.Nodes * w.RanksPerNode),
	}
}

// Launcher is what the processes of a node are, and what starts them.
type Launcher string

// The launchers.
const (
	// AutoLauncher is DeepSpeed for a script that asks for it, else Torchrun. The step train decides; no job has it.
	AutoLauncher Launcher = "auto"
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
	case AutoLauncher, DeepSpeed, Torchrun, Command, DeepSpeedLauncher, TorchrunLauncher:
		return nil
	}
	hint := ""
	switch l {
	case "accelerate", "lightning", "fabric":
		hint = fmt.Sprintf("; %s reads the variables of torchrun", l)
	case "python", "bash", "none":
		hint = "; command starts the script once on every node"
	}
	return fmt.Errorf("%q: want auto, deepspeed, torchrun, command, deepspeed-launcher or torchrun-launcher%s", string(l), hint)
}

// JobSpec is the body of PUT /v1/jobs/ID. Every node of a training gets the same.
type JobSpec struct {
	// Run is the job's name for users, the PipelineRun's.
	Run      string   `json:"run"`
	Launcher Launcher `json:"launcher"`
	// LauncherWhy is why AutoLauncher became this one, "" for one that was named.
	LauncherWhy string `json:"launcherWhy,omitempty"`
	// NoLocalRank is for ranks of DeepSpeed whose script does not take --local_rank.
	NoLocalRank bool `json:"noLocalRank,omitempty"`
	// NoHook leaves the Pythons of the job alone, see package pylib.
	NoHook bool `json:"noHook,omitempty"`
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
	// MasterPort is where the ranks meet, on node 0; 0 means the constant MasterPort.
	MasterPort int               `json:"masterPort,omitempty"`
	Env        map[string]string `json:"env,omitempty"`
	// SecretEnv is set for the ranks and never recorded.
	SecretEnv map[string]string `json:"secretEnv,omitempty"`
	// Deadline is when the agent stops the job; zero means never.
	Deadline time.Time `json:"deadline,omitzero"`
	// DebugRank is the rank that waits for a debugger, nil for none.
	DebugRank *int `json:"debugRank,omitempty"`
	// Grace is the time between SIGTERM and SIGKILL, in nanoseconds; 0 means the environment's.
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
	// Doubt is since when its checkpoints may be as bad as its loss, zero for never, and DoubtEnd when the last of them was written. No
	// later attempt resumes from them.
	Doubt    time.Time `json:"doubt,omitzero"`
	DoubtEnd time.Time `json:"doubtEnd,omitzero"`
	// StepTimes has the times of its steps in a few points, nil without metrics.
	StepTimes *metrics.Curve `json:"course,omitempty"`
	// Hang is the silence for which it counted as hanging, nil for none.
	Hang *Hang `json:"hang,omitempty"`
}

// Hang is a silence of all ranks that ended an attempt.
type Hang struct {
	// Since is when the last rank printed or measured anything, and Named when the attempt counted as hanging.
	Since time.Time `json:"since"`
	Named time.Time `json:"named"`
}

// AttemptOf returns the attempt of a job from its first start to its last end on a node, without a reason.
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

// Attempt returns the number of this attempt, from 1.
func (s JobSpec) Attempt() int { return len(s.Attempts) + 1 }

// AttemptFolder returns the name of the folder for an attempt's record in the folder of the job's: "" for the first attempt, because
// most jobs have no other.
func AttemptFolder(attempt int) string {
	if attempt <= 1 {
		return ""
	}
	return fmt.Sprintf("attempt-%d", attempt)
}

// Position returns the place of a node in the order of the ranks, from 0.
func (s JobSpec) Position(node int) int {
	if len(s.Order) == 0 {
		return node
	}
	return slices.Index(s.Order, node)
}

// Ranks returns the consecutive ranks of a node. With launcher command the one process of a node counts as its rank.
func (s JobSpec) Ranks(node int) (ranks []int) {
	perNode := s.RanksOfNode()
	for local := range perNode {
		ranks = append(ranks, s.Position(node)*perNode+local)
	}
	return ranks
}

// RanksOfNode returns the number of processes of each node.
func (s JobSpec) RanksOfNode() int {
	if s.Launcher == Command {
		return 1
	}
	return s.RanksPerNode
}
