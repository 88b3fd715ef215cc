// SPDX-License-Identifier: Apache-2.0

// Package cluster starts, changes, inspects and removes the local cluster.
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
	"time"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/build"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/gpu"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/profile"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/rdma"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/topology"
)

// Options are the options of a cluster.
type Options struct {
	Nodes int
	// GPUs is the number of GPUs that each node advertises.
	GPUs   int
	Faults []gpu.NodeFault
	// RDMAFaults are the faults of NICs.
	RDMAFaults []rdma.NodeFault
	// Profile is the name of the cluster that this one imitates, "" for none. The profile's nodes come after the first Nodes nodes,
	// which then have no devices, like the infrastructure nodes of a cluster.
	Profile string
	// Triggers adds Tekton Triggers.
	Triggers bool
	// Kueue is the version of Kueue, "" for none.
	Kueue string
	// Peers adds Kubeflow Trainer with JobSet, MPI Operator, and a training image that all can use.
	Peers bool
	// NoTekton omits Tekton. A later up can add it.
	NoTekton bool
	// PullSecretDelay is the time from a service account's creation until it gets its pull secret; 0 is a random one.
	PullSecretDelay time.Duration
	// NewestTekton runs the newest Tekton in place of the long-term release.
	NewestTekton bool
	// NoNetworks omits Multus and Whereabouts, so that pods have one network. A later up can add them.
	NoNetworks bool
}

// Extras are parts that nothing else in the cluster needs. A later up can create the ones that an earlier up omitted.
type Extras struct {
	// TrainingImage is the image that the end-to-end tests train in.
	TrainingImage bool
	// Tkn is Tekton's command line.
	Tkn bool
}

// DefaultOptions are the options of an up without flags.
var DefaultOptions = Options{Nodes: 2, GPUs: 4}

// tekton returns the set of Tekton's programs.
func (o Options) tekton() build.Set {
	if o.NewestTekton {
		return build.NewestTekton
	}
	return build.Tekton
}

// Validate returns all mistakes in one error.
func (o Options) Validate() error {
	var problems []error
	like, err := o.profile()
	problems = append(problems, err)
	if most := topology.MaxNodes - len(like.Nodes); o.Nodes < 1 || o.Nodes > most {
		problems = append(problems, fmt.Errorf("--nodes is %d; it must be 1 to %d", o.Nodes, most))
	}
	if o.GPUs < 0 || o.GPUs > 8 {
		problems = append(problems, fmt.Errorf("--gpus is %d; it must be 0 to 8", o.GPUs))
	}
	if o.Triggers && o.NoTekton {
		problems = append(problems, errors.New("--triggers needs Tekton; leave --tekton=false out"))
	}
	if o.Kueue != "" && !slices.Contains(build.KueueVersions, o.Kueue) {
		problems = append(problems, fmt.Errorf("--kueue is %s; it must be one of %s", o.Kueue, strings.Join(build.KueueVersions, ", ")))
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

// names returns the names of the nodes whose value is true.
func names(nodes map[string]bool) []string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		if nodes[name] {
			list = append(list, name)
		}
	}
	return list
}

// profile returns the profile of the options, the zero Profile for none.
func (o Options) profile() (profile.Profile, error) {
	if o.Profile == "" {
		return profile.Profile{}, nil
	}
	return profile.Get(o.Profile)
}

// like returns the profile of valid options.
func (o Options) like() profile.Profile {
	p, err := o.profile()
	if err != nil {
		panic(err) // Validate refuses such options
	}
	return p
}

// nodes returns all running nodes, the profile's last.
func (o Options) nodes() []topology.Netns {
	like, _ := o.profile() // an unknown profile has no nodes
	nodes := topology.Nodes(o.Nodes + len(like.Nodes))
	for i, name := range like.Nodes {
		nodes[o.Nodes+i].Node = name
	}
	return nodes
}

// hasDevices reports whether the node has GPUs, and NICs in the cluster's form.
func (o Options) hasDevices(n topology.Netns) bool { return o.Profile == "" || n.Node != n.Name }

// gpusOf returns the number of GPUs that the node advertises.
func (o Options) gpusOf(n topology.Netns) int {
	if !o.hasDevices(n) {
		return 0
	}
	return o.GPUs
}

// layoutOf returns the layout of the node's NICs.
func (o Options) layoutOf(n topology.Netns) rdma.Layout {
	switch {
	case o.Profile == "":
		return rdma.Layout{Form: rdma.SRIOV}
	case o.hasDevices(n):
		return o.like().RDMA
	}
	return rdma.Layout{Form: rdma.NoNICs}
}

// defaultMemlock is the kernel's default limit since 5.16, and the limit of containers on the clusters with profiles.
const defaultMemlock = 8 << 20

// memlock returns the number of bytes that a container may lock.
func (o Options) memlock() int64 {
	like := o.like()
	return cmp.Or(like.Memlock.Value(), defaultMemlock)
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
