package preflight

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
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
	byConfig := map[string][]string{}
	rebooting := map[string]bool{}
	for _, place := range places {
		if place.Node == nil {
			continue
		}
		current := place.Node.Annotations[currentConfig]
		byConfig[current] = append(byConfig[current], place.Name)
		if desired := place.Node.Annotations[desiredConfig]; desired != "" && desired != current {
			rebooting[current] = true
		}
	}
	var checks []Check
	for _, config := range slices.Sorted(maps.Keys(byConfig)) {
		check := p.booted(ctx, Check{Name: name}, config, byConfig[config])
		if rebooting[config] {
			check.Seen += "; another configuration is being rolled out"
		}
		checks = append(checks, check)
	}
	return append(checks, p.running(ctx)...)
}

// agentsTime is what the agents of an environment that lives have to answer.
const agentsTime = 3 * time.Second

// running are the modes of the kernels that run, as far as the environment lives
// already and its agents answer whoever asks: else only the configurations tell.
func (p *probe) running(ctx context.Context) []Check {
	ctx, cancel := context.WithTimeout(ctx, agentsTime)
	defer cancel()
	clients := *p.Clients
	clients.Namespace = p.Request.Namespace
	set, err := nodes.Connect(ctx, &clients, p.Request.Name, "")
	if err != nil {
		return nil
	}
	defer set.Close()
	checks := make([]Check, len(set))
	err = set.Each(ctx, func(ctx context.Context, client *agent.Client) error {
		facts, err := client.Facts(ctx)
		if err != nil {
			return err
		}
		devices, err := client.RDMA(ctx, rdma.Expected{})
		if err != nil {
			return err
		}
		checks[client.Node()] = p.kernel(facts.KubernetesNode, devices.IOMMU)
		return nil
	})
	if err != nil {
		return nil
	}
	return checks
}

// kernel is what that of one node says.
func (p *probe) kernel(node string, iommu rdma.IOMMU) Check {
	check := Check{Name: "iommu", Verdict: OK, Seen: fmt.Sprintf("%s: the running kernel's is %s (command line %q)", node, iommu.Mode, iommu.CommandLine)}
	switch iommu.Mode {
	case rdma.IOMMUTranslated:
		check.Verdict, check.Fix = Warning, p.admin()+" (a MachineConfig for the node's pool, which reboots it)"
	case rdma.IOMMUUnknown:
		check.Verdict = Unknown
	}
	return check
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
	check.Seen = fmt.Sprintf("%s booted without %s (%s has %s): RDMA may fail with IBV_WC_LOC_PROT_ERR or be slow", where, passThrough, config, humanize.Count(len(arguments), "kernel argument"))
	check.Fix = p.admin() + " (a MachineConfig for the nodes' pool, which reboots them); mlenv rdma shows the running kernel's command line"
	return check
}
