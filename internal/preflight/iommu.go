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

	"github.com/ml-dev-env/ml-dev-env/internal/words"
)

// Annotations of OpenShift's machine-config-operator on a node
// (openshift/machine-config-operator:pkg/daemon/constants). The current
// configuration is the one that it has booted with.
const (
	currentConfig = "machineconfiguration.openshift.io/currentConfig"
	desiredConfig = "machineconfiguration.openshift.io/desiredConfig"
)

const passThrough = "iommu=pt"

var machineConfigs = schema.GroupVersionResource{Group: "machineconfiguration.openshift.io", Version: "v1", Resource: "machineconfigs"}

// iommu says whether the nodes booted with iommu=pt, by the rendered configuration
// that each has now: that there is some MachineConfig with it says nothing of a node.
func (p *probe) iommu(ctx context.Context) []Check {
	const name = "iommu"
	if !p.rdma {
		return nil
	}
	places, err := p.places()
	if err != nil {
		return []Check{unread(name, "the nodes", err)}
	}
	nodes := map[string][]string{}
	rebooting := map[string]bool{}
	for _, place := range places {
		if place.Node == nil {
			continue
		}
		current := place.Node.Annotations[currentConfig]
		nodes[current] = append(nodes[current], place.Name)
		if desired := place.Node.Annotations[desiredConfig]; desired != "" && desired != current {
			rebooting[current] = true
		}
	}
	var checks []Check
	for _, config := range slices.Sorted(maps.Keys(nodes)) {
		check := p.booted(ctx, Check{Name: name}, config, nodes[config])
		if rebooting[config] {
			check.Seen += "; another configuration is being rolled out"
		}
		checks = append(checks, check)
	}
	return checks
}

// booted looks into the configuration that the nodes have.
func (p *probe) booted(ctx context.Context, check Check, config string, nodes []string) Check {
	where := listed(nodes, 8)
	if config == "" {
		check.Verdict, check.Seen = Unknown, where+": no machine configuration is named; only a pod sees the kernel's command line"
		check.Fix = "mlenv rdma, once the nodes are up"
		return check
	}
	object, err := p.Dynamic.Resource(machineConfigs).Get(ctx, config, metav1.GetOptions{})
	if err != nil {
		return unread(check.Name, "machine configuration "+config+" of "+where, err)
	}
	list, _, _ := unstructured.NestedStringSlice(object.Object, "spec", "kernelArguments")
	// An entry may hold several arguments.
	arguments := strings.Fields(strings.Join(list, " "))
	if slices.Contains(arguments, passThrough) {
		check.Verdict, check.Seen = OK, fmt.Sprintf("%s booted with %s (%s)", where, passThrough, config)
		return check
	}
	check.Verdict = Warning
	check.Seen = fmt.Sprintf("%s booted without %s (%s has %s): RDMA may fail with IBV_WC_LOC_PROT_ERR or be slow", where, passThrough, config, words.Count(len(arguments), "kernel argument"))
	check.Fix = "mlenv admin (a MachineConfig for the nodes' pool, which reboots them); mlenv rdma shows the running kernel's command line"
	return check
}
