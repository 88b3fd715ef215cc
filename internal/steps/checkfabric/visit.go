package checkfabric

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/network"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/env/podagent"
	"github.com/ml-dev-env/ml-dev-env/internal/fabric"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
)

func (c *checker) next() string {
	if c.Pods.Pods == "" {
		return ""
	}
	return "leave the pod out of --pods to see whether the others work; " +
		"look into it: cat /sys/class/infiniband/*/ports/*/state, cat /proc/net/dev, grep locked /proc/self/limits"
}

// podReport is the report for machines about pods that are no environment.
type podReport struct {
	fabric.Report
	// Pods are in the order in which the report numbers its nodes.
	Pods []podagent.Pod `json:"pods"`
}

// visit checks pods that are no environment, and leaves them as they were.
func (c *checker) visit(ctx context.Context) (fabric.Report, error) {
	clients := c.Clients
	if err := podagent.Allowed(ctx, clients.Kube, clients.Namespace, c.Pods); err != nil {
		return fabric.Report{}, err
	}
	pods, err := podagent.Find(ctx, clients.Kube, clients.Namespace, c.Pods)
	if err != nil {
		return fabric.Report{}, err
	}
	logPods(c.Log, pods)
	guests := &podagent.Agents{Cluster: podagent.NewCluster(clients), Pods: pods, Agent: c.Agent, Idle: c.Idle}
	report, err := c.measure(ctx, guests)
	if err != nil && ctx.Err() != nil {
		err = fail.Becausef(fail.Cancelled, "checking pods %s: interrupted", c.Pods.Pods)
	}
	if left := guests.Remove(ctx); left != nil {
		err = errors.Join(err, left)
	} else if guests.Started() {
		c.Log.Info("The agents are gone from the pods.")
	}
	if report.Verdict == "" {
		return report, err
	}
	return report, c.end(report, podReport{report, pods}, err)
}

func logPods(log *slog.Logger, pods []podagent.Pod) {
	for i, pod := range pods {
		log.Info(fmt.Sprintf("Node %d is pod %s (%s) on %s, container %s.", i, pod.Name, pod.IP, pod.Node, pod.Container), "node", i, "pod", pod.Name, "address", pod.IP, "kubernetesNode", pod.Node, "container", pod.Container)
	}
	together := podagent.Together(pods)
	for _, node := range slices.Sorted(maps.Keys(together)) {
		log.Warn(fmt.Sprintf("Pods %s are on one node, %s: their traffic does not leave it.", strings.Join(together[node], " and "), node), "pods", together[node], "kubernetesNode", node)
	}
}

// measure copies the agents, and checks. The caller removes them.
func (c *checker) measure(ctx context.Context, guests *podagent.Agents) (fabric.Report, error) {
	c.Log.Info("Copying the agent into the pods.")
	set, err := guests.Start(ctx)
	if err != nil {
		return fabric.Report{}, err
	}
	mode, err := prepare(ctx, set, c.Mode, c.Log)
	if err != nil {
		return fabric.Report{}, err
	}
	// A process in the pods may use the port on which the ranks of an environment meet.
	const first, ports = 20000, 9000
	check := &Check{
		Nodes: set, Hosts: guests.Hosts(), Mode: mode, ID: JobsOf(""), Bound: c.Timeout, CompareTCP: c.Compare != "", Log: c.Log,
		FirstPort: first + rand.IntN(ports), Next: c.next(),
	}
	return check.Run(ctx)
}

// prepare sets the network of the pods' ranks, as provision does for an environment. An empty mode
// is rdma if all pods have devices and nothing prevents RDMA.
func prepare(ctx context.Context, set nodes.Set, mode string, log *slog.Logger) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute) // a pod may have gone since its agent started
	defer cancel()
	own, err := nodes.Ask(ctx, set, (*agent.Client).Facts)
	if err != nil {
		return "", err
	}
	devices, err := nodes.Ask(ctx, set, func(client *agent.Client, ctx context.Context) (rdma.Facts, error) {
		return client.RDMA(ctx, rdma.Expected{})
	})
	if err != nil {
		return "", err
	}
	without := slices.ContainsFunc(devices, func(f rdma.Facts) bool { return len(f.Devices) == 0 })
	if mode == "" && !without || mode == agent.RDMA {
		prepared, err := network.Prepare(ctx, set, network.Settings{Mode: agent.RDMA})
		if err == nil {
			prepared.Log(log)
			logOverrides(log, own, prepared)
			return agent.RDMA, nil
		}
		if mode != "" || fail.ReasonOf(err) != fail.RDMAUnavailable {
			return "", err
		}
		log.Warn(fmt.Sprintf("Mode tcp, though all pods have RDMA devices: %v", err), "error", err)
	} else if mode == "" {
		log.Info("Mode tcp: not all pods have RDMA devices.")
	}
	_, err = network.Prepare(ctx, set, network.Settings{Mode: agent.TCP})
	return agent.TCP, err
}

// logOverrides logs the pods' own variables that differ from those of the measurement.
func logOverrides(log *slog.Logger, own []agent.Facts, prepared network.Network) {
	for node, facts := range own {
		for _, name := range slices.Sorted(maps.Keys(facts.Environment)) {
			was, is := facts.Environment[name], prepared.Environments[node][name]
			if strings.HasPrefix(name, "NCCL_") && was != is {
				log.Warn(fmt.Sprintf("Pod %s sets %s=%s; the check measures with the detected %q.", facts.Pod, name, was, is), "pod", facts.Pod, "variable", name, "previous", was, "value", is)
			}
		}
	}
}
