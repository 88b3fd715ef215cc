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

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/network"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/env/podagent"
	"github.com/ml-dev-env/ml-dev-env/internal/fabric"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// checkPods finds every mistake of the flags of pods that are no environment.
func (o *options) checkPods(cmd *cobra.Command) (problems []error) {
	changed := cmd.Flags().Changed
	if !changed("pods") {
		for _, name := range []string{"container", "agent", "idle"} {
			if changed(name) {
				problems = append(problems, fmt.Errorf("--%s: want --pods with it", name))
			}
		}
		return problems
	}
	if err := o.pods.Check(); err != nil {
		problems = append(problems, err)
	}
	for _, name := range []string{"name", "client-certs", "run-name", "run-uid"} {
		// A Task gives all of its params.
		if flag := cmd.Flag(name); flag != nil && flag.Value.String() != flag.DefValue {
			problems = append(problems, fmt.Errorf("--%s %q: it is of an environment, want it without --pods", name, flag.Value))
		}
	}
	const least = 5 * time.Second
	if o.idle < least {
		problems = append(problems, fmt.Errorf("--idle %s: want at least %s", o.idle, least))
	}
	return problems
}

// next is what to do about pods at fault.
func (o *options) next() string {
	if o.pods.Pods == "" {
		return ""
	}
	return "leave the pod out of --pods to see whether the others are well; " +
		"look into it: cat /sys/class/infiniband/*/ports/*/state, cat /proc/net/dev, grep locked /proc/self/limits"
}

// visited is what machines are told of pods that are no environment.
type visited struct {
	fabric.Report
	// Pods are in the order in which the report numbers its nodes.
	Pods []podagent.Pod `json:"pods"`
}

// visit checks pods that are no environment, and leaves them as they were.
func (o *options) visit(cmd *cobra.Command, clients *kube.Clients, log *slog.Logger, to results) error {
	ctx := cmd.Context()
	if err := podagent.Allowed(ctx, clients.Kube, clients.Namespace, o.pods); err != nil {
		return err
	}
	pods, err := podagent.Find(ctx, clients.Kube, clients.Namespace, o.pods)
	if err != nil {
		return err
	}
	tellPods(log, pods)
	guests := &podagent.Agents{Cluster: podagent.NewCluster(clients), Pods: pods, Agent: o.agent, Idle: o.idle}
	report, err := o.measure(ctx, guests, log)
	if err != nil && ctx.Err() != nil {
		err = fail.Becausef(fail.Cancelled, "checking pods %s: interrupted", o.pods.Pods)
	}
	if left := guests.Remove(ctx); left != nil {
		err = errors.Join(err, left)
	} else if guests.Started() {
		log.Info("The agents are gone from the pods.")
	}
	if report.Verdict == "" {
		return err
	}
	return o.end(cmd, log, to, report, visited{report, pods}, err)
}

// tellPods says which node of the report is which pod.
func tellPods(log *slog.Logger, pods []podagent.Pod) {
	for i, pod := range pods {
		log.Info(fmt.Sprintf("Node %d is pod %s (%s) on %s, container %s.", i, pod.Name, pod.IP, pod.Node, pod.Container))
	}
	together := podagent.Together(pods)
	for _, node := range slices.Sorted(maps.Keys(together)) {
		log.Warn(fmt.Sprintf("Pods %s are on one node, %s: what they send each other does not leave it.", strings.Join(together[node], " and "), node))
	}
}

// measure brings the agents, and checks. The caller removes them.
func (o *options) measure(ctx context.Context, guests *podagent.Agents, log *slog.Logger) (fabric.Report, error) {
	log.Info("Copying the agent into the pods.")
	set, err := guests.Start(ctx)
	if err != nil {
		return fabric.Report{}, err
	}
	mode, err := prepare(ctx, set, o.mode, log)
	if err != nil {
		return fabric.Report{}, err
	}
	// Something in the pods may listen where environments' ranks meet.
	const first, ports = 20000, 9000
	c := &Check{
		Nodes: set, Hosts: guests.Hosts(), Mode: mode, ID: jobsOf(""), Bound: o.timeout, CompareTCP: o.compare != "", Log: log,
		FirstPort: first + rand.IntN(ports), Next: o.next(),
	}
	return c.Run(ctx)
}

// prepare sets how the pods' ranks talk, as provision does it for an environment: mode ""
// is rdma where all have devices and nothing is in the way.
func prepare(ctx context.Context, set nodes.Set, mode string, log *slog.Logger) (string, error) {
	own := make([]agent.Facts, len(set))
	devices := make([]int, len(set))
	err := set.Each(ctx, func(ctx context.Context, client *agent.Client) (err error) {
		i := client.Node()
		if own[i], err = client.Facts(ctx); err != nil {
			return err
		}
		facts, err := client.RDMA(ctx, network.Settings{}.Expected)
		devices[i] = len(facts.Devices)
		return err
	})
	if err != nil {
		return "", err
	}
	if mode == "" && !slices.Contains(devices, 0) || mode == agent.RDMA {
		prepared, err := network.Prepare(ctx, set, network.Settings{Mode: agent.RDMA})
		if err == nil {
			prepared.Log(log)
			tellOverruled(log, own, prepared)
			return agent.RDMA, nil
		}
		if mode != "" || fail.ReasonOf(err) != fail.RDMAUnavailable {
			return "", err
		}
		log.Warn(fmt.Sprintf("Mode tcp, though all pods have RDMA devices: %v", err))
	} else if mode == "" {
		log.Info("Mode tcp: not all pods have RDMA devices.")
	}
	_, err = network.Prepare(ctx, set, network.Settings{Mode: agent.TCP})
	return agent.TCP, err
}

// tellOverruled says what the pods themselves set otherwise than it was measured with.
func tellOverruled(log *slog.Logger, own []agent.Facts, prepared network.Network) {
	for node, facts := range own {
		for _, name := range slices.Sorted(maps.Keys(facts.Environment)) {
			was, is := facts.Environment[name], prepared.Environments[node][name]
			if strings.HasPrefix(name, "NCCL_") && was != is {
				log.Warn(fmt.Sprintf("Pod %s sets %s=%s; it is measured with %q, by what was detected.", facts.Pod, name, was, is))
			}
		}
	}
}
