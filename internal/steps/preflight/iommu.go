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

// iommu checks whether the nodes booted with iommu=pt, by the rendered configuration of
// each: the existence of a MachineConfig with it proves nothing about a node.
func (p *probe) iommu(ctx context.Context) []Check {
	const name = "iommu"
	if !p.rdma {
		return nil
	}
	candidates, err := p.candidates()
	if err != nil {
		return []Check{unread(name, "the nodes", err)}
	}
	byConfig := map[string][]string{}
	rebooting := map[string]bool{}
	for _, candidate := range candidates {
		if candidate.Node == nil {
			continue
		}
		current := candidate.Node.Annotations[currentConfig]
		byConfig[current] = append(byConfig[current], candidate.Name)
		if desired := candidate.Node.Annotations[desiredConfig]; desired != "" && desired != current {
			rebooting[current] = true
		}
	}
	var checks []Check
	for _, config := range slices.Sorted(maps.Keys(byConfig)) {
		check := p.booted(ctx, name, config, humanize.First(byConfig[config], 8))
		if rebooting[config] {
			check.Seen += "; another configuration is being rolled out"
		}
		checks = append(checks, check)
	}
	return checks
}

func (p *probe) booted(ctx context.Context, name, config, nodes string) Check {
	if config == "" {
		return newCheck(name, Unknown, "mlenv rdma, once the nodes are up", "%s: no machine configuration is named; only a pod sees the "+
			"kernel's command line", nodes)
	}
	object, err := p.Clients.Objects.Resource(machineConfigs).Get(ctx, config, metav1.GetOptions{})
	if err != nil {
		return unread(name, fmt.Sprintf("machine configuration %s of %s", config, nodes), err)
	}
	list, _, _ := unstructured.NestedStringSlice(object.Object, "spec", "kernelArguments")
	// An entry may hold several arguments.
	arguments := strings.Fields(strings.Join(list, " "))
	if slices.Contains(arguments, passThrough) {
		return newCheck(name, OK, "", "%s booted with %s (%s)", nodes, passThrough, config)
	}
	return newCheck(name, Warning, p.admin()+" (a MachineConfig for the nodes' pool, which reboots them); mlenv rdma shows the running "+
		"kernel's command line",
		"%s booted without %s (%s has %s): RDMA may fail with IBV_WC_LOC_PROT_ERR or be slow", nodes, passThrough, config,
		humanize.Count(len(arguments), "kernel argument"))
}
