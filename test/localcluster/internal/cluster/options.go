// Package cluster brings the local cluster up, looks after it and takes it down.
package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/gpu"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/rdma"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/topology"
)

// Options are what a cluster is brought up with.
type Options struct {
	Nodes int
	// GPUs is how many each node advertises.
	GPUs   int
	Faults []gpu.NodeFault
	// RDMAFaults are those of NICs.
	RDMAFaults []rdma.NodeFault
	// Triggers adds Tekton Triggers.
	Triggers bool
	// Kueue adds Kueue.
	Kueue bool
	// Peers adds Kubeflow Trainer and JobSet.
	Peers bool
	// NoTekton is whether Tekton is missing; a later up adds it.
	NoTekton bool
	// NoNetworks is whether Multus and Whereabouts are missing, so that pods have one
	// network; a later up adds them.
	NoNetworks bool
}

// Extras are parts that nothing else of the cluster needs. A later up makes what
// an earlier one left out.
type Extras struct {
	// TrainingImage is the image that the end-to-end tests train in.
	TrainingImage bool
	// Tkn is Tekton's command line.
	Tkn bool
}

// DefaultOptions are those of an up without flags.
var DefaultOptions = Options{Nodes: 2, GPUs: 4}

// Validate returns every mistake at once.
func (o Options) Validate() error {
	var problems []error
	if o.Nodes < 1 || o.Nodes > topology.MaxNodes {
		problems = append(problems, fmt.Errorf("--nodes is %d; it can be 1 to %d", o.Nodes, topology.MaxNodes))
	}
	if o.GPUs < 0 || o.GPUs > 8 {
		problems = append(problems, fmt.Errorf("--gpus is %d; it can be 0 to 8", o.GPUs))
	}
	if o.Triggers && o.NoTekton {
		problems = append(problems, errors.New("--triggers needs Tekton; leave --tekton=false out"))
	}
	known := map[string]bool{}
	for _, n := range topology.Nodes(max(0, min(o.Nodes, topology.MaxNodes))) {
		known[n.Name] = true
	}
	for _, f := range o.Faults {
		if !known[f.Node] {
			problems = append(problems, fmt.Errorf("--gpu-fault names %s; the cluster has node-1 to node-%d", f.Node, o.Nodes))
		}
		if f.Index >= o.GPUs {
			problems = append(problems, fmt.Errorf("--gpu-fault names GPU %d of %s; a node has GPUs 0 to %d", f.Index, f.Node, o.GPUs-1))
		}
	}
	for _, f := range o.RDMAFaults {
		if !known[f.Node] {
			problems = append(problems, fmt.Errorf("--rdma-fault names %s; the cluster has node-1 to node-%d", f.Node, o.Nodes))
		}
	}
	return errors.Join(problems...)
}

func optionsPath() string { return topology.State("options.json") }

// Stored returns the options of the present cluster, if there is one.
func Stored() (Options, bool, error) {
	content, err := os.ReadFile(optionsPath())
	if errors.Is(err, fs.ErrNotExist) {
		return Options{}, false, nil
	}
	if err != nil {
		return Options{}, false, err
	}
	var o Options
	if err := json.Unmarshal(content, &o); err != nil {
		return Options{}, false, fmt.Errorf("reading %s: %w; run localcluster down", optionsPath(), err)
	}
	return o, true, nil
}

func (o Options) save() error {
	content, err := json.Marshal(o)
	if err != nil {
		return err
	}
	return os.WriteFile(optionsPath(), content, 0o644)
}
