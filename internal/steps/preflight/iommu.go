// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

// Annotations of OpenShift's machine-config-operator on a node
// (openshift/machine-config-operator:pkg/daemon/constants). A node has booted with the current configuration.
const (
	currentConfig = "machineconfiguration.openshift.io/currentConfig"
	desiredConfig = "machineconfiguration.openshift.io/desiredConfig"
)

const passThrough = "iommu=pt"

var machineConfigs = schema.GroupVersionResource{Group: "machineconfiguration.openshift.io", Version: "v1", Resource: "machineconfigs"}

// booted is the rendered configuration that nodes booted with: the existence of another MachineConfig proves nothing about a node.
type booted struct {
	// name is "" if the nodes name none, and object is nil then and if it cannot be read because of err.
	name   string
	object *unstructured.Unstructured
	err    error
	nodes  []string
	// rebooting reports whether another configuration is being rolled out.
	rebooting bool
}

// nodeNames names the nodes.
func (b booted) nodeNames() string { return humanize.First(b.nodes, 8) }

// readConfigs returns the configurations of the nodes that the pods may run on, sorted by name.
func (p *probe) readConfigs(ctx context.Context) ([]booted, error) {
	candidates, err := p.candidates()
	if err != nil {
		return nil, err
	}
	byName := map[string]*booted{}
	for _, candidate := range candidates {
		if candidate.Node == nil {
			continue
		}
		current, desired := candidate.Node.Annotations[currentConfig], candidate.Node.Annotations[desiredConfig]
		if byName[current] == nil {
			byName[current] = &booted{name: current}
		}
		found := byName[current]
		found.nodes = append(found.nodes, candidate.Name)
		found.rebooting = found.rebooting || desired != "" && desired != current
	}
	var all []booted
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		found := *byName[name]
		if name != "" {
			found.object, found.err = p.Clients.Objects.Resource(machineConfigs).Get(ctx, name, metav1.GetOptions{})
		}
		all = append(all, found)
	}
	return all, nil
}

// iommu checks whether the nodes booted with iommu=pt.
func (p *probe) iommu(context.Context) []Check {
	const name = "iommu"
	if !p.rdma {
		return nil
	}
	configs, err := p.configs()
	if err != nil {
		return []Check{unread(name, "the nodes", err)}
	}
	var checks []Check
	for _, config := range configs {
		check := p.passesThrough(name, config)
		if config.rebooting {
			check.Seen += "; another configuration is being rolled out"
		}
		checks = append(checks, check)
	}
	return checks
}

func (p *probe) passesThrough(name string, config booted) Check {
	switch {
	case config.name == "":
		return newCheck(name, Unknown, "mlenv rdma, once the nodes are up", "%s: no machine configuration is named; only a pod sees the "+
			"kernel's command line", config.nodeNames())
	case config.err != nil:
		return unread(name, fmt.Sprintf("machine configuration %s of %s", config.name, config.nodeNames()), config.err)
	}
	list, _, _ := unstructured.NestedStringSlice(config.object.Object, "spec", "kernelArguments")
	// An entry may hold several arguments.
	arguments := strings.Fields(strings.Join(list, " "))
	if slices.Contains(arguments, passThrough) {
		return newCheck(name, OK, "", "%s booted with %s (%s)", config.nodeNames(), passThrough, config.name)
	}
	return newCheck(name, Warning, p.adminCommand()+
		" (a MachineConfig for the nodes' pool, which reboots them); mlenv rdma shows the running kernel's command line",
		"%s booted without %s (%s has %s): RDMA may fail with IBV_WC_LOC_PROT_ERR or be slow", config.nodeNames(), passThrough, config.name,
		humanize.Count(len(arguments), "kernel argument"))
}
