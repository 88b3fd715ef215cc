// Package receipt is the account of one run, kept in a ConfigMap that outlives
// the environment and the run.
package receipt

import (
	"encoding/json"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fabric"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/metrics"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/nccl"
)

// Verdict is how a run ended.
type Verdict string

// The verdicts.
const (
	Succeeded Verdict = "Succeeded"
	Failed    Verdict = "Failed"
)

// Folder is the repository of a run from somebody's folder, as it was.
const Folder = "folder"

// Receipt is documented in docs/receipt.md.
type Receipt struct {
	Run         string `json:"run"`
	RunUID      string `json:"runUID,omitempty"`
	Namespace   string `json:"namespace"`
	Environment string `json:"environment"`
	// Schedule is the name of the one that started the run, "" for none.
	Schedule string  `json:"schedule,omitempty"`
	Verdict  Verdict `json:"verdict"`
	Reason   string  `json:"reason,omitempty"`
	Message  string  `json:"message,omitempty"`
	// Regression says in what a scheduled run is worse than those before it, "" where in nothing.
	Regression string    `json:"regression,omitempty"`
	Started    time.Time `json:"started,omitzero"`
	Ended      time.Time `json:"ended,omitzero"`
	// Repository is the URL that was trained from, without a user, or Folder.
	Repository string `json:"repository,omitempty"`
	Commit     string `json:"commit,omitempty"`
	Tree       string `json:"tree,omitempty"`
	// Image is by digest where the cluster told it.
	Image   string `json:"image,omitempty"`
	Mode    string `json:"mode,omitempty"`
	Storage string `json:"storage,omitempty"`
	// Training is what was launched, nil where nothing was.
	Training *Training `json:"training,omitempty"`
	Phases   []Phase   `json:"phases,omitempty"`
	Nodes    []Node    `json:"nodes,omitempty"`
	Ranks    []Rank    `json:"ranks,omitempty"`
	// NCCL are the variables of the network that the ranks of node 0 had. Those of other
	// nodes differ where their devices have other names.
	NCCL map[string]string `json:"nccl,omitempty"`
	// Network is what NCCL's own logs prove of the training, without its processes;
	// nil where it logged nothing.
	Network *nccl.Summary `json:"network,omitempty"`
	// Fabric is what check-fabric found, nil where there was none.
	Fabric *fabric.Report `json:"fabric,omitempty"`
	// Metrics are the last values of the training's own.
	Metrics json.RawMessage `json:"metrics,omitempty"`
	// Cause is the rank that failed first by an error of its own.
	Cause *Cause `json:"cause,omitempty"`
	// Record says where logs, metrics and checkpoints lie.
	Record *Record `json:"record,omitempty"`
	// Teardown is what was given back, or what was not.
	Teardown string `json:"teardown,omitempty"`
	// Curve is how the training's own metrics went; nil where it wrote none.
	Curve *metrics.Curve `json:"curve,omitempty"`
}

// Training is what was launched.
type Training struct {
	Launcher agent.Launcher `json:"launcher"`
	Script   string         `json:"script"`
	// Args are as they were given, without the environment.
	Args         []string `json:"args,omitempty"`
	Nodes        int      `json:"nodes"`
	RanksPerNode int      `json:"ranksPerNode"`
}

// Phase is one task of the run.
type Phase struct {
	Name    string    `json:"name"`
	Status  string    `json:"status"`
	Reason  string    `json:"reason,omitempty"`
	Started time.Time `json:"started,omitzero"`
	Ended   time.Time `json:"ended,omitzero"`
	// Seconds it took, as far as it has.
	Seconds float64 `json:"seconds,omitempty"`
	Retries int     `json:"retries,omitempty"`
}

// Node is one node of the environment.
type Node struct {
	Node           int      `json:"node"`
	Pod            string   `json:"pod"`
	KubernetesNode string   `json:"kubernetesNode"`
	GPUs           []string `json:"gpus,omitempty"`
	Model          string   `json:"model,omitempty"`
	Driver         string   `json:"driver,omitempty"`
	// Rack is where it is, "" where that is not known.
	Rack string `json:"rack,omitempty"`
	// Rails are the RDMA ports that it can use.
	Rails []Rail `json:"rails,omitempty"`
}

// Rail is a node's port on one.
type Rail struct {
	Device string `json:"device"`
	Port   int    `json:"port"`
	// Interface is its network interface, "" where the pod has none, as on InfiniBand.
	Interface string `json:"interface,omitempty"`
	// Network is the subnet, or the fabric, that it is on: the same on all nodes of the rail.
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
	// Tail is of failed ranks only.
	Tail []string `json:"tail,omitempty"`
}

// Cause is the failure that the others followed from.
type Cause struct {
	Rank   int                `json:"rank"`
	Node   int                `json:"node"`
	Exit   agent.Exit         `json:"exit"`
	Python *agent.PythonError `json:"python,omitempty"`
}

// Record says where things lie.
type Record struct {
	// Folder on the workspace claim: logs of all ranks, metrics and status.
	Folder string `json:"folder"`
	// Claims that hold it; with volumeClaimTemplates each node's own part.
	Claims []string `json:"claims"`
}
