// SPDX-License-Identifier: Apache-2.0

// Package receipt stores the summary of a run in a ConfigMap that outlives the environment and the run.
package receipt

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cause"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/fabric"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/metrics"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/nccl"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
	"github.com/ml-dev-env/ml-dev-env/internal/source/git"
)

// Verdict is how a run ended.
type Verdict string

// The verdicts.
const (
	Succeeded Verdict = "Succeeded"
	Failed    Verdict = "Failed"
)

// Folder is the repository of a run that trained from a user's folder.
const Folder = "folder"

// RepositoryOf returns the URL of a task as receipts show it: without secrets, and without a folder's hash.
func RepositoryOf(url string) string {
	if git.IsFolder(url) {
		return Folder
	}
	return git.WithoutUser(url)
}

// Receipt is documented in docs/reference/receipt.md.
type Receipt struct {
	Run    string `json:"run"`
	RunUID string `json:"runUID,omitempty"`
	// Namespace is empty for a local run.
	Namespace   string `json:"namespace"`
	Environment string `json:"environment"`
	// Schedule is the schedule that started the run, "" for none.
	Schedule string `json:"schedule,omitempty"`
	// User is the user who started the run with mlenv, "" if that is not known.
	User    string      `json:"user,omitempty"`
	Verdict Verdict     `json:"verdict"`
	Reason  fail.Reason `json:"reason,omitempty"`
	Message string      `json:"message,omitempty"`
	// Regression is what a scheduled run was worse in than earlier ones, "" for nothing.
	Regression string    `json:"regression,omitempty"`
	Started    time.Time `json:"started,omitzero"`
	Ended      time.Time `json:"ended,omitzero"`
	// Repository is a URL without credentials, or Folder.
	Repository string `json:"repository,omitempty"`
	Commit     string `json:"commit,omitempty"`
	Tree       string `json:"tree,omitempty"`
	// Image is by digest if the digest is known.
	Image string     `json:"image,omitempty"`
	Mode  agent.Mode `json:"mode,omitempty"`
	// ModeReason is the reason for the mode, as preflight or provision decided it.
	ModeReason string              `json:"modeReason,omitempty"`
	Storage    cluster.StorageMode `json:"storage,omitempty"`
	// Constraint is the security context constraint that admitted the nodes' pods.
	Constraint string `json:"constraint,omitempty"`
	// Training is nil if nothing was launched.
	Training *Training `json:"training,omitempty"`
	Phases   []Phase   `json:"phases,omitempty"`
	Nodes    []Node    `json:"nodes,omitempty"`
	// GPUs are those that the run held, nil if it got no environment.
	GPUs  *GPUs  `json:"gpus,omitempty"`
	Ranks []Rank `json:"ranks,omitempty"`
	// ExcludedNodes are Kubernetes nodes that the environment did not use at the end, by exclude-nodes or after a restart.
	ExcludedNodes []string `json:"excludedNodes,omitempty"`
	// Attempts are all attempts of the training, oldest first; empty if there was one.
	Attempts []agent.Attempt `json:"attempts,omitempty"`
	// Hang is the silence that ended the last attempt, nil for none.
	Hang *agent.Hang `json:"hang,omitempty"`
	// Goodput is what the minutes of the run became.
	Goodput *Goodput `json:"goodput,omitempty"`
	// NCCL are the NCCL variables of node 0. Names of devices may differ on other nodes.
	NCCL map[string]string `json:"nccl,omitempty"`
	// Warning is what users should know of a training that succeeded, such as that its ranks never met; "" for nothing.
	Warning string `json:"warning,omitempty"`
	// Network is what NCCL logged in the training, without its processes; nil for nothing.
	Network *nccl.Summary `json:"network,omitempty"`
	// Fabric is the report of check-fabric, nil if it did not run.
	Fabric *fabric.Report `json:"fabric,omitempty"`
	// Metrics are the last values that the training wrote.
	Metrics json.RawMessage `json:"metrics,omitempty"`
	// Cause is the rank whose own error came first.
	Cause *cause.Culprit `json:"cause,omitempty"`
	// Record is where logs, metrics and status lie.
	Record *Record `json:"record,omitempty"`
	// Checkpoint is the newest complete checkpoint that was found during the training, a path on the workspace; "" for none.
	Checkpoint string `json:"checkpoint,omitempty"`
	// Teardown is what was released, and what was not.
	Teardown string `json:"teardown,omitempty"`
	// Curve is nil if the training wrote no metrics.
	Curve *metrics.Curve `json:"curve,omitempty"`
	// LeftOut names what does not fit, for example "4095 healthy ranks"; empty if nothing is missing.
	LeftOut []string `json:"leftOut,omitempty"`
}

// DisplayName names the run, with its namespace.
func (r Receipt) DisplayName() string {
	if r.Namespace == "" {
		return r.Run + " (local)"
	}
	return r.Namespace + "/" + r.Run
}

// WarningClause returns what follows the word succeeded, as in ", but no rank was connected to another one"; "" without a warning.
func (r Receipt) WarningClause() string {
	if r.Warning == "" {
		return ""
	}
	return ", but " + r.Warning
}

// WorldSize returns the number of ranks that were started, as far as it is known, with those that are left out.
func (r Receipt) WorldSize() int {
	if t := r.Training; t != nil && len(r.LeftOut) > 0 {
		return agent.JobSpec{Launcher: t.Launcher, RanksPerNode: t.RanksPerNode}.RanksOfNode() * t.Nodes
	}
	return len(r.Ranks)
}

// Describe returns an attempt in one line without its number, for example "10m0s, steps 1 to 40, RankFailed: ...".
func Describe(a agent.Attempt) string {
	var parts []string
	if a.Ended.After(a.Started) && !a.Started.IsZero() {
		parts = append(parts, humanize.Duration(a.Ended.Sub(a.Started)))
	}
	if a.Checkpoint != "" {
		parts = append(parts, "from "+a.Checkpoint)
	}
	if a.First != nil && a.Last != nil {
		parts = append(parts, fmt.Sprintf("steps %.0f to %.0f", *a.First, *a.Last))
	}
	if a.Reason == "" {
		return strings.Join(append(parts, string(Succeeded)), ", ")
	}
	parts = append(parts, string(a.Reason)+": "+humanize.OneLine(a.Message, 300))
	if len(a.LeftOut) > 0 {
		parts = append(parts, "left out from then on: "+strings.Join(a.LeftOut, ", "))
	}
	return strings.Join(parts, ", ")
}

// Training is what was launched.
type Training struct {
	Launcher agent.Launcher `json:"launcher"`
	// LauncherWhy is why launcher auto became this one, "" for one that was named.
	LauncherWhy  string   `json:"launcherWhy,omitempty"`
	Script       string   `json:"script"`
	Args         []string `json:"args,omitempty"`
	Nodes        int      `json:"nodes"`
	RanksPerNode int      `json:"ranksPerNode"`
	// ResumedFrom is the first run of a series, whose checkpoints the run resumed from; "" for a run of its own.
	ResumedFrom string `json:"resumedFrom,omitempty"`
}

// TrainingOf returns what a job launches.
func TrainingOf(spec agent.JobSpec) *Training {
	return &Training{Launcher: spec.Launcher, LauncherWhy: spec.LauncherWhy, Script: spec.Script, Args: spec.Args,
		Nodes: spec.Nodes, RanksPerNode: spec.RanksOfNode(), ResumedFrom: spec.Env[agent.ResumeVariable]}
}

// Phase is one task of the run.
type Phase struct {
	// Name is the name of the task in the pipeline.
	Name string `json:"name"`
	// Status is one of running, succeeded and failed; running includes waiting for the pod.
	Status run.Status `json:"status"`
	// Reason is why it failed, one word of reasons.md.
	Reason fail.Reason `json:"reason,omitempty"`
	// Started is when its first attempt started.
	Started time.Time `json:"started,omitzero"`
	// Ended is when it ended.
	Ended time.Time `json:"ended,omitzero"`
	// Seconds is how long it took so far.
	Seconds float64 `json:"seconds,omitempty"`
	// Retries is how often Tekton has started it again.
	Retries int `json:"retries,omitempty"`
}

// Node is one node of the environment.
type Node struct {
	Node           int      `json:"node"`
	Pod            string   `json:"pod"`
	KubernetesNode string   `json:"kubernetesNode"`
	GPUs           []string `json:"gpus,omitempty"`
	Model          string   `json:"model,omitempty"`
	Driver         string   `json:"driver,omitempty"`
	// Compute is the GPUs' compute capability, as in 9.0, "" if it is not known.
	Compute string `json:"compute,omitempty"`
	// Rack is "" if it is not known.
	Rack string `json:"rack,omitempty"`
	// Rails are the RDMA ports that the node can use.
	Rails []Rail `json:"rails,omitempty"`
}

// Rail is an RDMA port of a node.
type Rail struct {
	Device string `json:"device"`
	Port   int    `json:"port"`
	// Model and Firmware are the card's, "" if they are not known.
	Model    string `json:"model,omitempty"`
	Firmware string `json:"firmware,omitempty"`
	// Interface is its network interface, "" for none, as on InfiniBand.
	Interface string `json:"interface,omitempty"`
	// Network is its subnet or fabric, the same on all nodes.
	Network   string             `json:"network,omitempty"`
	LinkLayer string             `json:"linkLayer,omitempty"`
	Rate      rdma.BitsPerSecond `json:"rateBitsPerSecond,omitempty"`
}

// Rank is how one training process ended.
type Rank struct {
	Rank    int        `json:"rank"`
	Node    int        `json:"node"`
	Exit    agent.Exit `json:"exit"`
	Stopped bool       `json:"stopped,omitempty"`
	Started time.Time  `json:"started"`
	Seconds float64    `json:"seconds"`
	// Tail has the last lines of a failed rank.
	Tail []string `json:"tail,omitempty"`
}

// WhyStopped returns why a run with that reason stopped ranks that had not ended.
func WhyStopped(reason fail.Reason) string {
	switch reason { //nolint:exhaustive // the others are failures of single ranks or nodes
	case fail.Hang:
		return "stopped because the training hung"
	case fail.StopCondition:
		return "stopped by a rule"
	case fail.TrainingTimeout:
		return "stopped at the end of the training's time"
	case fail.Cancelled:
		return "stopped because the run was cancelled"
	}
	return "stopped because another rank failed or the run ended"
}

// Record is where the record of the run lies.
type Record struct {
	// Folder is on the workspace claim.
	Folder string `json:"folder"`
	// Work is the working directory, with what the script wrote at relative paths, if it wrote any file there.
	Work string `json:"work,omitempty"`
	// Claims hold the folder; with volumeClaimTemplates each holds the part of its node.
	Claims []string `json:"claims"`
}
