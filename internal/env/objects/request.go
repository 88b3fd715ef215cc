// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/env/internal/names"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// maxName keeps the label controller-revision-hash, which is the name, a hyphen
// and a hash of ten letters, within the 63 letters of a label.
const maxName = 52

// NameRule describes ValidName.
const NameRule = "lower-case letters, digits and hyphens, a letter first and no hyphen last, at most 52"

// ValidName reports whether an environment can have the name. Names of Services begin with it, and must begin with a
// letter.
func ValidName(name string) bool {
	return len(validation.IsDNS1035Label(name)) == 0 && len(name) <= maxName
}

// Request is a requested environment.
type Request struct {
	Cluster         cluster.File
	Name, Namespace string
	// Nodes is 0 for the cluster file's gpus.default_nodes, and at most the number of nodes.gpu_nodes.
	Nodes        int
	ExcludeNodes []string
	// Queue is the LocalQueue of Kueue that admits the pods, empty for the cluster file's nodes.queue.
	Queue string
	// QueuePriority is the WorkloadPriorityClass of Kueue, empty for the queue's default.
	QueuePriority string
	// RackLevel is the node label of the queue's topology whose value the pods should share, empty for none.
	RackLevel string
	// GPUsPerNode is nil for the cluster file's gpus.per_node. See GPUs.
	GPUsPerNode *int
	// StopGrace is how long ranks have to save when they are stopped, 0 for the cluster file's nodes.stop_grace. It is the pods' termination
	// grace.
	StopGrace time.Duration
	Mode      agent.Mode
	// Image is empty for the cluster file's image.name.
	Image string
	// Storage is empty for the cluster file's storage.mode. Build refuses AutoStorage.
	Storage cluster.StorageMode
	// WorkspaceSize and DatasetsSize are quantities, empty for the cluster file's. A default of the cluster file leaves them empty: it
	// is the size of new claims alone.
	WorkspaceSize, DatasetsSize string
	StepsImage                  string
	// Services are the names of programs on node 0; Routes lead to them from outside.
	Services []string
	Routes   bool
}

// Names returns the names of the requested environment.
func (r Request) Names() names.Names { return names.Of(r.Namespace, r.Name) }

// GPUs returns how many GPUs each node has. Without GPUs an environment can copy data to the claims.
func (r Request) GPUs() int {
	if r.GPUsPerNode == nil {
		return r.Cluster.GPUs.PerNode
	}
	return *r.GPUsPerNode
}

// WithDefaults fills in the cluster file's defaults.
func (r Request) WithDefaults() Request {
	file := r.Cluster
	r.Nodes = cmp.Or(r.Nodes, file.GPUs.DefaultNodes)
	r.StopGrace = r.stopGrace()
	r.Queue = cmp.Or(r.Queue, file.Nodes.Queue)
	r.Image = cmp.Or(r.Image, file.Image.Name)
	r.Storage = cmp.Or(r.Storage, file.Storage.Mode)
	if size := file.Storage.WorkspaceSize; size.Given {
		r.WorkspaceSize = cmp.Or(r.WorkspaceSize, size.String())
	}
	if size := file.Storage.DatasetsSize; size.Given {
		r.DatasetsSize = cmp.Or(r.DatasetsSize, size.String())
	}
	return r
}

// Validate reports at once all mistakes in a request that has the cluster file's defaults, with the reason InvalidInput. They name
// params as the steps and Tasks do, and keys of the cluster file. Single values are valid already: flags and the cluster file have types.
func (r Request) Validate() error {
	var c checker
	if r.Name == "" {
		c.mistake("name", "", "want %s", NameRule)
	}
	if r.Namespace == "" || len(validation.IsDNS1123Label(r.Namespace)) > 0 {
		c.mistake("namespace", r.Namespace, "want a namespace's name: lower-case letters, digits and hyphens, at most 63")
	}
	if r.Mode != agent.TCP && r.Mode != agent.RDMA {
		c.mistake("mode", r.Mode, "want tcp or rdma")
	}
	c.counts(r)
	if r.QueuePriority != "" && r.Queue == "" {
		c.mistake("queue-priority", r.QueuePriority, "needs a queue: name one, or set nodes.queue in the cluster file of %s",
			r.Cluster.Cluster.Name)
	}
	c.rdma(r)
	missing := "name an image, or set image.name in the cluster file of " + r.Cluster.Cluster.Name
	if flavour := r.Cluster.Image.Flavour; flavour != "" {
		missing = fmt.Sprintf("the cluster file of %s builds its flavour %s: name an image, as mlenv build prints it", r.Cluster.Cluster.Name,
			flavour)
	}
	if r.Image == "" {
		c.mistake("image", "", "%s", missing)
	}
	if r.StepsImage == "" {
		c.mistake("steps-image", "", "name an image that holds the agent")
	}
	c.storage(r)
	c.services(r)
	return c.err()
}

// CheckCapacity refuses more nodes or GPUs than the cluster file has, as Validate does.
func (r Request) CheckCapacity() error {
	var c checker
	c.counts(r)
	return c.err()
}

func (c *checker) err() error {
	if len(c.mistakes) == 0 {
		return nil
	}
	f := fail.Finding{Reason: fail.InvalidInput, Object: "the request", Seen: errors.Join(c.mistakes...).Error()}
	if len(c.next) > 0 {
		f.Next = fmt.Sprintf("use %s; or correct the cluster file, if the nodes have more", strings.Join(c.next, " "))
	}
	return f.Err("checking")
}

type checker struct {
	mistakes []error
	next     []string
}

func (c *checker) mistake(param string, seen any, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if seen == "" || seen == agent.Mode("") {
		c.mistakes = append(c.mistakes, fmt.Errorf("%s: is missing: %s", param, text))
		return
	}
	if s, ok := seen.(string); ok {
		seen = fmt.Sprintf("%q", s)
	}
	c.mistakes = append(c.mistakes, fmt.Errorf("%s: %v: %s", param, seen, text))
}

func (c *checker) counts(r Request) {
	file := r.Cluster
	listed := file.Nodes.GPUNodes
	left, without := len(listed), ""
	for _, name := range slices.Compact(slices.Sorted(slices.Values(r.ExcludeNodes))) {
		switch {
		case slices.Contains(listed, name):
			left, without = left-1, " and exclude-nodes leaves "
		case len(listed) > 0:
			c.mistake("exclude-nodes", name, "nodes.gpu_nodes in the cluster file of %s does not list it; want one of %s", file.Cluster.Name,
				strings.Join(listed, ", "))
		}
	}
	if without != "" {
		without += fmt.Sprint(left)
	}
	switch {
	case len(listed) > 0 && left == 0:
		c.mistake("exclude-nodes", strings.Join(r.ExcludeNodes, ","), "it leaves none of the nodes in nodes.gpu_nodes of the cluster file of %s",
			file.Cluster.Name)
	case len(listed) > 0 && r.Nodes > left:
		c.mistake("nodes", r.Nodes, "the cluster file of %s lists %d nodes in nodes.gpu_nodes%s; want 1 to %d", file.Cluster.Name, len(listed),
			without, left)
		c.next = append(c.next, fmt.Sprintf("--nodes=%d", left))
	}
	if most := file.GPUs.PerNode; r.GPUs() > most {
		c.mistake("gpus-per-node", r.GPUs(), "a node of %s has %d by gpus.per_node of its cluster file; want 0 to %d", file.Cluster.Name,
			most, most)
		c.next = append(c.next, fmt.Sprintf("--gpus-per-node=%d", most))
	}
}

// rdma refuses a cluster file by which pods get no devices.
func (c *checker) rdma(r Request) {
	if r.Mode != agent.RDMA {
		return
	}
	file := r.Cluster
	switch rdma := file.Network.RDMA; {
	case !rdma.Enabled:
		c.mistake("mode", r.Mode, "the cluster file of %s has network.rdma.enabled false", file.Cluster.Name)
	case !rdma.Plugged() && !file.Security.RequiresPrivilegedSCC:
		c.mistake("mode", r.Mode, "the cluster file of %s has neither network.rdma.resources and attachments, nor "+
			"security.requires_privileged_scc, without which pods cannot open the host's devices", file.Cluster.Name)
	}
}

func (c *checker) storage(r Request) {
	classes := r.Cluster.Storage
	if mounts := r.Mounts(); r.Name != "" && r.Storage != cluster.NodeStorage && mounts[0].Claim == mounts[1].Claim {
		c.mistake("storage", string(r.Storage),
			"claim %s would be both /workspace and /datasets of environment %s; correct %s or %s in the cluster file of %s",
			mounts[0].Claim, r.Name, WorkspaceKey, DatasetsKey, r.Cluster.Cluster.Name)
	}
	needs := func(key string) {
		c.mistake("storage", string(r.Storage), "needs %s in the cluster file of %s", key, r.Cluster.Cluster.Name)
	}
	switch r.Storage {
	case cluster.SharedStorage:
		if classes.ClassRWX == "" {
			needs("storage.class_rwx")
		}
	case cluster.NodeStorage, cluster.AutoStorage:
		if classes.ClassRWO == "" {
			needs("storage.class_rwo")
		}
	}
}
