// Package cluster brings the local cluster up, looks after it and takes it down.
package cluster

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/gpu"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/profile"
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
	// Profile is the cluster that this one is like, "" for none. Its nodes come after those of Nodes, which then have no
	// devices, as the infrastructure nodes of a cluster.
	Profile string
	// Triggers adds Tekton Triggers.
	Triggers bool
	// Kueue adds Kueue.
	Kueue bool
	// Peers adds Kubeflow Trainer with JobSet, MPI Operator, and a training image that all can use.
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
	like, err := o.profile()
	problems = append(problems, err)
	if most := topology.MaxNodes - len(like.Nodes); o.Nodes < 1 || o.Nodes > most {
		problems = append(problems, fmt.Errorf("--nodes is %d; it can be 1 to %d", o.Nodes, most))
	}
	if o.GPUs < 0 || o.GPUs > 8 {
		problems = append(problems, fmt.Errorf("--gpus is %d; it can be 0 to 8", o.GPUs))
	}
	if o.Triggers && o.NoTekton {
		problems = append(problems, errors.New("--triggers needs Tekton; leave --tekton=false out"))
	}
	known := map[string]bool{}
	o.Nodes = max(0, min(o.Nodes, topology.MaxNodes))
	for _, n := range o.nodes() {
		known[n.Name] = o.hasDevices(n)
	}
	for _, f := range o.Faults {
		if !known[f.Node] {
			problems = append(problems, fmt.Errorf("--gpu-fault names %s; the nodes with GPUs are %s", f.Node, strings.Join(names(known), ", ")))
		}
		if f.Index >= o.GPUs {
			problems = append(problems, fmt.Errorf("--gpu-fault names GPU %d of %s; a node has GPUs 0 to %d", f.Index, f.Node, o.GPUs-1))
		}
	}
	for _, f := range o.RDMAFaults {
		if !known[f.Node] {
			problems = append(problems, fmt.Errorf("--rdma-fault names %s; the nodes with NICs are %s", f.Node, strings.Join(names(known), ", ")))
		}
	}
	return errors.Join(problems...)
}

// names returns those of the nodes that are true.
func names(nodes map[string]bool) []string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		if nodes[name] {
			list = append(list, name)
		}
	}
	return list
}

// profile is the profile, the zero one without.
func (o Options) profile() (profile.Profile, error) {
	if o.Profile == "" {
		return profile.Profile{}, nil
	}
	return profile.Get(o.Profile)
}

// like is the profile of valid options.
func (o Options) like() profile.Profile {
	p, err := o.profile()
	if err != nil {
		panic(err) // Validate has refused it
	}
	return p
}

// nodes are all nodes that run, those of the profile last.
func (o Options) nodes() []topology.Netns {
	like, _ := o.profile() // an unknown one has no nodes
	nodes := topology.Nodes(o.Nodes + len(like.Nodes))
	for i, name := range like.Nodes {
		nodes[o.Nodes+i].Node = name
	}
	return nodes
}

// hasDevices is whether the node has GPUs, and NICs in the cluster's form.
func (o Options) hasDevices(n topology.Netns) bool { return o.Profile == "" || n.Node != n.Name }

// gpusOf is how many GPUs the node advertises.
func (o Options) gpusOf(n topology.Netns) int {
	if !o.hasDevices(n) {
		return 0
	}
	return o.GPUs
}

// layoutOf is that of the node's NICs.
func (o Options) layoutOf(n topology.Netns) rdma.Layout {
	switch {
	case o.Profile == "":
		return rdma.Layout{Form: rdma.SRIOV}
	case o.hasDevices(n):
		return o.like().RDMA
	}
	return rdma.Layout{Form: rdma.NoNICs}
}

// defaultMemlock is the kernel's own limit since 5.16, and that of the containers of the clusters with profiles.
const defaultMemlock = 8 << 20

// memlock is how many bytes a container may lock.
func (o Options) memlock() int64 {
	like := o.like()
	return cmp.Or(like.Memlock.Value(), defaultMemlock)
}

// functionsOf is how many virtual functions of each NIC the node advertises.
func (o Options) functionsOf(n topology.Netns) int {
	if o.layoutOf(n).Form == rdma.SRIOV {
		return rdma.FunctionsEach
	}
	return 0
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
