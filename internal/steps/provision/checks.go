// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/env/network"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

// resolveTime is how long it may take until DNS knows the nodes' names everywhere.
const resolveTime = time.Minute

// checkNodes asks every agent for its facts, proves that the nodes share storage and find each other by name, and
// prepares their network. It reports all problems at once.
func (p *provisioner) checkNodes(ctx context.Context, credentials agent.Credentials) error {
	set := p.environment().FirstNodes(p.request.Nodes, credentials)
	defer set.Close()
	facts, err := nodes.AskAll(ctx, set, (*agent.Client).Facts)
	if err != nil {
		return err
	}
	var problems []error
	for _, f := range facts {
		p.log.Info("  " + describe(f))
		for _, gpu := range f.GPUs {
			if len(gpu.Throttled) > 0 {
				p.log.Warn(fmt.Sprintf("GPU %d of node %d (%s) is held back by %s at %d °C; all nodes will wait for it.",
					gpu.Index, f.Node, f.KubernetesNode, strings.Join(gpu.Throttled, " and "), gpu.Temperature))
			}
		}
		problems = append(problems, checkGPUs(f, p.request.Cluster.GPUs.Type))
	}
	problems = append(problems, checkStorage(facts, p.request.Storage), p.checkNames(ctx, set), p.prepareNetwork(ctx, set, facts))
	return errors.Join(problems...)
}

// prepareNetwork has each agent set the variables that the mode needs.
func (p *provisioner) prepareNetwork(ctx context.Context, set nodes.Set, facts []agent.Facts) error {
	names := make([]string, len(facts))
	for i, f := range facts {
		names[i] = f.KubernetesNode
	}
	settings := network.FromFile(p.request.Cluster, p.request.Mode)
	settings.Racks = network.Racks(ctx, p.clients.Kube, p.request.Cluster.Nodes, p.queue(), names)
	prepared, err := network.Prepare(ctx, set, settings)
	if fail.ReasonOf(err) == fail.RDMAUnavailable && p.modeIsOpen() {
		p.useTCP(err)
		prepared, err = prepared.OverSockets(ctx, set)
	}
	if err != nil {
		return err
	}
	prepared.LogSettings(p.log)
	return nil
}

// modeIsOpen reports whether nodes that cannot use RDMA use TCP. That is so until this step ends, for nothing has started.
func (p *provisioner) modeIsOpen() bool {
	return cmp.Or(p.options.RequestedMode, p.options.Mode) == agent.Auto
}

// useTCP decides the mode by what keeps the nodes from RDMA.
func (p *provisioner) useTCP(err error) {
	p.request.Mode, p.why = agent.TCP, "the nodes cannot use RDMA: "+humanize.OneLine(strings.ReplaceAll(err.Error(), "\n", "; "), 500)
	p.log.Warn(fmt.Sprintf("Mode tcp, because %s. With mode=rdma this fails.", p.why), "event", "mode", "mode", p.request.Mode, "why", p.why)
}

func describe(f agent.Facts) string {
	text := fmt.Sprintf("node %d on %s: %s", f.Node, f.KubernetesNode, humanize.Count(len(f.GPUs), "GPU"))
	if len(f.GPUs) > 0 {
		text += fmt.Sprintf(" (%s, driver %s)", f.GPUs[0].Model, f.GPUs[0].Driver)
	}
	text += ", " + humanize.Count(f.CPUs, "CPU")
	if f.MemoryLimit > 0 {
		text += fmt.Sprintf(", %.1f GiB memory", gib(f.MemoryLimit))
	}
	return text + fmt.Sprintf(", workspace %.1f GiB free of %.1f", gib(f.Workspace.Free), gib(f.Workspace.Size))
}

func gib(b agent.Bytes) float64 { return float64(b) / (1 << 30) }

// checkGPUs compares the GPUs that the node's processes can use with those that it was given.
func checkGPUs(f agent.Facts, model string) error {
	where := fmt.Sprintf("checking the GPUs of node %d (%s on %s)", f.Node, f.Pod, f.KubernetesNode)
	if f.LostDevices() {
		return fail.Advise(fail.Becausef(fail.GPUMissing, "%s: %s", where, f.GPUFault()),
			"oc delete pod %s: a new pod on the same Kubernetes node may use its GPUs again", f.Pod)
	}
	if f.GPUProblem != "" {
		return fail.Advise(fail.Becausef(fail.GPUMissing, "%s: %s", where, f.GPUFault()),
			"see what the pod sees: oc exec %s -- nvidia-smi; if the driver is at fault, leave the node out: oc adm cordon %s", f.Pod,
			f.KubernetesNode)
	}
	if fault := f.GPUFault(); fault != "" {
		return fail.Advise(fail.Becausef(fail.GPUMissing, "%s: %s", where, fault),
			"have the node looked at, and leave it out meanwhile: --exclude-nodes=%s, or oc adm cordon %[1]s", f.KubernetesNode)
	}
	for _, gpu := range f.GPUs {
		if model != "" && !sameModel(gpu.Model, model) {
			return fail.Advise(fail.Becausef(fail.GPUMissing, "%s: GPU %d is a %s, want %s", where, gpu.Index, gpu.Model, model),
				"correct gpus.type in the cluster file, or leave the node out")
		}
	}
	return nil
}

// sameModel compares names of GPUs. A label of a node has hyphens for spaces, and some names have hyphens of their own.
func sameModel(a, b string) bool {
	return strings.ReplaceAll(a, "-", " ") == strings.ReplaceAll(b, "-", " ")
}

// checkStorage compares the IDs that the nodes see on their volumes.
func checkStorage(facts []agent.Facts, mode cluster.StorageMode) error {
	var problems []error
	for _, mount := range []struct {
		path string
		of   func(agent.Facts) agent.Volume
	}{
		{agent.Workspace, func(f agent.Facts) agent.Volume { return f.Workspace }},
		{agent.Datasets, func(f agent.Facts) agent.Volume { return f.Datasets }},
	} {
		seen, first := map[string]int{}, -1
		for _, f := range facts {
			volume := mount.of(f)
			if volume.ID == "" {
				problems = append(problems,
					fail.Advise(fail.Becausef(fail.StorageNotShared, "checking %s on node %d (%s): it cannot be written: %s", mount.path, f.Node,
						f.KubernetesNode, volume.Problem),
						"oc exec %s -- ls -lan %s; if another user owns the files, see NFS and root in docs/operate/rdma.md", f.Pod, mount.path))
				continue
			}
			other, same := seen[volume.ID]
			if same && mode == cluster.NodeStorage {
				problems = append(problems, fail.Becausef(fail.StorageNotShared, "checking %s: nodes %d and %d have the same volume, want one each",
					mount.path, other, f.Node))
			}
			if !same && first >= 0 && mode == cluster.SharedStorage {
				problems = append(problems,
					fail.Advise(fail.Becausef(fail.StorageNotShared, "checking %s: node %d does not see the files of node %d, want one shared volume",
						mount.path, f.Node, first),
						"check storage.class_rwx of the cluster file, or use --storage=volumeClaimTemplates"))
			}
			if first < 0 {
				first = f.Node
			}
			if !same {
				seen[volume.ID] = f.Node
			}
		}
	}
	return errors.Join(problems...)
}

// checkNames has each node look up itself, the master and its neighbours in a ring, so that every name is looked up
// from another node.
func (p *provisioner) checkNames(ctx context.Context, set nodes.Set) error {
	ctx, cancel := context.WithTimeout(ctx, resolveTime)
	defer cancel()
	names := p.request.Names()
	return set.Each(ctx, func(ctx context.Context, client *agent.Client) error {
		var wanted []string
		for _, node := range []int{0, client.Node(), (client.Node() + 1) % len(set), (client.Node() + len(set) - 1) % len(set)} {
			if name := names.TLSName(node); !slices.Contains(wanted, name) {
				wanted = append(wanted, name)
			}
		}
		// DNS remembers a name that was looked up too early as unknown for a while.
		err := nodes.RetryUnreachable(ctx, func() error {
			answer, err := client.Resolve(ctx, wanted)
			if err != nil {
				return err
			}
			for name, problem := range answer.Problems {
				return fail.Becausef(fail.AgentUnreachable, "resolving %s: %s", name, problem)
			}
			return nil
		})
		if err != nil {
			return fail.Advise(fail.Because(fail.NameResolution, fmt.Errorf("checking names on node %d: %w", client.Node(), err)),
				"oc get endpointslices -n %s -l kubernetes.io/service-name=%s; oc get pods -n openshift-dns", p.request.Namespace, names.Service)
		}
		return nil
	})
}
